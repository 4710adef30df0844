#!/usr/bin/env bash
# GPU host, no network: unpacks a bundle of ci/offline_bundle.sh and says how to use it. Needs Python 3.12 with torch.
#
#   bash BUNDLE_DIR/install.sh TARGET [CHECKOUT]
#
# TARGET    where the stack goes, such as /tmp/grpo-perf; nothing else on the host is changed
# CHECKOUT  a checkout of grpo-perf: its plugin is then found by pytest (the entry point `pytest11`)
#
# Can be run when only some parts have arrived (exit code 4 names the rest), and again later.
set -euo pipefail

bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ $# -ge 1 ] || {
  echo "usage: bash install.sh TARGET [CHECKOUT]" >&2
  exit 2
}
mkdir -p "$1"
target=$(cd "$1" && pwd)
checkout=${2:+$(cd "$2" && pwd)}
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' || {
  echo "install: $python is $("$python" -V 2>&1); the bundle is for Python 3.12. Name it: PYTHON=/path/to/python3.12" >&2
  exit 2
}

code=0
"$python" "$bundle/unpack.py" "$target" "$bundle" || code=$?
[ "$code" -eq 0 ] || [ "$code" -eq 4 ] || exit "$code"
# each of the run's processes would compile the same modules at its start, all at once
start=$SECONDS
"$python" -m compileall -q -j 0 "$target/site" >/dev/null 2>&1 || true
echo "compiled in $((SECONDS - start)) s"
[ "$code" -eq 0 ] || exit "$code"

if [ -n "$checkout" ]; then
  info=$target/site/grpo_perf-0.dist-info
  mkdir -p "$info"
  version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$checkout/grpo_perf/__init__.py")
  printf 'Metadata-Version: 2.1\nName: grpo-perf\nVersion: %s\n' "${version:-0}" >"$info/METADATA"
  printf '[pytest11]\ngrpo_perf = grpo_perf.plugin\n' >"$info/entry_points.txt"
fi
cat >"$target/env.sh" <<P
# To be sourced by a shell that runs grpo-perf on this host.
export PATH="$target/site/bin:\$PATH"
export PYTHONPATH="$target/site${checkout:+:$checkout}\${PYTHONPATH:+:\$PYTHONPATH}"
export GRPO_PERF_TOKENIZER="$target/tokenizer"
P
echo "next: . $target/env.sh && $python $bundle/check_host.py && $python -m pytest perf_tests -m gpu"
