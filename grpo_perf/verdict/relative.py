"""One claim against the baseline: what is compared, why it may not be, and the line that says what came out.

no value ─────────────── INVALID          candidate runs ─┐
no baseline ──────────── NO_BASELINE      siblings ───────┼── change with interval ──> limits.decide
other identity ───────── ENV_MISMATCH     baseline runs ──┤
no base run (ratio) ──── INVALID          base cell runs ─┘  (ratio baselines)
under two loops ──────── INCONCLUSIVE
"""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_perf.metrics import get_metric
from grpo_perf.types import Baseline, BaselineMetric, Claim, JudgeContext, Measurement, Tier, Verdict
from grpo_perf.units import format_number, format_percent
from grpo_perf.verdict.commands import baseline_command, budget_command, judge_command
from grpo_perf.verdict.explain import explain, name_culprits
from grpo_perf.verdict.identity import compare_identity
from grpo_perf.verdict.limits import decide, find_limit, find_tolerance
from grpo_perf.verdict.samples import collect_runs, count_loops, find_problem, select_valid
from grpo_perf.verdict.stats import Change, Runs, compare_ratios, compare_runs, summarize_runs

MIN_LOOPS = 2
"""With one loop there is no scatter to see, and an interval of width 0 would be a lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What one claim compares."""

    metric: str
    candidates: list[Measurement]
    references: list[Measurement]
    """Valid runs of the base cell; empty for an absolute baseline."""
    baseline: Baseline
    stored: BaselineMetric
    tier: Tier

    @property
    def is_ratio(self) -> bool:
        return self.baseline.kind == "ratio"

    def collect(self, runs: Sequence[Measurement]) -> Runs:
        return collect_runs(runs, self.metric)

    def summarize(self, runs: Sequence[Measurement]) -> float:
        return summarize_runs(self.collect(runs), get_metric(self.metric).aggregation)

    @property
    def base_value(self) -> float:
        """The base cell's value for a ratio, else 1: what baseline and `value` are multiplied by to get the unit."""
        return self.summarize(self.references) if self.is_ratio else 1.0


def judge_relative(metric: str, runs: Sequence[Measurement], tier: Tier, context: JudgeContext) -> Claim:
    """The claim that a metric did not get worse than the baseline by more than is allowed.

    Args:
        runs: valid runs of the cell, the one under judgement last.
        tier: with the tolerances of the cell's device.
    """
    current, baseline = runs[-1], context.baseline
    problem = find_problem(current, metric)
    if problem is not None:
        return Claim(metric=metric, verdict=Verdict.INVALID, message=problem)
    if baseline is None:
        return _report_missing(metric, current, f"No baseline for {_describe(current, context)}")
    differences = compare_identity(baseline.fingerprint, current.fingerprint)
    if differences:
        return _report_mismatch(metric, current, differences)
    if baseline.kind == "ratio" and baseline.base_tier != tier.builds_on:
        other = f"compares with tier {baseline.base_tier!r}, {tier.name!r} now builds on {tier.builds_on!r}"
        return _report_missing(metric, current, f"The baseline for {_describe(current, context)} {other}")
    stored = baseline.metrics.get(metric)
    if stored is None:
        return _report_missing(metric, current, f"The baseline for {_describe(current, context)} has no {metric}")
    references = select_valid(context.references) if baseline.kind == "ratio" else []
    case = _Case(
        metric=metric, candidates=list(runs), references=references, baseline=baseline, stored=stored, tier=tier
    )
    return _find_obstacle(case, context) or _compare(case)


def _compare(case: _Case) -> Claim:
    expected = case.stored.median * case.base_value
    if expected <= 0:
        return _compare_with_zero(case)
    limit, source = find_limit(case.stored, find_tolerance(case.tier, case.metric), expected)
    change = _estimate(case)
    if change is None:
        message = f"{case.metric} was 0 in some loops of what it is compared with: no change can be computed"
        return Claim(metric=case.metric, verdict=Verdict.INCONCLUSIVE, message=message)
    worse = change if get_metric(case.metric).better == "lower" else change.reversed()
    verdict = decide(worse, limit)
    return Claim(
        metric=case.metric,
        verdict=verdict,
        message=_write_message(case, verdict, change, limit, source),
        value=case.summarize(case.candidates) / case.base_value,
        reference=case.stored.median,
        change=change.point,
        interval=(change.low, change.high),
        limit=limit,
        next_command=_find_next_command(case, verdict),
    )


def _estimate(case: _Case) -> Change | None:
    aggregation = get_metric(case.metric).aggregation
    candidates = case.collect(case.candidates)
    if case.is_ratio:
        references = case.collect(case.references)
        return compare_ratios(candidates, references, case.stored.samples, case.stored.spread, aggregation)
    return compare_runs(candidates, case.stored.samples, aggregation)


def _compare_with_zero(case: _Case) -> Claim:
    """A change from 0 has no percentage: only an absolute tolerance can judge it."""
    value = case.summarize(case.candidates)
    allowed = find_tolerance(case.tier, case.metric).absolute
    unit = get_metric(case.metric).unit
    text = f"{case.metric} {format_number(value, unit)}, baseline 0"
    if value <= (allowed or 0.0):
        verdict = Verdict.PASS
    elif allowed is None:
        text += "; a change from 0 has no percentage: give the tier an absolute tolerance for it"
        verdict = Verdict.INCONCLUSIVE
    else:
        text += f", allowed {format_number(allowed, unit)}"
        verdict = Verdict.REGRESSED if get_metric(case.metric).better == "lower" else Verdict.PASS
    return Claim(metric=case.metric, verdict=verdict, message=text, value=value, reference=0.0)


def _find_obstacle(case: _Case, context: JudgeContext) -> Claim | None:
    """Why the comparison cannot be made although there is a baseline; None where it can."""
    if case.is_ratio and not case.collect(case.references):
        reasons = [reason for run in context.references for reason in run.invalid_reasons]
        why = f" ({'; '.join(reasons)})" if reasons else f" with {case.metric}" if case.references else ""
        message = f"base cell has no valid run{why}: {case.metric} is judged as a ratio to tier {case.tier.builds_on!r}"
        return Claim(metric=case.metric, verdict=Verdict.INVALID, message=message)
    sides = {"cell": case.candidates} | ({"base cell": case.references} if case.is_ratio else {})
    short = {side: num for side, runs in sides.items() if (num := count_loops(runs)) < MIN_LOOPS}
    if short:
        texts = " and ".join(f"the {side} has {num}" for side, num in short.items())
        message = f"{case.metric} needs at least {MIN_LOOPS} steady loops, {texts}"
        command = budget_command(case.candidates[-1])
        return Claim(metric=case.metric, verdict=Verdict.INCONCLUSIVE, message=message, next_command=command)
    return None


def _write_message(case: _Case, verdict: Verdict, change: Change, limit: float, source: str) -> str:
    interval = f"[{change.low * 100:+.1f}, {change.high * 100:+.1f}]"
    head = (
        f"{case.metric} {format_percent(change.point, signed=True)} {interval}, allowed {format_percent(limit)}{source}"
    )
    details = [_explain(case, verdict, change, limit), _show_values(case)]
    return f"{head}: {'; '.join(text for text in details if text)}"


def _explain(case: _Case, verdict: Verdict, change: Change, limit: float) -> str:
    if verdict is Verdict.INCONCLUSIVE:
        seen = format_percent(limit + change.half_width)
        num_loops = count_loops(case.candidates)
        return f"the interval spans the limit, the smallest effect that {num_loops} loops can show is {seen}"
    if verdict is Verdict.IMPROVED:
        return "better than the baseline, refresh it to keep the gain"
    if verdict is Verdict.REGRESSED:
        return name_culprits(explain(case.metric, case.candidates, case.baseline, case.references))
    return ""


def _show_values(case: _Case) -> str:
    value, reference = case.summarize(case.candidates) / case.base_value, case.stored.median
    if case.is_ratio:
        return f"{format_number(value)} of {case.baseline.base_tier}, baseline {format_number(reference)}"
    unit = get_metric(case.metric).unit
    return f"{format_number(value, unit)}, baseline {format_number(reference, unit)}"


def _find_next_command(case: _Case, verdict: Verdict) -> str | None:
    current = case.candidates[-1]
    match verdict:
        case Verdict.REGRESSED:
            return judge_command(current)
        case Verdict.IMPROVED:
            return baseline_command(current)
        case Verdict.INCONCLUSIVE:
            return budget_command(current)
        case _:
            return None


def _describe(current: Measurement, context: JudgeContext) -> str:
    path = f" ({context.baseline_path})" if context.baseline_path else ""
    return f"{current.tier!r} on {current.hardware!r}{path}"


def _report_missing(metric: str, current: Measurement, what: str) -> Claim:
    command = baseline_command(current)
    message = f"{what}. Create it: {command}"
    return Claim(
        metric=metric,
        verdict=Verdict.NO_BASELINE,
        message=message,
        value=current.value(metric),
        next_command=command,
    )


def _report_mismatch(metric: str, current: Measurement, differences: Sequence[str]) -> Claim:
    message = f"not comparable with the baseline: {', '.join(differences)}"
    command = baseline_command(current)
    return Claim(
        metric=metric,
        verdict=Verdict.ENV_MISMATCH,
        message=message,
        value=current.value(metric),
        next_command=command,
    )
