import os
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_perf.telemetry.processes import RunProcesses, read_bytes, read_stat

from .fake_proc import FakeProc

SECOND = 1_000_000_000
OWN = 50


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    """init 1, the root 10, its child 11 and grandchild 12, a stranger 20, the sampler 50 (also a child of 10)."""
    fake = FakeProc(tmp_path)
    fake.start(10, parent=1)
    fake.start(12, parent=11)
    fake.start(11, parent=10)
    fake.start(20, parent=1, environ="HOME=/\0GRPO_PERF_RUN_ID=other\0")
    fake.start(OWN, parent=10)
    return fake


def processes(proc: FakeProc) -> RunProcesses:
    return RunProcesses(run_id="abc", root_pid=10, proc=str(proc), own_pid=OWN)


def test_descendants_of_the_root_are_found_but_not_the_sampler(proc: FakeProc) -> None:
    run = processes(proc)
    found = run.refresh(0)
    assert [tuple(process) for process in found] == [(10, False), (11, False), (12, False)]
    assert run.pids == {10, 11, 12}


def test_what_starts_later_is_newborn(proc: FakeProc) -> None:
    run = processes(proc)
    run.refresh(0)
    proc.start(13, parent=12)
    proc.start(21, parent=20)
    assert [tuple(process) for process in run.refresh(SECOND)] == [(13, True)]


def test_nothing_is_listed_while_nothing_starts(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    run = processes(proc)
    run.refresh(0)
    run.refresh(SECOND)  # lists once more after the environments were read
    monkeypatch.setattr(os, "listdir", lambda _path: pytest.fail("listed /proc though no process was started"))
    assert run.refresh(SECOND + SECOND // 2) == []


def test_an_orphan_is_found_by_the_run_id_in_its_environment(proc: FakeProc) -> None:
    run = processes(proc)
    run.refresh(0)
    proc.start(30, parent=1, environ="A=b\0GRPO_PERF_RUN_ID=abc\0C=d\0")
    proc.start(31, parent=30)  # its child cleaned its environment
    proc.start(32, parent=1, environ="GRPO_PERF_RUN_ID=abcd\0")
    assert run.refresh(SECOND) == []  # its parent says nothing, and environments are read every 2 s
    assert [tuple(process) for process in run.refresh(3 * SECOND)] == [(30, False), (31, False)]
    assert 32 not in run.pids


def test_a_pid_that_was_forgotten_can_join_again(proc: FakeProc) -> None:
    run = processes(proc)
    run.refresh(0)
    proc.end(12)
    run.forget(12)
    assert run.pids == {10, 11}
    proc.start(12, parent=10)
    assert [tuple(process) for process in run.refresh(SECOND)] == [(12, True)]


def test_ownership_of_a_pid_that_nvml_names(proc: FakeProc) -> None:
    run = processes(proc)
    run.refresh(0)
    proc.start(14, parent=12)  # not looked for yet
    proc.start(33, parent=1, environ="GRPO_PERF_RUN_ID=abc\0")
    assert [run.owns(pid) for pid in (11, OWN, 14, 33)] == [True, True, True, True]
    assert run.owns(20) is False
    assert run.owns(0) is None
    assert run.owns(4_000_000) is None  # names nobody in this namespace


def test_the_real_proc_knows_a_child_and_its_mark() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        stat = read_stat("/proc", child.pid)
        assert stat is not None
        assert stat.parent == os.getpid()
        run = RunProcesses(run_id="abc", root_pid=os.getpid(), own_pid=-1)
        run.refresh(0)
        assert child.pid in run.pids
        child.communicate(b"\n")
    assert read_stat("/proc", child.pid) is None


def test_long_files_are_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "environ"
    file.write_bytes(b"x" * 8192 + b"yz")
    assert read_bytes(str(file)) == b"x" * 8192 + b"yz"
    assert read_bytes(str(tmp_path / "none")) is None
