"""Stacks of every Python process of a hung run, by py-spy, before it is ended."""

import shutil
import subprocess
import sys
from pathlib import Path

from grpo_perf.engine.supervisor import carriers, descendants

PER_PROCESS_S = 10.0


def dump_stacks(supervisor_pid: int, run_id: str, target: Path) -> None:
    """Write the stacks of the run's processes to `target`; what could not be read is said in the file itself."""
    spy = shutil.which("py-spy") or str(Path(sys.executable).with_name("py-spy"))
    pids = sorted(descendants(supervisor_pid) | carriers(run_id, skip={supervisor_pid}))
    with target.open("w") as file:
        for pid in pids:
            file.write(f"== process {pid}: {_command_of(pid)}\n{_dump(spy, pid)}\n")
            file.flush()


def _dump(spy: str, pid: int) -> str:
    try:
        done = subprocess.run(
            [spy, "dump", "--pid", str(pid)], capture_output=True, text=True, timeout=PER_PROCESS_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"py-spy failed: {error}"
    return done.stdout if done.returncode == 0 else f"py-spy failed: {done.stderr.strip()[:300]}"


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    except OSError:
        return "(ended)"
