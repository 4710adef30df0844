import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_perf.record import read_samples
from grpo_perf.telemetry.nvml import NvmlError
from grpo_perf.telemetry.sampler import Options, parse_options, sample

from .fake_nvml import FakeGpu, FakeNvml


def options(path: Path, source: str) -> Options:
    return Options(run_dir=path, run_id="abc", root_pid=os.getpid(), period_s=0.1, source=source)


def wait_times(count: int, then: Callable[[int], None] = lambda _number: None) -> Callable[[float], bool]:
    """Ends after `count` sleeps of a hundredth of the period; `then` happens before each."""
    number = 0

    def wait(seconds: float) -> bool:
        nonlocal number
        number += 1
        then(number)
        time.sleep(seconds / 100)
        return number > count

    return wait


@pytest.fixture(autouse=True)
def _all_gpus_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_gpu_machine_gives_one_row_per_gpu_and_one_of_the_host(tmp_path: Path) -> None:
    summary = sample(options(tmp_path, "gpm"), wait_times(3), FakeNvml(FakeGpu(), FakeGpu()))
    samples = read_samples(tmp_path)
    assert samples["device"].to_pylist() == [0, 1, -1] * 3
    assert summary["num_rows"] == samples.num_rows == 9
    assert (summary["source"], summary["period_s"], summary["problem"]) == ("gpm", 0.1, None)
    assert samples["busy_fraction"].to_pylist()[2] is None
    host_busy = samples["host_busy_fraction"].to_pylist()
    assert host_busy[0] is None
    assert 0.0 <= host_busy[2] <= 1.0
    assert samples["memory_used_gib"].to_pylist()[:3] == [13.0, 13.0, None]  # the sampler itself is not of the run


def test_its_own_cost_is_in_every_row_and_in_the_summary(tmp_path: Path) -> None:
    summary = sample(options(tmp_path, "host"), wait_times(5))
    costs = read_samples(tmp_path)["sampler_cpu_s"].to_pylist()
    assert len(costs) == 5
    assert costs == sorted(costs)
    assert costs[0] > 0
    assert isinstance(summary["sampler_cpu_s"], float)
    assert summary["sampler_cpu_s"] >= costs[-1]
    assert isinstance(summary["sampler_wall_s"], float)
    assert 0.005 <= summary["sampler_wall_s"] < 60


def test_without_gpm_the_source_is_nvml_and_busy_is_null(tmp_path: Path) -> None:
    summary = sample(options(tmp_path, "nvml"), wait_times(2), FakeNvml(FakeGpu()))
    samples = read_samples(tmp_path)
    assert summary["source"] == "nvml"
    assert samples["busy_fraction"].null_count == samples.num_rows
    assert samples["nvml_utilization"].to_pylist()[0] == pytest.approx(0.13)


def test_a_gpu_lost_in_mid_run_ends_nothing_and_is_told(tmp_path: Path) -> None:
    nvml = FakeNvml(FakeGpu(), FakeGpu())

    def lose(number: int) -> None:
        if number == 3:
            nvml.gpus[1].broken = {"*": NvmlError("GPU is lost")}

    summary = sample(options(tmp_path, "gpm"), wait_times(6, lose), nvml)
    table = read_samples(tmp_path).to_pylist()
    assert [row["busy_fraction"] is None for row in table if row["device"] == 0] == [False] * 6
    assert [row["busy_fraction"] is None for row in table if row["device"] == 1] == [False] * 2 + [True] * 4
    assert str(summary["problem"]).startswith("GPU 1: GPU is lost (")


def test_a_driver_that_died_before_the_run_leaves_host_rows(tmp_path: Path) -> None:
    nvml = FakeNvml(open_error=NvmlError("Driver Not Loaded", "no_driver"))
    summary = sample(options(tmp_path, "gpm"), wait_times(2), nvml)
    assert summary["source"] == "host"
    assert summary["problem"] == "no GPU could be sampled: Driver Not Loaded. Look: nvidia-smi"
    assert read_samples(tmp_path)["device"].to_pylist() == [-1, -1]


def test_a_full_disk_ends_it_with_the_problem(tmp_path: Path) -> None:
    (tmp_path / "samples.arrow").symlink_to("/dev/full")
    summary = sample(options(tmp_path, "host"), wait_times(3))
    path = tmp_path / "samples.arrow"
    assert summary["problem"] == f"{path} cannot be written: No space left on device. Look: df -h {tmp_path}"
    assert summary["num_rows"] == 0


def test_rows_reach_the_disk_within_a_second(tmp_path: Path) -> None:
    ages_s: list[float] = []
    end_s = time.monotonic() + 2.5

    def wait(seconds: float) -> bool:
        time.sleep(seconds)
        samples = read_samples(tmp_path)
        if samples.num_rows:
            ages_s.append((time.monotonic_ns() - samples["t1_ns"][-1].as_py()) / 1e9)
        return time.monotonic() > end_s

    sample(options(tmp_path, "host"), wait)
    assert ages_s
    assert max(ages_s) < 1.2


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--run-dir=r", "--run-id=abc", "--root-pid=7", "--period-s=0.2", "--source=gpm"]
    assert parse_options(arguments) == Options(run_dir=Path("r"), run_id="abc", root_pid=7, period_s=0.2, source="gpm")
    with pytest.raises(SystemExit):
        parse_options([*arguments[:-1], "--source=dcgm"])
    assert "choose from" in capsys.readouterr().err
