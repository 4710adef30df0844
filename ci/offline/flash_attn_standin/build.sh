#!/usr/bin/env bash
# Makes a stand-in for flash-attn, which the registry has as sources only: its own pure-Python parts (bert_padding, the
# Triton kernels) from its source archive, and flash_attn_interface.py beside this script for attention itself.
# Its version ends in "+standin" and its summary says so: both come up in a run's fingerprint.
#
#   build.sh PYTHON TARGET    PYTHON has pip; TARGET is a site-packages folder or an environment
set -euo pipefail

python=$1 target=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=$(cat "$here/version.txt")
if [ -x "$target/bin/python" ]; then
  target=$("$target/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# pip runs the archive's setup.py to learn its metadata, and that imports torch: an empty package of that name does
mkdir -p "$work/stub/torch/utils"
echo '__version__ = "2.11.0"' >"$work/stub/torch/__init__.py"
: >"$work/stub/torch/utils/__init__.py"
cat >"$work/stub/torch/utils/cpp_extension.py" <<'P'
BuildExtension = CppExtension = CUDAExtension = object
CUDA_HOME = ROCM_HOME = None
IS_HIP_EXTENSION = False
P
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet setuptools==80.9.0 wheel==0.45.1 packaging==25.0
FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE PYTHONPATH=$work/stub "$work/venv/bin/python" -m pip download --quiet --no-deps \
  --no-build-isolation --no-binary :all: "flash-attn==$version" -d "$work"

tar -xzf "$work/flash_attn-$version.tar.gz" -C "$work"
source=$work/flash_attn-$version
rm -rf "$target/flash_attn" "$target"/flash_attn-*.dist-info
mkdir -p "$target/flash_attn/ops"
cp "$source/flash_attn/bert_padding.py" "$here/flash_attn_interface.py" "$target/flash_attn/"
cp -r "$source/flash_attn/ops/triton" "$target/flash_attn/ops/"
: >"$target/flash_attn/ops/__init__.py"
cat >"$target/flash_attn/__init__.py" <<P
__version__ = "$version+standin"
from flash_attn.flash_attn_interface import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
P

info=$target/flash_attn-$version+standin.dist-info
mkdir -p "$info"
cp "$source/LICENSE" "$info/"
cat >"$info/METADATA" <<P
Metadata-Version: 2.1
Name: flash-attn
Version: $version+standin
Summary: stand-in backed by the flash kernels of PyTorch
P
echo flash_attn >"$info/top_level.txt"
printf 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n' >"$info/WHEEL"
printf 'flash_attn/__init__.py,,\nflash_attn/flash_attn_interface.py,,\nflash_attn/bert_padding.py,,\n' >"$info/RECORD"
