"""Loop time, phases, gap, epoch and tokens, from records worked out by hand."""

from dataclasses import replace

import pytest

from grpo_perf.record import RunRecord
from grpo_perf.timeline.loops import measure_loops
from grpo_perf.timeline.measure import cut_loops
from grpo_perf.timeline.window import find_window
from grpo_perf.types import MetricValue
from tests.builders import PHASES_S, make_record, make_workload

UPDATE_S = [9.0, 1.0, 2.0, 1.0, 4.0, 1.0]
"""update_actor of steps 1 to 6; the first is warm-up, the last only closes the window: loops of 4, 5, 4 and 7 s."""


def measure_time(record: RunRecord) -> dict[str, MetricValue]:
    window = find_window(record)
    return measure_loops(window, cut_loops(record, window), record.meta)


def test_loop_time_is_start_to_start_and_its_median() -> None:
    metrics = measure_time(make_record(phases={**PHASES_S, "update_actor": UPDATE_S}))
    assert metrics["loop_time_s"] == MetricValue(value=4.5, series=[4.0, 5.0, 4.0, 7.0])
    assert metrics["phase_s/update_actor"] == MetricValue(value=1.5, series=[1.0, 2.0, 1.0, 4.0])
    assert metrics["phase_s/gen"].series == [1.0, 1.0, 1.0, 1.0]


def test_phases_unaccounted_and_gap_make_the_loop() -> None:
    metrics = measure_time(make_record(phases={**PHASES_S, "update_actor": UPDATE_S}))
    phases = [value.series for name, value in metrics.items() if name.startswith("phase_s/")]
    assert [sum(loop) for loop in zip(*phases, strict=True)] == metrics["loop_time_s"].series


def test_gap_is_everything_outside_step() -> None:
    """0.5 s of logging and 0.25 s of nothing; `phase_s/gap` is the nothing alone."""
    metrics = measure_time(make_record(phases={**PHASES_S, "logging": 0.5}))
    assert metrics["gap_s"].value == 0.75
    assert metrics["phase_s/gap"].value == 0.25
    assert metrics["phase_s/logging"].value == 0.5


def test_unaccounted_is_the_worst_loop_of_step_time() -> None:
    """0.25 s of 3.75 s of step, and of 4.75, 3.75, 6.75."""
    metrics = measure_time(make_record(phases={**PHASES_S, "update_actor": UPDATE_S}))
    assert metrics["unaccounted_fraction"].value == pytest.approx(0.25 / 3.75)
    assert measure_time(make_record(unaccounted_s=0.0))["unaccounted_fraction"].value == 0.0


def test_an_unknown_span_keeps_its_name() -> None:
    metrics = measure_time(make_record(phases={**PHASES_S, "kv_transfer": 0.125}))
    assert metrics["phase_s/kv_transfer"].value == 0.125
    assert metrics["loop_time_s"].value == 4.125


def test_epoch_rounds_the_last_batch_up() -> None:
    """100 prompts in batches of 8 are 13 steps of 4 s."""
    assert measure_time(make_record())["epoch_time_s"].value == 52.0


def test_tokens_belong_to_the_step_that_starts_the_loop() -> None:
    """Loops of 4 s with 1000, 2000, 3000, 4000 tokens; those of warm-up and of the closing step do not count."""
    metrics = measure_time(make_record(tokens=[9, 1000, 2000, 3000, 4000, 9]))
    assert metrics["effective_tokens_per_hour"].series == [900_000, 1_800_000, 2_700_000, 3_600_000]
    assert metrics["effective_tokens_per_hour"].value == 2_250_000
    assert metrics["tokens_per_s_per_gpu"].value == 625.0


def test_tokens_per_gpu_divide_by_the_gpus() -> None:
    assert measure_time(make_record(num_gpus=2, busy=0.5))["tokens_per_s_per_gpu"].value == 125.0


def test_tokens_per_gpu_need_a_gpu() -> None:
    metrics = measure_time(make_record(device="cpu"))
    assert metrics["tokens_per_s_per_gpu"] == MetricValue(value=None, reason="no GPU in this run")
    assert metrics["effective_tokens_per_hour"].value == 900_000


def test_a_step_without_tokens_says_so() -> None:
    record = make_record()
    record = replace(record, steps=[step for step in record.steps if step.step != 3])
    reason = "step 3 has no perf/total_num_tokens in steps.jsonl"
    assert measure_time(record)["effective_tokens_per_hour"] == MetricValue(value=None, reason=reason)


def test_nan_tokens_are_not_a_rate() -> None:
    metrics = measure_time(make_record(tokens=[1, 1, float("nan"), 1, 1, 1]))
    assert metrics["effective_tokens_per_hour"] == MetricValue(
        value=None, reason="perf/total_num_tokens is nan in step 3"
    )


def test_warm_up_steps_are_left_out() -> None:
    workload = make_workload(num_warmup_steps=2, num_steady_steps=3)
    metrics = measure_time(make_record(loops=2, workload=workload, phases={"gen": [9, 8, 1.5, 2.5, 7]}))
    assert metrics["phase_s/gen"].series == [1.5, 2.5]
