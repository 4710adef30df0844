#!/usr/bin/env bash
# Measures GRPO steps of real verl and judges them: `pytest perf_tests`, on a machine with nothing but Python 3.11.
#
#   bash ci/perf.sh [pytest arguments]        e.g. --perf-plan, -k dynamic-batch, --perf-baseline=create
#
# What is measured: the verl of PERF_PYTHON or --perf-python; else of the active environment, python3 or python, and
# then nothing is installed under it; else the versions of ci/locks/, in an environment of their own.
# The suite itself runs in .venv-perf. Its exit code is pytest's.
#
#   PERF_PYTHON=PATH       the interpreter whose verl is measured
#   PERF_BASE_PYTHON=PATH  the Python (3.11 or newer) that environments are made from
#   PERF_DEVICE=cpu|gpu    instead of looking for an NVIDIA GPU
#   PERF_FLASH_ATTN=build  GPU lock only: compile flash-attn instead of its stand-in (docs/gpu.md)
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
caller=$PWD
# shellcheck source=ci/lib.sh
. "$root/ci/lib.sh"

from_caller() { # PATH: a relative path means the folder that the script was called from
  case $1 in
    /*) echo "$1" ;;
    */*) echo "$caller/$1" ;;
    *) command -v "$1" || echo "$1" ;;
  esac
}

# --- what is asked ----------------------------------------------------------------------------------------------

python=${PERF_PYTHON:+$(from_caller "$PERF_PYTHON")}
python_name=PERF_PYTHON
marker='' has_marker='' has_junit='' has_benchmark='' has_paths='' plan_only='' needs_verl=1
arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    --perf-python=*) python=$(from_caller "${1#*=}") python_name=--perf-python ;;
    --perf-python)
      [ $# -ge 2 ] || die 2 "--perf-python wants a path"
      python=$(from_caller "$2") python_name=--perf-python
      shift
      ;;
    *)
      arguments+=("$1")
      case $1 in
        -m) has_marker=1 marker=${2:-} ;;
        -m?*) has_marker=1 marker=${1#-m} ;;
        --junitxml* | --junit-xml*) has_junit=1 ;;
        --benchmark-json*) has_benchmark=1 ;;
        --perf-plan) plan_only=1 needs_verl= ;;
        --perf-from* | --perf-engine=replay:* | replay:* | -h | --help | -V | --version) needs_verl= ;;
        perf_tests | perf_tests/* | ./perf_tests | ./perf_tests/* | "$root"/perf_tests | "$root"/perf_tests/*) has_paths=1 ;;
      esac
      ;;
  esac
  shift
done
cd "$root"

device=cpu
if has_gpu; then device=gpu; fi
case $marker in
  cpu) device=cpu ;;
  gpu) [ "$device" = gpu ] || needs_verl= ;; # no GPU: the suite says so at once, nothing need be installed
esac

# --- the verl under test ----------------------------------------------------------------------------------------

if [ -n "$python" ]; then
  found=$(describe_verl "$python") || die 2 "$python_name=$python cannot import verl, or is no Python." \
    "Install verl there, name another interpreter, or leave $python_name out: ci/perf.sh then installs verl $(pinned_version ci/locks/cpu.txt verl)"
else
  found=$(find_current_verl) || found=
fi
if [ -n "$found" ]; then
  python=${found#*$'\t'}
  say "verl under test: ${found%%$'\t'*} of $python (nothing is installed under it)"
else
  lock=$(choose_lock "$device")
  environment=.venv-perf-verl
  if [ "$device" = gpu ]; then environment=.venv-perf-verl-gpu; fi
  say "verl under test: $(pinned_version "$lock" verl) from $lock, in its own environment $environment"
  if [ "$lock" = ci/locks/cpu-hf.txt ]; then
    say "vLLM's CPU build cannot use this processor (not x86-64, or neither AVX2 nor AVX-512): transformers does the rollout"
  fi
fi

# --- environments -----------------------------------------------------------------------------------------------

base=$(find_base_python)
lock_installs
ensure_uv "$base"
ensure_suite_env "$base" .venv-perf ci/locks/suite.txt
if [ -z "$found" ]; then
  if [ -n "$needs_verl" ]; then
    ensure_verl_env "$base" "$environment" "$lock"
    # Ours is compiled once and for all; modules that only a run imports are to be kept compiled too.
    unset PYTHONDONTWRITEBYTECODE
  fi
  python=$root/$environment/bin/python
  [ -x "$python" ] || python=
fi
unlock_installs

# --- the suite --------------------------------------------------------------------------------------------------

options=()
if [ -n "$python" ]; then options+=(--perf-python "$python"); fi
if [ -z "$has_marker" ]; then options+=(-m "$device"); fi
if [ -z "$plan_only" ]; then
  mkdir -p runs
  if [ -z "$has_junit" ]; then options+=(--junitxml=runs/junit.xml); fi
  if [ -z "$has_benchmark" ]; then options+=(--benchmark-json=runs/benchmark.json); fi
fi
if [ -z "$has_paths" ]; then options+=(perf_tests); fi
# exec: Ctrl-C and SIGTERM reach pytest itself
exec .venv-perf/bin/python -m pytest "${options[@]}" ${arguments[@]+"${arguments[@]}"}
