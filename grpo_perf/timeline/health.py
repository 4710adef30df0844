"""What verl says about each steady step: training health, and whether its clock and ours agree.

    spans       ├──── gen 6.400 s ────┤         sum of the spans of one name within one step
    steps.jsonl   timing_s/gen 6.399            verl's own figure of the same phase
                  differ by 1 ms: under 5 ms, so the error is 0

Series here have one value for each steady step: the step that closes the last loop was logged too and counts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grpo_perf.metrics import PHASES
from grpo_perf.record import RunRecord, Span, Step
from grpo_perf.timeline.intervals import make_intervals, overlap_ns
from grpo_perf.timeline.lanes import STEP, TRAINER
from grpo_perf.timeline.values import NO_GPU, aggregate, missing
from grpo_perf.timeline.window import Window
from grpo_perf.types import MetricValue
from grpo_perf.units import NS_PER_S

STEP_KEYS: dict[str, tuple[str, ...]] = {
    "grad_norm": ("actor/grad_norm",),
    "loss": ("actor/loss", "actor/pg_loss"),
    "ppo_kl": ("actor/ppo_kl",),
    "rollout_kl": ("rollout_corr/kl",),
    "rollout_actor_correlation": ("training/rollout_actor_probs_pearson_corr",),
    "mfu": ("perf/mfu/actor",),
}
"""Metric -> verl's keys, the first that a step has."""

_ABSOLUTE = frozenset({"ppo_kl", "rollout_kl"})

TIMING_SLACK_S = 0.005
"""A timer's own cost and the scheduler: differences up to this are no error (the task's tolerance: max(5 ms, 1 %))."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingError:
    """One phase of one step as the spans and as verl time it."""

    step: int
    phase: str
    span_s: float
    verl_s: float

    @property
    def error_fraction(self) -> float:
        """|spans - verl| relative to verl, 0 where they differ by at most 5 ms.

        So a value <= 0.01 means exactly: within max(5 ms, 1 %). Where verl says 0 s and the spans more, 1.
        """
        difference_s = abs(self.span_s - self.verl_s)
        if difference_s <= TIMING_SLACK_S:
            return 0.0
        return difference_s / self.verl_s if self.verl_s > 0 else 1.0


def measure_health(record: RunRecord, window: Window) -> dict[str, MetricValue]:
    """Loss, gradient norm, KL, correlation, MFU, and the timing error, over the steady steps."""
    measured = {name: _measure_step_key(name, window) for name in STEP_KEYS}
    measured["mfu"] = _check_mfu(measured["mfu"], record)
    measured["timing_error_fraction"] = _measure_timing(compare_timing(record, window), window)
    return measured


def read_step_value(metric: str, step: Step | None) -> float | None:
    """verl's value of one of STEP_KEYS in one step; None where the step has none."""
    if step is None:
        return None
    return next((value for key in STEP_KEYS[metric] if (value := step.number(key)) is not None), None)


def compare_timing(record: RunRecord, window: Window) -> list[TimingError]:
    """Each phase of each steady step that verl times, beside the sum of its spans in that step.

    A phase of verl's that should have spans and has none is compared with 0 s: a lost span is an error.
    """
    by_name: dict[str, list[Span]] = {}
    for span in record.spans:
        if span.lane == TRAINER:
            by_name.setdefault(span.name, []).append(span)
    edges = np.array([span.t0_ns for span in window.spans] + [np.iinfo(np.int64).max], dtype=np.int64)
    compared: list[TimingError] = []
    for phase in sorted({STEP, *PHASES, *by_name}):
        # A mark around what verl also times gives two spans, one in the other: the union counts them once.
        spans = by_name.get(phase, [])
        own = make_intervals([span.t0_ns for span in spans], [span.t1_ns for span in spans])
        compared += _compare_phase(phase, (overlap_ns(own, edges) / NS_PER_S).tolist(), window)
    return compared


def _compare_phase(phase: str, span_s: list[float], window: Window) -> list[TimingError]:
    compared = []
    for index, (number, step) in enumerate(zip(window.steady_numbers, window.steady_steps, strict=True)):
        verl_s = step.number(f"timing_s/{phase}") if step else None
        if verl_s is not None:
            compared.append(TimingError(step=number, phase=phase, span_s=span_s[window.first + index], verl_s=verl_s))
    return compared


def _measure_timing(compared: Sequence[TimingError], window: Window) -> MetricValue:
    """The worst phase's error of each steady step."""
    worst: dict[int, float] = {}
    for item in compared:
        worst[item.step] = max(worst.get(item.step, 0.0), item.error_fraction)
    if not worst:
        return missing("steps.jsonl has no timing_s/<phase> of a steady step")
    return aggregate("timing_error_fraction", [worst[number] for number in window.steady_numbers if number in worst])


def _measure_step_key(metric: str, window: Window) -> MetricValue:
    series: list[float] = []
    for number, step in zip(window.steady_numbers, window.steady_steps, strict=True):
        value = read_step_value(metric, step)
        if value is None:
            return missing(f"step {number} has no {STEP_KEYS[metric][0]} in steps.jsonl")
        if not math.isfinite(value):
            return missing(f"{STEP_KEYS[metric][0]} is {value} in step {number}")
        series.append(abs(value) if metric in _ABSOLUTE else value)
    return aggregate(metric, series) if series else missing("no steady step was recorded")


def _check_mfu(measured: MetricValue, record: RunRecord) -> MetricValue:
    """None where verl divides by a peak that it does not know: it then takes infinity and logs 0.

    Source: verl/utils/flops_counter.py, get_device_flops (inf for an unknown device).
    """
    if record.meta.hardware.device != "gpu":
        return missing(NO_GPU)
    if measured.value == 0:
        return missing(f"verl knows no peak FLOPS of {record.meta.hardware.device_name}")
    return measured
