#!/usr/bin/env bash
# The project's own tests: lint, types, then `pytest tests`, which ends with a real run of verl on the CPU.
#
#   bash ci/test.sh [pytest arguments]        e.g. tests/timeline, -k resolve, -m 'not real'
#
#   GRPO_PERF_TEST_PYTHON=PATH  the verl that real runs use, instead of installing the CPU lock
#   PERF_BASE_PYTHON=PATH       the Python (3.11 or newer) that environments are made from
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=ci/lib.sh
. "$root/ci/lib.sh"
cd "$root"

has_paths=
for argument in "$@"; do
  case $argument in
    tests | tests/* | ./tests | ./tests/* | "$root"/tests | "$root"/tests/*) has_paths=1 ;;
  esac
done

base=$(find_base_python)
lock_installs
ensure_uv "$base"
ensure_suite_env "$base" .venv-test ci/locks/suite.txt ci/locks/dev.txt
bin=$root/.venv-test/bin
say "lint and types"
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"
if [ -z "${GRPO_PERF_TEST_PYTHON:-}" ]; then
  ensure_verl_env "$base" .venv-perf-verl "$(choose_lock cpu)"
  export GRPO_PERF_TEST_PYTHON=$root/.venv-perf-verl/bin/python
  unset PYTHONDONTWRITEBYTECODE
fi
unlock_installs
say "tests (real runs use the verl of $GRPO_PERF_TEST_PYTHON)"
if [ -z "$has_paths" ]; then set -- tests "$@"; fi
exec "$bin/python" -m pytest "$@"
