"""verl's own figures, and whether its clock agrees with the spans."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_perf.record import RunRecord, Step, load_run
from grpo_perf.timeline.health import TimingError, compare_timing, measure_health
from grpo_perf.timeline.window import find_window
from grpo_perf.types import MetricValue
from tests.builders import make_record, make_span

DATA = Path(__file__).parent.parent / "data"


def measure_steps(record: RunRecord) -> dict[str, MetricValue]:
    return measure_health(record, find_window(record))


def change_step(record: RunRecord, number: int, **data: float | None) -> RunRecord:
    """The record with keys of one step's line replaced, or removed where None; `/` is written `__`."""
    changes = {key.replace("__", "/"): value for key, value in data.items()}
    steps = [
        Step(step=step.step, data={k: v for k, v in {**step.data, **changes}.items() if v is not None})
        if step.step == number
        else step
        for step in record.steps
    ]
    return replace(record, steps=steps)


def test_kl_is_the_largest_in_size() -> None:
    record = change_step(make_record(), 4, rollout_corr__kl=-3e-4, actor__ppo_kl=-0.5)
    assert measure_steps(record)["rollout_kl"].value == 3e-4
    assert measure_steps(record)["ppo_kl"].value == 0.5


def test_correlation_is_the_smallest() -> None:
    record = change_step(make_record(), 6, training__rollout_actor_probs_pearson_corr=0.9)
    assert measure_steps(record)["rollout_actor_correlation"].value == 0.9


def test_the_closing_step_counts_and_warm_up_does_not() -> None:
    record = change_step(make_record(loops=2), 1, actor__grad_norm=100.0)
    record = change_step(record, 4, actor__grad_norm=6.0)
    assert measure_steps(record)["grad_norm"] == MetricValue(value=2.0, series=[2.0, 2.0, 6.0])


def test_loss_falls_back_to_the_policy_loss() -> None:
    record = make_record()
    for number in range(1, 7):
        record = change_step(record, number, actor__loss=None, actor__pg_loss=-0.25)
    assert measure_steps(record)["loss"].value == -0.25


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "step 3 has no actor/grad_norm in steps.jsonl"),
        (float("nan"), "actor/grad_norm is nan in step 3"),
        (float("inf"), "actor/grad_norm is inf in step 3"),
    ],
)
def test_what_is_no_number_has_a_reason(value: float | None, reason: str) -> None:
    record = change_step(make_record(), 3, actor__grad_norm=value)
    assert measure_steps(record)["grad_norm"] == MetricValue(value=None, reason=reason)


def test_mfu_of_an_unknown_peak_is_not_zero() -> None:
    """verl divides by an infinite peak then, and logs 0."""
    metrics = measure_steps(make_record(step_data={"perf/mfu/actor": 0.0}))
    assert metrics["mfu"] == MetricValue(value=None, reason="verl knows no peak FLOPS of NVIDIA H200")
    assert measure_steps(make_record())["mfu"].value == 0.2
    assert measure_steps(make_record(device="cpu"))["mfu"].reason == "no GPU in this run"


@pytest.mark.parametrize(
    ("span_s", "verl_s", "error"),
    [
        (1.000, 1.000, 0.0),
        (0.015, 0.010, 0.0),  # 5 ms apart: within the slack, although 50 %
        (0.0151, 0.010, 0.51),  # just beyond 5 ms, and far beyond 1 %
        (1.010, 1.000, 0.01),  # exactly 1 %: still within
        (0.500, 1.000, 0.5),
        (0.000, 1.000, 1.0),
        (1.000, 0.000, 1.0),
    ],
)
def test_error_is_at_most_one_percent_exactly_within_tolerance(span_s: float, verl_s: float, error: float) -> None:
    found = TimingError(step=1, phase="gen", span_s=span_s, verl_s=verl_s)
    assert found.error_fraction == pytest.approx(error, abs=1e-9)


def test_the_worst_phase_of_each_step() -> None:
    """gen is 1 s and ref 0.5 s by the spans."""
    record = change_step(make_record(loops=2), 3, timing_s__gen=1.25, timing_s__ref=1.0)
    assert measure_steps(record)["timing_error_fraction"] == MetricValue(value=0.5, series=[0.0, 0.5, 0.0])


def test_spans_of_one_name_are_added_up_within_the_step() -> None:
    """verl adds what it times several times in a step (`parameter_sync_step` > 1)."""
    record = make_record(phases={"gen": 1.0, "ref": 0.5})
    split = [
        part
        for span in record.spans
        for part in (
            [replace(span, t1_ns=span.t0_ns + 400_000_000), replace(span, t0_ns=span.t0_ns + 400_000_000)]
            if span.name == "gen"
            else [span]
        )
    ]
    assert measure_steps(replace(record, spans=split))["timing_error_fraction"].value == 0.0


def test_a_mark_around_a_timer_of_the_same_name_counts_once() -> None:
    record = make_record(phases={"gen": 1.0, "save_checkpoint": 1.0}, step_data={"timing_s/save_checkpoint": 1.0})
    doubled = record.spans + [span for span in record.spans if span.name == "save_checkpoint"]
    assert measure_steps(replace(record, spans=doubled))["timing_error_fraction"].value == 0.0


def test_a_lost_phase_is_an_error() -> None:
    record = make_record()
    lost = replace(record, spans=[span for span in record.spans if span.name != "ref"])
    assert measure_steps(lost)["timing_error_fraction"].value == 1.0


def test_times_that_workers_report_are_not_compared() -> None:
    record = make_record(step_data={"timing_s/agent_loop/generate_sequences/max": 0.9})
    record = replace(record, spans=[*record.spans, make_span("compute_score", 5, 6, lane="reward")])
    assert {item.phase for item in compare_timing(record, find_window(record))} == {
        "step", "gen", "old_log_prob", "ref", "adv", "update_actor", "update_weights",
    }  # fmt: skip


def test_without_any_time_of_verl_there_is_no_check() -> None:
    record = make_record()
    steps = [
        Step(step=step.step, data={k: v for k, v in step.data.items() if not k.startswith("timing_s/")})
        for step in record.steps
    ]
    metrics = measure_steps(replace(record, steps=steps))
    assert metrics["timing_error_fraction"].reason == "steps.jsonl has no timing_s/<phase> of a steady step"


def test_real_spans_agree_with_verl() -> None:
    """The recorded CPU run: 3 steady steps x 7 timers, each within 0.2 ms of verl's figure."""
    record = load_run(DATA / "cpu_first")
    compared = compare_timing(record, find_window(record))
    assert len(compared) == 21
    lines = (DATA / "cpu_first" / "steps.jsonl").read_text().splitlines()
    logged = {line["step"]: line["data"] for line in map(json.loads, lines)}
    for item in compared:
        assert item.verl_s == logged[item.step][f"timing_s/{item.phase}"]
        assert item.span_s == pytest.approx(item.verl_s, abs=2e-4)
