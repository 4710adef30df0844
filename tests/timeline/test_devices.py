"""What samples give: means by overlap, idle by phase, peaks, coverage."""

from dataclasses import replace
from typing import Any

import pytest

from grpo_perf.record import RunRecord
from grpo_perf.timeline.devices import measure_devices
from grpo_perf.timeline.measure import cut_loops
from grpo_perf.timeline.samples import select_rows
from grpo_perf.timeline.window import find_window
from grpo_perf.types import MetricValue
from tests.builders import PHASES_S, START_NS, change_samples, make_hardware, make_record, make_samples, to_ns


def measure_samples(record: RunRecord) -> dict[str, MetricValue]:
    window = find_window(record)
    hardware = record.meta.hardware
    rows = select_rows(
        record.samples, window.edges_ns, num_gpus=hardware.num_devices if hardware.device == "gpu" else 0
    )
    return measure_devices(rows, window, cut_loops(record, window), record.meta)


BUSY = {"gen": 0.5, "old_log_prob": 1.0, "ref": 0.75, "update_actor": 1.0}
"""Idle of a loop: gen 0.5, ref 0.125, adv 0.25, update_weights 0.25, unaccounted 0.25, gap 0.25 = 1.625 s of 4 s."""


def test_idle_by_phase_on_one_gpu() -> None:
    metrics = measure_samples(make_record(busy=BUSY))
    assert metrics["idle_s_per_step"] == MetricValue(value=1.625, series=[1.625] * 4)
    assert metrics["idle_s_per_step/gen"].value == 0.5
    assert metrics["idle_s_per_step/ref"].value == 0.125
    assert metrics["idle_s_per_step/gap"].value == 0.25
    assert metrics["idle_fraction/gen"].value == 0.5
    assert metrics["idle_fraction/update_actor"].value == 0.0
    assert metrics["busy_fraction"].value == pytest.approx(2.375 / 4)
    assert metrics["idle_fraction"].value == pytest.approx(1.625 / 4)


def test_idle_is_summed_over_gpus_and_busy_is_their_mean() -> None:
    """The second GPU never works: 4 idle seconds more a loop."""
    metrics = measure_samples(make_record(num_gpus=2, busy=[BUSY, 0.0]))
    assert metrics["idle_s_per_step"].value == 5.625
    assert metrics["idle_s_per_step/gen"].value == 1.5
    assert metrics["idle_fraction/gen"].value == 0.75
    assert metrics["busy_fraction"].value == pytest.approx(2.375 / 8)


def test_idle_families_add_up_to_the_loop() -> None:
    metrics = measure_samples(make_record(busy=BUSY, period_s=0.07))
    phases = [value.value for name, value in metrics.items() if name.startswith("idle_s_per_step/")]
    assert sum(value for value in phases if value is not None) == pytest.approx(1.625)


def test_means_weigh_by_time_and_not_by_loop_or_row() -> None:
    """A loop of 12 s that is fully busy and one of 4 s that is idle: 75 %, not 50 %."""
    record = make_record(loops=2, phases={"gen": [1, 12, 4, 1]}, unaccounted_s=0, gap_s=0, period_s=1.0, host_busy=None)
    border_ns = START_NS + to_ns(13)
    record = change_samples(record, busy_fraction=lambda row: float(row["t0_ns"] < border_ns))
    metrics = measure_samples(record)
    assert metrics["busy_fraction"] == MetricValue(value=0.75, series=[1.0, 0.0])
    assert metrics["idle_s_per_step"] == MetricValue(value=2.0, series=[0.0, 4.0])


def test_other_columns() -> None:
    columns = {"power_w": 512.0, "sm_active_fraction": 0.375, "nvml_utilization": 1.0, "memory_used_gib": 35.0}
    metrics = measure_samples(make_record(columns=columns))
    for name, value in columns.items():
        assert metrics[name] == MetricValue(value=value, series=[value] * 4)
    assert metrics["memory_used_fraction"].value == 0.25


def test_memory_is_the_peak_of_the_window_over_gpus() -> None:
    def use(row: dict[str, Any]) -> float:
        """GPU 1 holds more; a spike of warm-up (before 4 s) and one of loop 2 (8 to 12 s)."""
        since_s = (row["t0_ns"] - START_NS) / 1e9
        return 130.0 if since_s < 3 else 100.0 if 9 <= since_s < 9.5 else 50.0 + row["device"]

    metrics = measure_samples(change_samples(make_record(num_gpus=2), memory_used_gib=use))
    assert metrics["memory_used_gib"] == MetricValue(value=100.0, series=[51.0, 100.0, 51.0, 51.0])


def test_capacity_that_is_not_known() -> None:
    metrics = measure_samples(make_record(hardware=make_hardware(memory_gib=None)))
    assert metrics["memory_used_fraction"].reason == "the capacity of NVIDIA H200 is not known"


def test_a_gpu_without_gpm_has_no_busy_and_nvml_never_stands_in() -> None:
    metrics = measure_samples(make_record(busy=None, hardware=make_hardware(telemetry="nvml")))
    reason = "telemetry is nvml: this GPU reports no graphics activity (GPM)"
    for name in ("busy_fraction", "idle_fraction", "idle_s_per_step"):
        assert metrics[name] == MetricValue(value=None, reason=reason)
    assert metrics["nvml_utilization"].value == 0.875
    assert metrics["coverage_fraction"].value == 1.0  # counted in the column there is
    assert not [name for name in metrics if name.startswith("idle_s_per_step/")]


def test_one_silent_gpu_makes_the_mean_unknown() -> None:
    metrics = measure_samples(make_record(num_gpus=2, busy=[0.5, None]))
    assert metrics["busy_fraction"].reason == "GPU 1 has no busy_fraction in the steady window"
    assert metrics["coverage_fraction"].value == 0.0


def test_a_lost_row_is_uncovered_time() -> None:
    """0.4 of 16 s are null: coverage 97.5 %; idle stays 25 % of the time instead of growing or shrinking."""
    window_ns = START_NS + to_ns(4)
    record = change_samples(
        make_record(),
        busy_fraction=lambda row: None if 0 <= row["t0_ns"] - window_ns < to_ns(0.4) else row["busy_fraction"],
    )
    metrics = measure_samples(record)
    assert metrics["coverage_fraction"].value == pytest.approx(0.975)
    assert metrics["busy_fraction"].value == pytest.approx(0.75)
    assert metrics["idle_s_per_step"].series == pytest.approx([1.0] * 4)


def test_a_phase_that_no_sample_saw() -> None:
    metrics = measure_samples(make_record(busy={**dict.fromkeys(PHASES_S, 0.5), "adv": None}))
    assert metrics["idle_s_per_step/adv"].reason == "no sample covers adv in steady loop 1"
    assert metrics["idle_fraction/adv"].reason == "no sample covers adv"
    assert metrics["idle_s_per_step/gen"].value == 0.5


def test_a_loop_that_no_sample_saw() -> None:
    """Nothing between 8 and 12 s: the loop's idle is unknown, not 0 and not 4 s."""
    record = make_record()
    low, high = START_NS + to_ns(8), START_NS + to_ns(12)
    rows = [row for row in record.samples.to_pylist() if not low <= row["t0_ns"] < high]
    metrics = measure_samples(replace(record, samples=make_samples(rows)))
    assert metrics["idle_s_per_step"].reason == "it could not be measured in steady loop 2"
    assert metrics["coverage_fraction"].value == 0.75


def test_host_of_a_cpu_run() -> None:
    metrics = measure_samples(make_record(device="cpu", host_busy={"gen": 0.75, "update_actor": 0.5}))
    assert metrics["host_busy_fraction"].value == pytest.approx(1.25 / 4)
    assert metrics["host_idle_s_per_step"].value == 2.75
    assert metrics["host_idle_s_per_step/gen"].value == 0.25
    assert metrics["host_idle_s_per_step/gap"].value == 0.25
    assert metrics["memory_used_gib"].value == 6.0
    assert metrics["busy_fraction"].reason == "no GPU in this run"
    assert metrics["idle_s_per_step"].reason == "no GPU in this run"


def test_wait_needs_a_trace() -> None:
    assert measure_samples(make_record())["wait_s_per_step"].reason == "needs several GPUs and a trace"


def test_cost_of_the_sampler() -> None:
    assert measure_samples(make_record())["sampler_cost_fraction"].value == pytest.approx(0.01)
    without = change_samples(make_record(), sampler_cpu_s=lambda _: None)
    assert measure_samples(without)["sampler_cost_fraction"].value is None


def test_no_samples_at_all() -> None:
    metrics = measure_samples(replace(make_record(), samples=make_samples([])))
    assert metrics["coverage_fraction"].value == 0.0
    assert metrics["busy_fraction"].reason == "GPU 0 has no busy_fraction in the steady window"
    assert metrics["host_busy_fraction"].reason == "no host samples in the steady window"
