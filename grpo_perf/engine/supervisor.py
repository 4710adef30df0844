"""Owns every process of one run, and ends them all when we are gone. Standard library only; run as a script.

    pytest/grpo-perf --pipe--> supervisor (child subreaper) --> python -m verl.trainer.main_ppo --> Ray, vLLM, ...

The pipe is the supervisor's standard input: end of file means that whoever started the run is done or dead, by
kill -9 too. Orphans of the run become the supervisor's children; processes that hide elsewhere are found by
GRPO_PERF_RUN_ID in their environment. /dev/shm segments are removed only if a process of the run had them mapped and
nobody has them mapped any more. `ray stop` is never called: it would end other people's clusters.
"""

import argparse
import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

RUN_ID_ENV = "GRPO_PERF_RUN_ID"
SHM = Path("/dev/shm")
SCAN_PERIOD_S = 1.0
TERM_GRACE_S = 3.0
KILL_LIMIT_S = 30.0
SEGMENT_TRIES = 3
_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36


def main(argv: list[str] | None = None) -> int:
    """Run the command until it ends, the pipe closes or a signal comes; return the command's exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True, help="removed when the run has ended")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(argv)
    return Supervisor(options.run_id, options.run_dir, options.scratch).run(options.command)


class Supervisor:
    """One run's processes and shared memory."""

    def __init__(self, run_id: str, run_dir: Path, scratch: Path) -> None:
        self.run_id = run_id
        self.run_dir = run_dir
        self.scratch = scratch
        self.segments: set[str] = set()
        self.tries_left: dict[str, int] = {}
        self.stopping = False
        self.orphaned = False
        """The pipe closed without the line that asks us to end: whoever started the run was killed."""

    def run(self, command: list[str]) -> int:
        """Start the command, watch it, clean up, and leave supervisor.json behind."""
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        with (self.run_dir / "log.txt").open("ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        code = self._watch(child)
        self.segments |= mapped_segments(self.processes())
        num_killed = self.end_all(child)
        removed = remove_segments(self.segments)
        shutil.rmtree(self.scratch, ignore_errors=True)
        if self.orphaned:
            mark_partial(self.run_dir / "run.json")
        self._report(code, num_killed, removed)
        return 1 if code is None else code

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _watch(self, child: subprocess.Popen[bytes]) -> int | None:
        """The exit code, or None if the run was told to end before the command did."""
        while not self.stopping:
            readable, _, _ = select.select([sys.stdin], [], [], SCAN_PERIOD_S)
            if readable:
                self.orphaned = not os.read(sys.stdin.fileno(), 4096)
                self._note_end()
                return None
            code = child.poll()
            if code is not None:
                return code
            _reap(except_pid=child.pid)
            self._claim_segments()
        return None

    def _note_end(self) -> None:
        """Say in the log who ends the run: what Ray prints about SIGTERM afterwards is no crash."""
        why = "whoever started this run was killed" if self.orphaned else "the run is over for grpo-perf"
        with (self.run_dir / "log.txt").open("a") as log:
            log.write(f"\n== {why}: ending its processes; what follows is their reaction ==\n")

    def _claim_segments(self) -> None:
        """Note which new /dev/shm segments are ours. Reading maps is dear, so only new names are looked for."""
        present = set(os.listdir(SHM))
        for name in present - self.tries_left.keys():
            self.tries_left[name] = SEGMENT_TRIES
        wanted = {name for name in present - self.segments if self.tries_left[name] > 0}
        if wanted:
            self.segments |= mapped_segments(descendants(os.getpid()))
            for name in wanted:
                self.tries_left[name] -= 1

    def processes(self) -> set[int]:
        """Pids of the run: our descendants, and whoever carries the run's id in the environment."""
        return descendants(os.getpid()) | carriers(self.run_id, skip={os.getpid()})

    def end_all(self, child: subprocess.Popen[bytes]) -> int:
        """SIGTERM, a grace period, then SIGKILL until nothing is left; returns how many had to be signalled."""
        signalled: set[int] = set()
        start = time.monotonic()
        while time.monotonic() - start < KILL_LIMIT_S:  # a process in uninterruptible sleep cannot be ended
            child.poll()
            _reap(except_pid=child.pid)
            alive = self.processes()
            if not alive:
                break
            late = time.monotonic() - start > TERM_GRACE_S
            for pid in alive if late else alive - signalled:
                signalled.add(pid)
                _kill(pid, signal.SIGKILL if late else signal.SIGTERM)
            time.sleep(0.05)
        return len(signalled)

    def _report(self, code: int | None, num_killed: int, removed: list[str]) -> None:
        report = {
            "exit_code": code,
            "ended_ns": time.monotonic_ns(),
            "num_killed": num_killed,
            "shm_removed": removed,
        }
        scratch = self.run_dir / ".supervisor.json"
        try:
            scratch.write_text(json.dumps(report) + "\n")
            scratch.replace(self.run_dir / "supervisor.json")
        except OSError as error:  # a full disk must not keep processes alive
            print(f"grpo-perf supervisor: {error}", file=sys.stderr)


def mark_partial(path: Path) -> None:
    """Say in run.json that the run was cut off; nobody else is left to do it."""
    try:
        meta = json.loads(path.read_bytes())
        if meta.get("status") == "running":
            meta.update(status="partial", reason="grpo-perf was killed in mid-run")
            scratch = path.with_name(".run.json.partial")
            scratch.write_text(json.dumps(meta, indent=1, sort_keys=True) + "\n")
            scratch.replace(path)
    except (OSError, ValueError) as error:
        print(f"grpo-perf supervisor: cannot mark {path} as partial: {error}", file=sys.stderr)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError as error:
        print(f"grpo-perf supervisor: cannot end process {pid}: {error}", file=sys.stderr)


def _reap(except_pid: int | None = None) -> None:
    """Collect orphans that ended; the command itself is left to its Popen object."""
    for pid in descendants(os.getpid()):
        if pid != except_pid and _stat(pid)[:1] == ["Z"]:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _stat(pid: int) -> list[str]:
    """State, parent and the further fields of /proc/<pid>/stat; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def descendants(root: int) -> set[int]:
    """Pids below `root` that have not ended (zombies of others do not count; ours are reaped)."""
    children: dict[int, list[int]] = {}
    zombies = set()
    for pid in _pids():
        fields = _stat(pid)
        if fields:
            children.setdefault(int(fields[1]), []).append(pid)
            if fields[0] == "Z" and int(fields[1]) != root:
                zombies.add(pid)
    found: set[int] = set()
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found.update(below)
        todo += below
    return found - zombies


def carriers(run_id: str, skip: set[int]) -> set[int]:
    """Pids whose environment names the run."""
    wanted = f"{RUN_ID_ENV}={run_id}".encode()
    found = set()
    for pid in _pids():
        if pid in skip:
            continue
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if wanted in environment.split(b"\0"):
            found.add(pid)
    return found


def mapped_segments(pids: set[int]) -> set[str]:
    """Names under /dev/shm that any of the processes has mapped.

    Joined by inode: glibc's sem_open maps a semaphore under a passing name and links it to its own afterwards.
    """
    inodes: set[int] = set()
    for pid in pids:
        try:
            maps = Path(f"/proc/{pid}/maps").read_text()
        except OSError:
            continue
        inodes.update(int(line.split(maxsplit=5)[4]) for line in maps.splitlines() if "/dev/shm/" in line)
    return {entry.name for entry in os.scandir(SHM) if entry.inode() in inodes} if inodes else set()


def remove_segments(names: set[str]) -> list[str]:
    """Unlink the segments that nobody has mapped any more; returns those removed."""
    left = {name for name in names if (SHM / name).is_file()}
    left -= mapped_segments(set(_pids())) if left else set()
    removed = []
    for name in sorted(left):
        try:
            (SHM / name).unlink()
        except OSError:
            continue
        removed.append(name)
    return removed


if __name__ == "__main__":
    sys.exit(main())
