import math

import pytest

from grpo_perf.telemetry.gpus import GpuMeter
from grpo_perf.telemetry.nvml import NvmlError

from .fake_nvml import FakeGpu, FakeNvml, count_up

LOST = NvmlError("GPU is lost")


def meter(nvml: FakeNvml, *, use_gpm: bool = True, step_ns: int = 10, **owners: bool | None) -> GpuMeter:
    """Owners: p<pid>=verdict."""

    def owns(pid: int) -> bool | None:
        return owners.get(f"p{pid}")

    indices = list(range(len(nvml.gpus)))
    return GpuMeter(nvml, indices, use_gpm=use_gpm, owns=owns, clock_ns=count_up(step_ns))


def test_two_gpus_give_two_rows_in_si_units() -> None:
    gpus = meter(FakeNvml(FakeGpu(), FakeGpu(utilization_percent=100.0)))
    assert gpus.poll() == []
    first, second = gpus.poll()
    assert (first["device"], second["device"]) == (0, 1)
    assert first["busy_fraction"] == pytest.approx(0.53846)
    assert first["sm_active_fraction"] == pytest.approx(0.51625)
    assert first["tensor_active_fraction"] == pytest.approx(0.01461)
    assert first["dram_active_fraction"] == pytest.approx(0.40783)
    assert first["pcie_tx_bytes_per_s"] == 7 * 1024 * 1024  # MiB/s
    assert first["pcie_rx_bytes_per_s"] == 24 * 1024 * 1024
    assert (first["nvml_utilization"], second["nvml_utilization"]) == (0.13, 1.0)
    assert (first["memory_used_gib"], first["power_w"], first["sm_clock_mhz"]) == (13.0, 149.848, 1980.0)
    assert (first["temperature_c"], first["throttle_reasons"], first["num_foreign_processes"]) == (31.0, 4, 0)
    assert gpus.problem is None


def test_rows_join_without_gap_and_compare_the_last_two_samples() -> None:
    nvml = FakeNvml(FakeGpu())
    gpus = meter(nvml)
    gpus.poll()  # looks at the clock at 10 and 20: stamp 15
    (one,) = gpus.poll()  # 30 and 40: stamp 35; 50 for the processes
    (two,) = gpus.poll()  # 60 and 70: stamp 65
    assert (one["t0_ns"], one["t1_ns"]) == (15, 35)
    assert (two["t0_ns"], two["t1_ns"]) == (35, 65)
    assert nvml.compared == [(1, 0), (0, 1)]


def test_gpm_nan_and_missing_metrics_are_null() -> None:
    gpus = meter(FakeNvml(FakeGpu(gpm=[0.0, 0.0, None, math.nan, 1.0, math.inf])))
    gpus.poll()
    (row,) = gpus.poll()
    assert row["busy_fraction"] == 0.0  # measured idle is a number
    assert row["tensor_active_fraction"] is None
    assert row["dram_active_fraction"] is None
    assert row["pcie_rx_bytes_per_s"] is None


def test_without_gpm_busy_is_null_and_nvml_goes_on() -> None:
    nvml = FakeNvml(FakeGpu())
    gpus = meter(nvml, use_gpm=False)
    gpus.poll()
    (row,) = gpus.poll()
    assert row.get("busy_fraction") is None
    assert row["nvml_utilization"] == 0.13
    assert "take_gpm_sample" not in nvml.calls


def test_a_gpu_that_fails_gives_null_rows_and_comes_back() -> None:
    nvml = FakeNvml(FakeGpu(), FakeGpu())
    gpus = meter(nvml)
    gpus.poll()
    gpus.poll()
    nvml.gpus[1].broken = {"*": LOST}
    good, lost = gpus.poll()
    assert good["busy_fraction"] == pytest.approx(0.53846)
    assert lost["device"] == 1
    assert {name for name, value in lost.items() if value is not None} == {
        "t0_ns", "t1_ns", "device", "num_foreign_processes",
    }  # fmt: skip
    assert lost["t1_ns"] > lost["t0_ns"]  # type: ignore[operator]
    assert gpus.problem is not None
    assert gpus.problem.startswith("GPU 1: GPU is lost (")

    nvml.gpus[1].broken = {}
    assert gpus.poll()[1].get("busy_fraction") is None  # the sample before it was lost: nothing to compare with
    assert gpus.poll()[1]["busy_fraction"] == pytest.approx(0.53846)


def test_a_failed_comparison_loses_one_row_only() -> None:
    nvml = FakeNvml(FakeGpu())
    gpus = meter(nvml)
    gpus.poll()
    nvml.gpus[0].broken = {"compare_gpm_samples": NvmlError("Unknown Error")}
    assert gpus.poll()[0].get("busy_fraction") is None
    nvml.gpus[0].broken = {}
    assert gpus.poll()[0]["busy_fraction"] == pytest.approx(0.53846)


def test_an_unsupported_reading_is_asked_once_and_is_no_problem() -> None:
    nvml = FakeNvml(FakeGpu(broken={"power_w": NvmlError("Not Supported", "unsupported")}))
    gpus = meter(nvml)
    for _ in range(3):
        rows = gpus.poll()
    assert rows[0]["power_w"] is None
    assert nvml.calls.count("power_w") == 1
    assert gpus.problem is None


@pytest.mark.parametrize(
    ("pids", "expected"),
    [
        ([], 0),
        ([11], 0),
        ([11, 12, 13], 2),
        ([11, 0], None),  # 0: a process that NVML may not show
        ([12, 99], None),  # 99 names nobody here: pids of another namespace
    ],
)
def test_processes_that_are_not_of_the_run_are_counted_or_not_judged(pids: list[int], expected: int | None) -> None:
    gpus = meter(FakeNvml(FakeGpu(compute_pids=pids)), p11=True, p12=False, p13=False, p0=None, p99=None)
    gpus.poll()
    assert gpus.poll()[0]["num_foreign_processes"] == expected


def test_processes_are_looked_at_once_a_second() -> None:
    nvml = FakeNvml(FakeGpu())
    gpus = meter(nvml, step_ns=33_000_000)  # three looks at the clock, 99 ms, a pass
    for _ in range(22):
        gpus.poll()
    assert nvml.calls.count("compute_pids") == 2
