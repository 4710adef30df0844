"""The sampler as a real process beside a real busy child."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grpo_perf.errors import PerfError, UsageError
from grpo_perf.record import read_samples
from grpo_perf.telemetry.hardware import CPU_ONLY
from grpo_perf.telemetry.host import count_usable_cores
from grpo_perf.telemetry.process import SamplerProcess, start_sampler


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come true in time"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@pytest.fixture
def busy_child() -> Iterator[subprocess.Popen[bytes]]:
    """One core's worth of work that carries the run's id; the sampler has to find it by that."""
    environment = os.environ | {"GRPO_PERF_RUN_ID": "run-1"}
    with subprocess.Popen([sys.executable, "-c", "while True: pass"], env=environment) as child:
        yield child
        child.kill()


def start(path: Path, root_pid: int) -> SamplerProcess:
    return start_sampler(path, run_id="run-1", root_pid=root_pid, hardware=CPU_ONLY)


@pytest.fixture
def sampler(tmp_path: Path) -> Iterator[SamplerProcess]:
    """Beside a run whose root is this process; rows are on the disk already."""
    process = start(tmp_path, os.getpid())
    wait_until(lambda: read_samples(tmp_path).num_rows > 0)
    yield process
    process.stop()


def test_a_busy_child_is_measured_and_stop_is_idempotent(tmp_path: Path, busy_child: subprocess.Popen[bytes]) -> None:
    sampler = start(tmp_path, 2**22 + 1)  # no such root: only the id in the environment names the run
    wait_until(lambda: read_samples(tmp_path).num_rows >= 20)
    result = sampler.stop()
    samples = read_samples(tmp_path)
    assert set(result) == {"source", "period_s", "num_rows", "sampler_cpu_s", "sampler_wall_s", "problem"}
    assert (result["source"], result["period_s"], result["problem"]) == ("host", 0.1, None)
    assert result["num_rows"] == samples.num_rows
    assert sampler.stop() == result
    assert not is_alive(sampler.pid)

    starts, ends = samples["t0_ns"].to_pylist(), samples["t1_ns"].to_pylist()
    assert starts[1:] == ends[:-1]
    assert min(end - start for start, end in zip(starts, ends, strict=True)) >= 100_000_000  # GPM's least interval
    busy = samples["host_busy_fraction"].to_pylist()
    # One core, or what other work on this machine leaves of it. The first row may precede the look at environments.
    assert 0.2 / count_usable_cores() < sum(busy[1:]) / len(busy[1:]) < 1.3 / count_usable_cores()
    assert 0.001 < samples["memory_used_gib"].to_pylist()[-1] < 1.0
    assert busy_child.poll() is None


def test_kill_9_of_the_sampler_keeps_its_rows_and_is_told(tmp_path: Path, sampler: SamplerProcess) -> None:
    os.kill(sampler.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(sampler.pid))
    result = sampler.stop()
    assert result["problem"] == "the sampler ended before the run, with exit code -9: it said nothing"
    assert result["num_rows"] == read_samples(tmp_path).num_rows > 0
    assert result["sampler_cpu_s"] == read_samples(tmp_path)["sampler_cpu_s"][-1].as_py()


def test_it_ends_when_its_owner_dies(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from grpo_perf.telemetry import start_sampler; from grpo_perf.telemetry.hardware import CPU_ONLY\n"
        "sampler = start_sampler(Path(sys.argv[1]), run_id='r', root_pid=os.getpid(), hardware=CPU_ONLY)\n"
        "print(sampler.pid, flush=True); input(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    owner = [sys.executable, "-c", code, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(owner, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        wait_until(lambda: read_samples(tmp_path).num_rows > 0)
        process.communicate(b"\n")
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: not is_alive(pid))
    wait_until((tmp_path / "sampler.json").exists)


def test_a_disk_that_fills_up_ends_it_and_hurts_nobody(tmp_path: Path, sampler: SamplerProcess) -> None:
    size = (tmp_path / "samples.arrow").stat().st_size
    num_rows = read_samples(tmp_path).num_rows
    resource.prlimit(sampler.pid, resource.RLIMIT_FSIZE, (size + 100, size + 100))
    wait_until(lambda: not is_alive(sampler.pid))
    result = sampler.stop()
    assert "samples.arrow cannot be written: File too large. Look: df -h" in str(result["problem"])
    assert result["num_rows"] == read_samples(tmp_path).num_rows == num_rows


def test_a_folder_that_is_gone_is_told_by_its_stderr(tmp_path: Path) -> None:
    sampler = start(tmp_path / "gone", os.getpid())
    wait_until(lambda: not is_alive(sampler.pid))
    result = sampler.stop()
    assert result["num_rows"] == 0
    assert "No such file or directory" in str(result["problem"])


def test_a_sampler_that_does_not_answer_is_killed_in_time(tmp_path: Path, sampler: SamplerProcess) -> None:
    os.kill(sampler.pid, signal.SIGSTOP)
    begun_s = time.monotonic()
    result = sampler.stop(timeout_s=0.3)
    assert time.monotonic() - begun_s < 5
    assert result["problem"] == "the sampler did not end in time after SIGTERM and was killed"
    assert not is_alive(sampler.pid)
    assert result["num_rows"] == read_samples(tmp_path).num_rows


def test_a_run_shorter_than_the_sampler_s_start_is_told(tmp_path: Path) -> None:
    result = start(tmp_path, os.getpid()).stop()
    assert (result["num_rows"], result["problem"]) == (0, "the run ended before the sampler had started")


def test_a_ctrl_c_of_the_terminal_does_not_end_it(sampler: SamplerProcess) -> None:
    os.kill(sampler.pid, signal.SIGINT)
    time.sleep(0.3)
    assert is_alive(sampler.pid)
    assert os.getsid(sampler.pid) != os.getsid(0)


def test_too_short_a_period_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"period of 0\.05 s is too short: GPM needs 0\.1 s or more"):
        start_sampler(tmp_path, run_id="r", root_pid=1, hardware=CPU_ONLY, period_s=0.05)


def test_a_missing_interpreter_is_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(PerfError, match=r"The sampler cannot be started: .*No such file"):
        start(tmp_path, 1)
