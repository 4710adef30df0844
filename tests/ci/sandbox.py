"""A copy of ci/ with fake interpreters and a fake uv: nothing is installed, every call is written down."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SEPARATOR = "\x1f"

FAKE = r"""#!/usr/bin/env bash
# Stands for python, uv, ruff and mypy. Real work (scripts of ci/) is handed to the real interpreter.
set -eu
me=$0 name=${0##*/} bin=${0%/*}
folder=${bin%/bin}
call=$(printf '%s\037' "${folder##*/}/$name" "$@")
printf '%s\n' "$call" >>"$FAKE_LOG" # in one piece: two fakes may be at it

copy_to() { mkdir -p "${1%/*}" && cp "$me" "$1"; }

install() { # FOLDER ARGUMENT...
  local folder=$1 wanted="$*"
  if [[ $wanted == *${FAKE_FAIL:-nothing fails}* ]]; then
    echo "No matching distribution found for $FAKE_FAIL"
    exit 1
  fi
  if [[ $wanted == *dev.txt* ]]; then copy_to "$folder/bin/ruff" && copy_to "$folder/bin/mypy"; fi
  if [[ $wanted == *--target*uv.txt* ]]; then copy_to "$8/bin/uv"; fi
  if [ -n "${FAKE_INSTALL_S:-}" ]; then exec sleep "$FAKE_INSTALL_S"; fi
}

case "$name $*" in
  ruff* | mypy*) ;;
  "uv venv"*) copy_to "${!#}/bin/python" ;;
  uv*--dry-run*)
    echo " + torch==${FAKE_TORCH:-2.13.0+cpu}"
    [[ $* != *--torch-backend* ]]
    ;;
  uv*) install "${4%/bin/python}" "$@" ;;
  *"-m venv "*) copy_to "${!#}/bin/python" ;;
  *"-m pip install "* | *"-m pip --python "*) install "$folder" "$@" ;;
  *"-m pip --version") ;;
  *"-m pip config "*) echo "global.find-links='/some/wheels'" ;;
  *"-m pytest"*)
    { printf 'PYTEST'; printf '\037%s' "${@:3}"; echo; }
    echo "TEST_PYTHON ${GRPO_PERF_TEST_PYTHON:-}"
    trap 'echo PYTEST INTERRUPTED; exit 2' INT
    if [ -n "${FAKE_PYTEST_S:-}" ]; then sleep "$FAKE_PYTEST_S"; fi
    exit "${FAKE_PYTEST_EXIT:-0}"
    ;;
  *" -V") echo "Python 3.11.7" ;;
  *ensurepip*) exit "${FAKE_TOO_OLD:-0}" ;;
  *'version("torch")'*) echo "${FAKE_TORCH:-2.13.0+cpu}" ;;
  *check_env.py* | *warm_imports.py*) ;;
  *) exec "$REAL_PYTHON" "$@" ;;
esac
"""

_TOOLS = (
    *("awk", "basename", "bash", "cat", "cp", "df", "dirname", "env", "flock", "grep", "ls"),
    *("mkdir", "rm", "sed", "sha256sum", "sleep", "tail", "uname", "wc"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """The copy, and how to run its scripts."""

    root: Path
    env: dict[str, str]

    def run(self, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run `bash COMMAND` from the sandbox's parent folder."""
        return subprocess.run(
            ["bash", *command],
            cwd=self.root.parent,
            env=self.env | env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def perf(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run ci/perf.sh."""
        return self.run(str(self.root / "ci" / "perf.sh"), *args, **env)

    def call(self, script: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run shell text with ci/lib.sh loaded."""
        return self.run("-c", f"set -euo pipefail; root='{self.root}'; . \"$root/ci/lib.sh\"; {script}", **env)

    def calls(self) -> list[list[str]]:
        """What the fakes were called with, oldest first: [environment/name, argument...]."""
        log = Path(self.env["FAKE_LOG"])
        return [line.split(SEPARATOR)[:-1] for line in log.read_text().split("\n")[:-1]] if log.exists() else []

    def installed(self) -> list[str]:
        """What was installed: the last argument of each installation."""
        calls = [call for call in self.calls() if "install" in call and "--dry-run" not in call]
        return [Path(call[-1]).name for call in calls]

    def forget(self) -> None:
        """Empty the log of calls."""
        Path(self.env["FAKE_LOG"]).unlink(missing_ok=True)


def make_sandbox(folder: Path) -> Sandbox:
    """A sandbox in a fresh folder, for a CPU-only machine whose only interpreter is the fake python3.11."""
    root = folder / "a checkout"  # a blank in the path must not matter
    shutil.copytree(ROOT / "ci", root / "ci", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / ".ci", root / ".ci")
    shutil.copy(ROOT / "pyproject.toml", root)
    tools = folder / "path" / "bin"
    tools.mkdir(parents=True)
    write_fake(tools / "python3.11")
    cpuinfo = folder / "cpuinfo"
    cpuinfo.write_text("flags : fpu avx avx2\n")
    env = {
        "PATH": f"{tools}{os.pathsep}{folder / 'system'}",
        "HOME": str(folder),
        "FAKE_LOG": str(folder / "calls"),
        "REAL_PYTHON": sys.executable,
        "PERF_DEVICE": "cpu",
        "PERF_CPUINFO": str(cpuinfo),
    }
    _link_system_tools(folder / "system")
    return Sandbox(root=root, env=env)


def write_fake(path: Path) -> None:
    """The fake interpreter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(FAKE)
    path.chmod(0o755)


def write_verl_environment(folder: Path, version: str = "0.9.2.dev0") -> Path:
    """A real environment with a verl that must not be imported. Returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    package = site / "verl"
    (package / "version").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('verl was imported')\n")
    (package / "version" / "version").write_text(f"{version}\n")
    return folder / "bin" / "python"


def _link_system_tools(folder: Path) -> None:
    """Only the tools that the scripts may rely on: no interpreter, no nvidia-smi of the machine under the tests."""
    folder.mkdir()
    for name in _TOOLS:
        found = shutil.which(name)
        if found:
            (folder / name).symlink_to(found)
