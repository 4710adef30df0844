#!/usr/bin/env bash
# Build machine (x86-64 Linux, Python 3.12, a package registry): everything that an air-gapped Hopper host with Python
# 3.12 and torch 2.11.0+cu130 lacks for verl 0.9.1 + vllm 0.24.0 and for grpo-perf, in parts of a given size.
#
#   bash ci/offline_bundle.sh OUT_DIR [--part-mib 60] [--flash-attn WHEEL]
#
# OUT_DIR gets install.sh, unpack.py, check_host.py, manifest.json and part1/, part2/, ...: copy them to the host, then
# `bash install.sh TARGET` there (docs/gpu.md).
#
#   --part-mib N         no part is larger than N MiB
#   --flash-attn WHEEL   the real flash-attn, built for Python 3.12 and torch 2.11; without it a stand-in is bundled,
#                        and every fingerprint says so
#   PERF_BASE_PYTHON=PATH  the Python 3.12 to use
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=ci/lib.sh
. "$root/ci/lib.sh"
here=$root/ci/offline
hopper=90 # sm_90

usage() { die 2 "usage: bash ci/offline_bundle.sh OUT_DIR [--part-mib 60] [--flash-attn WHEEL]" "$@"; }

out='' part_mib=60 flash_attn=''
while [ $# -gt 0 ]; do
  case $1 in
    --part-mib | --flash-attn)
      [ $# -ge 2 ] || usage "$1 wants a value"
      if [ "$1" = --part-mib ]; then part_mib=$2; else flash_attn=$2; fi
      shift
      ;;
    -*) usage "unknown option $1" ;;
    *)
      [ -z "$out" ] || usage "one OUT_DIR only, not also $1"
      out=$1
      ;;
  esac
  shift
done
[ -n "$out" ] || usage "OUT_DIR is missing"
[[ $part_mib =~ ^[1-9][0-9]*$ ]] || usage "--part-mib wants a whole number of MiB, not '$part_mib'"
[ -z "$flash_attn" ] || [ -f "$flash_attn" ] || usage "--flash-attn: there is no $flash_attn"
if [ -e "$out" ] && [ -n "$(ls -A "$out")" ]; then usage "$out is not empty: name a new folder"; fi
mkdir -p "$out"
out=$(cd "$out" && pwd)
if [ -n "$flash_attn" ]; then flash_attn=$(cd "$(dirname "$flash_attn")" && pwd)/$(basename "$flash_attn"); fi
cd "$root"

base=${PERF_BASE_PYTHON:-python3.12}
"$base" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null ||
  die 2 "$base is not Python 3.12, which the wheels are for. Name one: PERF_BASE_PYTHON=/path/to/python3.12"
check_disk 6
ensure_uv "$base"
[ -n "$uv" ] || die 3 "the bundle is built with uv, which could not be installed (see above)"

work=$root/.cache/offline
site=$work/site
rm -rf "$work"
mkdir -p "$work"

install_overlay() {
  "$uv" pip install --python "$base" --no-deps --link-mode copy --target "$site" -r "$here/overlay.txt"
}

add_flash_attention() {
  if [ -n "$flash_attn" ]; then
    "$uv" pip install --python "$base" --no-deps --link-mode copy --target "$site" "$flash_attn"
  else
    bash "$here/flash_attn_standin/build.sh" "$base" "$site"
  fi
}

# The functions below run as phases, where bash ignores `set -e`: each step says `|| return` itself.

trim() { # what is not used, scripts that name this machine's interpreter, GPU code of other architectures
  local pattern library
  cd "$site" || return
  while read -r pattern; do
    # shellcheck disable=SC2086  # a pattern is to be expanded
    case $pattern in "" | "#"*) ;; *) rm -rf -- $pattern || return ;; esac
  done <"$here/unused.txt"
  find . -name __pycache__ -prune -exec rm -rf {} + || return
  find bin -type f ! -name py-spy -delete || return
  strip --strip-unneeded xgrammar/libxgrammar_bindings.so || return
  for library in vllm/_C_stable_libtorch.abi3.so flash_attn_2_cuda*.so; do
    [ ! -e "$library" ] || "$base" "$here/slim_fatbin.py" "$library" "$hopper" || return
  done
}

make_tokenizer() { # the Qwen vocabulary lies in the package dashscope
  local python=$work/tokenizer-env/bin/python
  "$uv" venv --quiet --python "$base" "$work/tokenizer-env" || return
  "$uv" pip install --python "$python" -c ci/locks/gpu.txt transformers tokenizers jinja2 || return
  "$uv" pip install --python "$python" --no-deps "$(grep ^dashscope== ci/locks/gpu.txt)" || return
  PYTHONPATH=$root/grpo_perf/engine/inside "$python" -c \
    'import sys, grpo_perf_assets as assets; assets.convert_qwen(assets.find_qwen_ranks(), sys.argv[1])' "$work/tokenizer"
}

run_phase "downloading $(wc -l <"$here/overlay.txt") packages" offline-overlay install_overlay || exit 3
if [ -z "$flash_attn" ]; then say "flash-attn: a stand-in (the real one: --flash-attn WHEEL)"; fi
run_phase "adding flash-attn" offline-flash-attn add_flash_attention || exit 3
run_phase "leaving out what a dense text model on a Hopper GPU does not use" offline-trim trim || exit 3
run_phase "making the Qwen tokenizer" offline-tokenizer make_tokenizer || exit 3
run_phase "compressing into parts of at most $part_mib MiB" offline-pack \
  "$base" "$here/pack.py" "$out" "$part_mib" "site=$site" "tokenizer=$work/tokenizer" || exit 3
cp "$here/install.sh" "$here/unpack.py" "$here/check_host.py" "$out/"
rm -rf "$work"
say "bundle in $out:"
du -sm "$out"/part* | awk '{ sub(".*/", "", $2); print "ci:   " $2 " " $1 " MiB" }'
