import os
from pathlib import Path

import pytest

from grpo_perf.telemetry.host import HostMeter, MemoryMeter, count_usable_cores
from grpo_perf.telemetry.processes import RunProcesses

from .fake_proc import FakeProc

SECOND = 1_000_000_000
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    fake = FakeProc(tmp_path)
    fake.start(10, parent=1, ticks=1000)
    return fake


@pytest.fixture
def host(proc: FakeProc) -> HostMeter:
    run = RunProcesses(run_id="abc", root_pid=10, proc=str(proc), own_pid=50)
    meter = HostMeter(run, num_cores=4.0, proc=str(proc))
    assert meter.poll(SECOND) is None
    return meter


def busy(host: HostMeter, now_ns: int) -> float:
    reading = host.poll(now_ns)
    assert reading is not None
    assert reading.t1_ns == now_ns
    return reading.busy_fraction


def test_busy_is_cpu_time_over_all_cores(proc: FakeProc, host: HostMeter) -> None:
    proc.run(10, parent=1, ticks=1000 + TICKS)  # one second of CPU in one second of four cores
    assert busy(host, 2 * SECOND) == pytest.approx(0.25)
    assert busy(host, 3 * SECOND) == 0.0


def test_busy_is_capped_at_one(proc: FakeProc, host: HostMeter) -> None:
    proc.run(10, parent=1, ticks=1000 + 5 * TICKS)
    assert busy(host, 2 * SECOND) == 1.0


def test_a_newborn_counts_from_its_start_and_an_orphan_from_its_discovery(proc: FakeProc, host: HostMeter) -> None:
    proc.start(11, parent=10, ticks=TICKS)
    proc.start(12, parent=1, ticks=50 * TICKS, environ="GRPO_PERF_RUN_ID=abc\0")
    assert busy(host, 2 * SECOND) == pytest.approx(0.25)
    assert busy(host, 4 * SECOND) == 0.0  # the orphan is found here
    proc.run(12, parent=1, ticks=52 * TICKS)
    assert busy(host, 5 * SECOND) == pytest.approx(0.5)


def test_a_process_that_ends_is_dropped(proc: FakeProc, host: HostMeter) -> None:
    proc.start(11, parent=10, ticks=0)
    assert busy(host, 2 * SECOND) == 0.0
    proc.end(11)
    proc.run(10, parent=1, ticks=1000 + TICKS)
    assert busy(host, 3 * SECOND) == pytest.approx(0.25)


def test_a_pid_given_to_another_process_is_not_counted_on(proc: FakeProc, host: HostMeter) -> None:
    proc.run(10, parent=1, ticks=9000, started=77)
    assert busy(host, 2 * SECOND) == 0.0


def test_shared_memory_is_counted_by_share(proc: FakeProc) -> None:
    proc.start(11, parent=10)
    # 10: 1000 resident, 600 of them shared by both: 400 + 300. 11: 800 resident, 600 shared: 200 + 300.
    proc.set_memory(10, resident=1000, shared=600, pss_kib=700 * PAGE // 1024)
    proc.set_memory(11, resident=800, shared=600, pss_kib=500 * PAGE // 1024)
    memory = MemoryMeter(str(proc))
    assert memory.poll([10, 11], SECOND) == 1200 * PAGE


def test_without_pss_shared_pages_are_left_out(proc: FakeProc) -> None:
    proc.set_memory(10, resident=1000, shared=600)
    assert MemoryMeter(str(proc)).poll([10], SECOND) == 400 * PAGE


def test_memory_is_read_once_a_second_and_shares_every_ten(proc: FakeProc) -> None:
    proc.set_memory(10, resident=1000, shared=600, pss_kib=700 * PAGE // 1024)
    memory = MemoryMeter(str(proc))
    assert memory.poll([10], SECOND) == 700 * PAGE
    proc.set_memory(10, resident=1100, shared=600, pss_kib=500 * PAGE // 1024)
    assert memory.poll([10], SECOND * 3 // 2) == 700 * PAGE
    assert memory.poll([10], 2 * SECOND) == 800 * PAGE  # 500 private, the old share of 300
    assert memory.poll([10], 12 * SECOND) == 500 * PAGE


def test_no_process_has_no_memory(proc: FakeProc) -> None:
    assert MemoryMeter(str(proc)).poll([], SECOND) is None


@pytest.mark.parametrize(
    ("text", "expected"), [("50000 100000\n", 0.5), ("max 100000\n", None), (None, None), ("9900000 100000\n", None)]
)
def test_a_container_quota_limits_the_cores(tmp_path: Path, text: str | None, expected: float | None) -> None:
    file = tmp_path / "cpu.max"
    if text is not None:
        file.write_text(text)
    num_cores = len(os.sched_getaffinity(0))
    assert count_usable_cores(file) == (expected if expected is not None else num_cores)
