"""Claims that need no baseline: the measurement itself, training health, and absolute targets.

coverage 100 % ─┐
unaccounted ────┼─ measurement        PASS, or INVALID with the reason
spans = verl? ──┘
loss, grad_norm finite, rollout = actor   training_health    a fast step that no longer learns is no step
busy >= 45 %                              targets            judged with or without a baseline
"""

import math
from collections.abc import Mapping, Sequence

from grpo_perf.metrics import get_metric
from grpo_perf.types import Claim, Measurement, Target, Verdict
from grpo_perf.units import NA, format_number, format_percent
from grpo_perf.verdict.claims import HEALTH_METRICS, MEASUREMENT, TRAINING_HEALTH
from grpo_perf.verdict.commands import judge_command
from grpo_perf.verdict.samples import find_problem
from grpo_perf.verdict.stats import summarize_runs

DEFAULT_HEALTH: dict[str, Target] = {
    # bf16 rollout against bf16 training: hundredths of a nat are the two kernels' rounding, not a defect. On float32
    # the CPU workload shows 1e-7 and 1.0 (FINDINGS section 3): targets of a tier may be as tight as 0.01 and 0.99.
    "rollout_kl": Target(maximum=0.05),
    "rollout_actor_correlation": Target(minimum=0.9),
}
_FINITE = ("loss", "grad_norm")


def judge_measurement(measurement: Measurement) -> Claim:
    """PASS with the proof that the run was watched; the gate has already dealt with invalid runs."""
    unaccounted = format_percent(measurement.value("unaccounted_fraction"))
    error = format_percent(measurement.value("timing_error_fraction"))
    coverage = format_percent(measurement.value("coverage_fraction"), digits=0)
    message = f"unaccounted {unaccounted}, spans match verl within {error}, coverage {coverage}"
    return Claim(metric=MEASUREMENT, verdict=Verdict.PASS, message=message)


def judge_health(measurement: Measurement, targets: Mapping[str, Target]) -> Claim:
    """PASS while losses are finite and rollout and actor agree, else REGRESSED; what is n/a is named, not judged."""
    limits = DEFAULT_HEALTH | {name: target for name, target in targets.items() if name in HEALTH_METRICS}
    names = [*_FINITE, *(name for name in limits if name not in _FINITE)]
    results = [_check_health(measurement, name, limits.get(name, Target())) for name in names]
    failures = [text for is_healthy, text in results if not is_healthy]
    verdict = Verdict.REGRESSED if failures else Verdict.PASS
    return Claim(metric=TRAINING_HEALTH, verdict=verdict, message=", ".join(failures or [text for _, text in results]))


def _check_health(measurement: Measurement, name: str, target: Target) -> tuple[bool, str]:
    """Whether a value is finite and within its limits, and a text that says so."""
    found = measurement.metrics.get(name)
    if found is None or found.value is None:
        return True, f"{name} {NA}" + (f" ({found.reason})" if found is not None and found.reason else "")
    bad = next((value for value in (found.value, *found.series) if not math.isfinite(value)), None)
    if bad is not None:
        return False, f"{name} is {bad}"
    broken = _find_broken(name, found.value, target)
    if broken is not None:
        return False, f"{name} needs {broken[0]}, is {format_number(found.value)}"
    limits = _show_target(name, target)
    return True, f"{name} {format_number(found.value)}" + ("" if limits == NA else f" {limits}")


def judge_target(metric: str, target: Target, runs: Sequence[Measurement]) -> Claim:
    """One absolute limit, on the median of the runs; the last run is the one that must have a value."""
    problem = find_problem(runs[-1], metric)
    if problem is not None:
        return Claim(metric=metric, verdict=Verdict.INVALID, message=f"no source: {problem}")
    value = _summarize(metric, runs)
    limit = target.minimum if target.minimum is not None else target.maximum
    broken = _find_broken(metric, value, target)
    unit = get_metric(metric).unit
    if broken is not None:
        message = f"{metric} needs {broken[0]}, is {format_number(value, unit)}"
        return Claim(
            metric=metric,
            verdict=Verdict.REGRESSED,
            message=message,
            value=value,
            reference=broken[1],
            limit=broken[1],
            next_command=judge_command(runs[-1]),
        )
    message = f"{metric} {format_number(value, unit)}, needs {_show_target(metric, target)}"
    return Claim(metric=metric, verdict=Verdict.PASS, message=message, value=value, reference=limit, limit=limit)


def _summarize(metric: str, runs: Sequence[Measurement]) -> float:
    # The run's own value, not that of its loops: a mean weighted by overlap is more exact than a mean of loops.
    values = [[value] for value in (run.value(metric) for run in runs) if value is not None]
    return summarize_runs(values, "none")


def _find_broken(metric: str, value: float, target: Target) -> tuple[str, float] | None:
    unit = get_metric(metric).unit
    if target.minimum is not None and value < target.minimum:
        return f">= {format_number(target.minimum, unit)}", target.minimum
    if target.maximum is not None and value > target.maximum:
        return f"<= {format_number(target.maximum, unit)}", target.maximum
    return None


def _show_target(metric: str, target: Target) -> str:
    unit = get_metric(metric).unit
    lower = [] if target.minimum is None else [f">= {format_number(target.minimum, unit)}"]
    upper = [] if target.maximum is None else [f"<= {format_number(target.maximum, unit)}"]
    return " and ".join(lower + upper) or NA
