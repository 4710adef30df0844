"""The supervisor ends every process of a run, however we died, and takes only its own shared memory away."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_perf.engine import supervisor

LIMIT_S = 20.0

FAMILY = """
import mmap, os, subprocess, sys, time
name, out = sys.argv[1], sys.argv[2]
fd = os.open("/dev/shm/" + name, os.O_CREAT | os.O_RDWR, 0o600)
os.ftruncate(fd, 4096)
held = mmap.mmap(fd, 4096)
hidden = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
stubborn = subprocess.Popen(
    [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"],
    start_new_session=True,
)
print(os.getpid(), hidden.pid, stubborn.pid, file=open(out + ".new", "w"), flush=True)
os.rename(out + ".new", out)
time.sleep(300)
"""


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {LIMIT_S} s"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Run:
    """A supervised family of processes, one of which ignores SIGTERM."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.segment = f"grpo_perf_test_{os.getpid()}_{folder.name}"
        (folder / "scratch").mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"status": "running"}))
        run_id = f"test-{os.getpid()}-{folder.name}"
        command = [sys.executable, "-P", supervisor.__file__, "--run-id", run_id, "--run-dir", str(folder)]
        command += ["--scratch", str(folder / "scratch"), "--", sys.executable, "-c", FAMILY]
        command += [self.segment, str(folder / "pids")]
        environment = {**os.environ, supervisor.RUN_ID_ENV: run_id}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
        wait_for((folder / "pids").exists, "start of the family")
        self.pids = [int(pid) for pid in (folder / "pids").read_text().split()]
        time.sleep(1.5 * supervisor.SCAN_PERIOD_S)  # the segment is seen by the periodic scan

    def expect_gone(self) -> None:
        assert self.process.wait(LIMIT_S) is not None
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert [pid for pid in self.pids if is_alive(pid)] == []
        assert not (supervisor.SHM / self.segment).exists()
        assert not (self.folder / "scratch").exists()

    def report(self) -> dict[str, object]:
        loaded: dict[str, object] = json.loads((self.folder / "supervisor.json").read_text())
        return loaded


def test_closed_pipe_ends_everything_and_marks_the_record_partial(tmp_path: Path) -> None:
    run = Run(tmp_path / "eof")
    assert run.process.stdin is not None
    run.process.stdin.close()
    run.expect_gone()
    assert run.report()["shm_removed"] == [run.segment]
    assert json.loads((run.folder / "run.json").read_text())["status"] == "partial"


def test_asked_to_end_leaves_the_record_to_the_asker(tmp_path: Path) -> None:
    run = Run(tmp_path / "asked")
    assert run.process.stdin is not None
    run.process.stdin.write(b"end\n")
    run.process.stdin.close()
    run.expect_gone()
    assert json.loads((run.folder / "run.json").read_text())["status"] == "running"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_everything(tmp_path: Path, number: signal.Signals) -> None:
    run = Run(tmp_path / f"signal{number}")
    run.process.send_signal(number)
    run.expect_gone()


def test_segment_of_others_stays(tmp_path: Path) -> None:
    foreign = supervisor.SHM / f"grpo_perf_test_foreign_{os.getpid()}"
    foreign.write_bytes(b"x")
    try:
        run = Run(tmp_path / "foreign")
        run.process.send_signal(signal.SIGTERM)
        run.expect_gone()
        assert foreign.exists()
    finally:
        foreign.unlink()


def test_exit_code_of_the_command_is_reported(tmp_path: Path) -> None:
    command = [sys.executable, "-P", supervisor.__file__, "--run-id", "none", "--run-dir", str(tmp_path)]
    command += [
        "--scratch",
        str(tmp_path / "scratch"),
        "--",
        sys.executable,
        "-c",
        "print('hello'); raise SystemExit(7)",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.wait(LIMIT_S) == 7
    assert json.loads((tmp_path / "supervisor.json").read_text())["exit_code"] == 7
    assert (tmp_path / "log.txt").read_text() == "hello\n"
