# shellcheck shell=bash
# Shell functions of ci/perf.sh and ci/test.sh. Sourced, never run; the caller has set `root`, the repository.
#
#   .venv-uv               the installer (uv), nothing else
#   .venv-perf             the suite: grpo-perf and its light dependencies
#   .venv-perf-verl[-gpu]  the locked verl stack, where no interpreter at hand has verl
#   .venv-test             grpo-perf and the development tools
#
# Each environment carries a stamp of what it was made from and is made anew when that changed.
# Exit codes: 2 usage (a person must act), 3 an installation failed.

# shellcheck disable=SC2154
logs=$root/.cache/ci
uv=
pip=()

say() { printf 'ci: %s\n' "$*"; }

die() { # CODE LINE...
  local code=$1
  shift
  printf 'ci: %s\n' "$@" >&2
  exit "$code"
}

# Runs a command with its output in a log, a line every PERF_HEARTBEAT_S seconds, and the log's tail if it fails.
run_phase() { # TITLE LOG_NAME COMMAND...
  local title=$1 log=$logs/$2.log code=0 start=$SECONDS beat pid
  shift 2
  mkdir -p "$logs"
  say "$title"
  "$@" >"$log" 2>&1 </dev/null &
  pid=$!
  # A command in the background ignores Ctrl-C, so it is told by name.
  trap 'kill -TERM "$pid" "$beat" 2>/dev/null; wait; say "stopped while: $title"; exit 130' INT TERM
  beat_until_killed "$title" "$start" &
  beat=$!
  wait "$pid" || code=$?
  kill "$beat" 2>/dev/null
  wait "$beat" 2>/dev/null || true
  trap - INT TERM
  if [ "$code" -ne 0 ]; then
    say "failed (exit code $code) after $((SECONDS - start)) s: $title" >&2
    tail -n "${PERF_LOG_TAIL:-25}" "$log" >&2
    say "whole log: $log" >&2
    return "$code"
  fi
  say "  done in $((SECONDS - start)) s"
}

beat_until_killed() { # TITLE START_S
  local fifo
  trap - INT TERM
  # read from a pipe that nobody writes to: waits without a child process that would outlive us
  exec {fifo}<> <(:)
  while ! read -r -t "${PERF_HEARTBEAT_S:-10}" -u "$fifo"; do
    say "  $1: $((SECONDS - $2)) s"
  done
}

# --- interpreters -----------------------------------------------------------------------------------------------

is_usable_python() { # PYTHON: 3.11 or newer, with pip or able to make an environment with it
  "$1" -c 'import importlib.util as u, sys
sys.exit(sys.version_info < (3, 11) or not (u.find_spec("pip") or u.find_spec("ensurepip")))' >/dev/null 2>&1
}

find_base_python() { # prints the interpreter that environments are made from
  local name
  if [ -n "${PERF_BASE_PYTHON:-}" ]; then
    is_usable_python "$PERF_BASE_PYTHON" || die 2 \
      "PERF_BASE_PYTHON=$PERF_BASE_PYTHON is not a Python of 3.11 or newer with pip or ensurepip." \
      "Name another, or unset it: unset PERF_BASE_PYTHON"
    command -v "$PERF_BASE_PYTHON"
    return
  fi
  # 3.11 and 3.12 first: the locks have wheels for them
  for name in python3.11 python3.12 python3 python3.13 python; do
    if is_usable_python "$name"; then
      command -v "$name"
      return
    fi
  done
  die 2 "no Python of 3.11 or newer with pip or ensurepip on PATH (python3 is: $(python3 -V 2>/dev/null || echo missing))." \
    "Install one (Debian: apt-get install python3.11 python3.11-venv), or name one: PERF_BASE_PYTHON=/path/to/python3.11"
}

describe_verl() { # PYTHON: prints "VERSION<tab>EXECUTABLE"; fails where it has no verl
  "$1" "$root/ci/which_verl.py" 2>/dev/null
}

find_current_verl() { # prints as describe_verl, for the interpreter that the caller works in; fails where none has verl
  local name
  for name in ${VIRTUAL_ENV:+"$VIRTUAL_ENV/bin/python"} python3 python; do
    command -v "$name" >/dev/null 2>&1 && describe_verl "$name" && return
  done
  return 1
}

# --- what this machine is ---------------------------------------------------------------------------------------

has_gpu() {
  case ${PERF_DEVICE:-} in
    gpu) return 0 ;;
    cpu) return 1 ;;
    "") [ -e "${PERF_GPU_NODE:-/dev/nvidia0}" ] || command -v nvidia-smi >/dev/null 2>&1 ;;
    *) die 2 "PERF_DEVICE=$PERF_DEVICE: want cpu or gpu" ;;
  esac
}

has_vllm_cpu() { # vLLM's CPU build: x86-64 with AVX2 or AVX-512
  [ "$(uname -m)" = x86_64 ] && grep -qwE 'avx2|avx512f' "${PERF_CPUINFO:-/proc/cpuinfo}" 2>/dev/null
}

choose_lock() { # cpu|gpu: prints the lock's path under the repository
  if [ "$1" = gpu ]; then
    echo ci/locks/gpu.txt
  elif has_vllm_cpu; then
    echo ci/locks/cpu.txt
  else
    echo ci/locks/cpu-hf.txt
  fi
}

pinned_version() { # LOCK NAME
  sed -n "s/^$2==//p" "$root/$1"
}

check_disk() { # GIB: an environment of this size must fit
  local free_kib
  free_kib=$(df -Pk "$root" | awk 'NR == 2 { print $4 }')
  [ "$free_kib" -ge $(($1 * 1024 * 1024)) ] || die 2 \
    "only $((free_kib / 1024 / 1024)) GiB are free under $root; the verl stack needs about $1." \
    "Make room, or measure an interpreter that has verl: PERF_PYTHON=/path/to/python bash ci/perf.sh"
}

# --- environments -----------------------------------------------------------------------------------------------

stamp_of() { # PYTHON FILE...: what an environment is made from, in one line
  local python=$1
  shift
  (
    cd "$root" || exit
    command -v "$python"
    "$python" -V
    pwd
    cat "$@"
  ) | sha256sum
}

has_stamp() { # DIR STAMP
  [ "$(cat "$1/.grpo-perf-stamp" 2>/dev/null)" = "$2" ]
}

lock_installs() { # one installation at a time in this checkout
  mkdir -p "$logs"
  exec {install_lock}>"$logs/install.lock"
  command -v flock >/dev/null 2>&1 || return 0
  flock -n "$install_lock" && return
  say "another installation runs in this checkout: waiting for it"
  flock "$install_lock"
}

unlock_installs() { exec {install_lock}>&-; }

ensure_uv() { # BASE_PYTHON: sets `pip`, and `uv` where it can be had (pip is slower)
  local dir=$root/.venv-uv stamp
  pip=("$1" -m pip)
  stamp=$(stamp_of "$1" ci/locks/uv.txt)
  if ! "${pip[@]}" --version >/dev/null 2>&1; then
    [ -x "$dir/bin/python" ] || run_phase "making an environment with pip (.venv-uv)" venv-uv "$1" -m venv "$dir" || exit 3
    pip=("$dir/bin/python" -m pip)
  fi
  if ! has_stamp "$dir" "$stamp"; then
    mkdir -p "$dir"
    if run_phase "installing the installer ($(cat "$root/ci/locks/uv.txt"))" uv \
      "${pip[@]}" install --upgrade --no-deps --target "$dir/uv" -r "$root/ci/locks/uv.txt"; then
      echo "$stamp" >"$dir/.grpo-perf-stamp"
    else
      say "uv cannot be installed; pip does its work, slower"
    fi
  fi
  # pip's settings (index, find-links, certificates) hold for uv too
  eval "$("${pip[@]}" config list 2>/dev/null | "$1" "$root/ci/uv_settings.py")"
  if has_stamp "$dir" "$stamp"; then uv=$dir/uv/bin/uv; fi
}

make_venv() { # BASE_PYTHON DIR
  if [ -n "$uv" ]; then
    "$uv" venv --quiet --python "$1" "$2"
  else
    "$1" -m venv --without-pip "$2"
  fi
}

# Exact versions are given, so nothing is resolved. Where uv fails, pip tries: it reads all of its own settings.
install_phase() { # TITLE DIR UV_OPTIONS ARGUMENT...
  local title=$1 dir=$2 options=$3 log=${2##*/}
  shift 3
  if [ -n "$uv" ]; then
    # shellcheck disable=SC2086  # no option at all where there is none
    run_phase "$title" "$log" "$uv" pip install --python "$dir/bin/python" --no-deps $options "$@" && return
    say "uv failed; pip tries"
  fi
  run_phase "$title, with pip" "$log-pip" "${pip[@]}" --python "$dir/bin/python" install --no-deps "$@" || exit 3
}

ensure_suite_env() { # BASE_PYTHON DIR LOCK...: grpo-perf, editable, and the locks
  local base=$1 dir=$root/$2 lock args=() stamp
  shift 2
  stamp=$(stamp_of "$base" pyproject.toml "$@")
  has_stamp "$dir" "$stamp" && return
  rm -rf "$dir"
  for lock in "$@"; do args+=(-r "$root/$lock"); done
  make_venv "$base" "$dir" || exit 3
  install_phase "installing grpo-perf's own dependencies ($*) into ${dir##*/}" "$dir" '' "${args[@]}"
  install_phase "installing grpo-perf into ${dir##*/}" "$dir" '' --no-build-isolation -e "$root"
  echo "$stamp" >"$dir/.grpo-perf-stamp"
}

torch_arguments() { # LOCK PYTHON: what makes the installer take torch's CPU build for the CPU locks
  local torch
  torch=torch==$(pinned_version "$1" torch)
  if [ -z "$uv" ] || [ "$1" = ci/locks/gpu.txt ]; then return; fi
  case $("$uv" pip install --python "$2" --dry-run --no-deps "$torch" 2>&1) in
    *"$torch+cpu"*) return ;; # find-links or the index has it
  esac
  if "$uv" pip install --python "$2" --dry-run --no-deps --torch-backend cpu "$torch" >/dev/null 2>&1; then
    echo --torch-backend=cpu
  fi
}

mend_torch() { # DIR LOCK: a CUDA build under a CPU lock works too, with the libraries that it wants
  local version
  version=$("$1/bin/python" -c 'import importlib.metadata as m; print(m.version("torch"))')
  case $2:$version:$(uname -sm) in
    ci/locks/gpu.txt:* | *:*+cpu:* | *:Darwin*) return ;;
  esac
  say "warning: torch $version is not a CPU build: several GB more are installed, and start-up is slower"
  if [ -n "$uv" ]; then
    run_phase "installing what torch $version needs" torch-cuda "$uv" pip install --python "$1/bin/python" "torch==$version"
  else
    run_phase "installing what torch $version needs" torch-cuda "${pip[@]}" --python "$1/bin/python" install "torch==$version"
  fi
}

install_flash_attention() { # BASE_PYTHON DIR: verl's FSDP engine packs sequences with flash-attn, which has no wheels
  local version
  version=$(cat "$root/ci/offline/flash_attn_standin/version.txt")
  if [ "${PERF_FLASH_ATTN:-}" = build ]; then
    install_phase "compiling flash-attn $version (takes long)" "$2" '' --no-build-isolation "flash-attn==$version"
    return
  fi
  say "flash-attn: a stand-in on PyTorch's own flash kernels; the fingerprint says so (the real one: PERF_FLASH_ATTN=build)"
  run_phase "making the flash-attn stand-in" flash-attn \
    bash "$root/ci/offline/flash_attn_standin/build.sh" "$1" "$2" || exit 3
}

ensure_verl_env() { # BASE_PYTHON DIR LOCK
  local dir=$root/$2 lock=$3 stamp size_gib=6 args
  stamp=$(stamp_of "$1" "$lock")
  has_stamp "$dir" "$stamp" && return
  if [ "$lock" = ci/locks/gpu.txt ]; then size_gib=20; fi
  check_disk "$size_gib"
  rm -rf "$dir"
  make_venv "$1" "$dir" || exit 3
  args=$(torch_arguments "$lock" "$dir/bin/python")
  install_phase "installing verl $(pinned_version "$lock" verl) and what it runs on ($lock, $(wc -l <"$root/$lock") packages) into $2" \
    "$dir" "$args" -r "$root/$lock"
  mend_torch "$dir" "$lock" || exit 3
  if [ "$lock" = ci/locks/gpu.txt ]; then install_flash_attention "$1" "$dir"; fi
  "$dir/bin/python" "$root/ci/check_env.py" "$root/$lock" || exit 3
  # Without bytecode each of the run's processes compiles the same modules at its start, all at once.
  run_phase "compiling what a run imports" warm env -u PYTHONDONTWRITEBYTECODE VLLM_LOGGING_LEVEL=ERROR \
    "$dir/bin/python" "$root/ci/warm_imports.py" || say "  (it will be compiled in the first run instead)"
  echo "$stamp" >"$dir/.grpo-perf-stamp"
}
