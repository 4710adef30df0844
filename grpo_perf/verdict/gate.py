"""A run in, a verdict out: pure, so that a stored run gives the same verdict anywhere.

Measurement ─┬─ invalid reasons? ── every claim INVALID
siblings ────┤
             ├─ measurement ──────┐
             ├─ training_health ──┤
             ├─ targets ──────────┼──> cell = the severest claim; IMPROVED only where nothing is worse than PASS
baseline ────┴─ relative claims ──┘
references
"""

from collections.abc import Mapping, Sequence

from grpo_perf.types import Baseline, CellVerdict, Claim, JudgeContext, Measurement, Target, Tier, Verdict
from grpo_perf.units import format_number
from grpo_perf.verdict.checks import judge_health, judge_measurement, judge_target
from grpo_perf.verdict.claims import MEASUREMENT, TRAINING_HEALTH, claim_names, name_relative_claims
from grpo_perf.verdict.commands import measure_again_command
from grpo_perf.verdict.explain import blame
from grpo_perf.verdict.identity import compare_host, compare_subject
from grpo_perf.verdict.relative import judge_relative
from grpo_perf.verdict.samples import collect_loops, find_device, is_cpu, select_valid
from grpo_perf.verdict.stats import find_outliers

_SEVERITY = {verdict: rank for rank, verdict in enumerate(Verdict)}
_MOVED = (Verdict.REGRESSED, Verdict.IMPROVED, Verdict.INCONCLUSIVE)


def judge(measurement: Measurement, *, tier: Tier, targets: Mapping[str, Target], context: JudgeContext) -> CellVerdict:
    """The verdict on a cell, with exactly one claim for each of `claim_names`.

    Args:
        measurement: the run under judgement.
        tier: with tolerances and gated phases of the cell's device.
        targets: absolute limits of this hardware and workload.
        context: baseline, runs of the base cell, and earlier runs of this cell, which are pooled with this one.
    """
    siblings = [run for run in select_valid(context.siblings) if run.run_id != measurement.run_id]
    runs = [*siblings, measurement]
    names = claim_names(device=find_device(measurement.hardware), tier=tier, targets=targets)
    if measurement.invalid_reasons:
        claims = [_report_invalid(name, measurement) for name in names]
    else:
        claims = [_judge_claim(name, runs, tier, targets, context) for name in names]
    return CellVerdict(
        cell=f"{measurement.workload}/{measurement.tier}",
        hardware=measurement.hardware,
        verdict=judge_cell(claims),
        claims=claims,
        run_ids=[run.run_id for run in runs],
        blame=_find_blame(claims, runs, context),
        subject_changes=_find_subject_changes(context.baseline, measurement),
        warnings=_collect_warnings(runs, context.baseline),
    )


def judge_cell(claims: Sequence[Claim]) -> Verdict:
    """The severest verdict; IMPROVED where one claim improved and the others are at worst PASS."""
    verdicts = {claim.verdict for claim in claims}
    worst = max(verdicts, key=_SEVERITY.__getitem__, default=Verdict.PASS)
    return Verdict.IMPROVED if worst is Verdict.PASS and Verdict.IMPROVED in verdicts else worst


def _judge_claim(
    name: str, runs: Sequence[Measurement], tier: Tier, targets: Mapping[str, Target], context: JudgeContext
) -> Claim:
    if name == MEASUREMENT:
        return judge_measurement(runs[-1])
    if name == TRAINING_HEALTH:
        return judge_health(runs[-1], targets)
    device = find_device(runs[-1].hardware)
    is_relative = (device == "gpu" or tier.builds_on is not None) and name in name_relative_claims(device, tier)
    claims = [judge_target(name, targets[name], runs)] if name in targets else []
    claims += [judge_relative(name, runs, tier, context)] if is_relative else []
    return _merge(claims)


def _merge(claims: Sequence[Claim]) -> Claim:
    """One claim for a metric that has both a target and a baseline: the severer one, with both messages."""
    severest = max(claims, key=lambda claim: _SEVERITY[claim.verdict])
    others = [claim.message for claim in claims if claim is not severest]
    if not others:
        return severest
    return Claim(
        metric=severest.metric,
        verdict=severest.verdict,
        message="; ".join([severest.message, *others]),
        value=severest.value,
        reference=severest.reference,
        change=severest.change,
        interval=severest.interval,
        limit=severest.limit,
        next_command=severest.next_command,
    )


def _report_invalid(name: str, measurement: Measurement) -> Claim:
    message = f"run {measurement.run_id} is invalid: {'; '.join(measurement.invalid_reasons)}"
    return Claim(
        metric=name,
        verdict=Verdict.INVALID,
        message=message,
        value=measurement.value(name),
        next_command=measure_again_command(measurement),
    )


def _find_blame(claims: Sequence[Claim], runs: Sequence[Measurement], context: JudgeContext) -> list[str]:
    has_moved = any(claim.verdict in _MOVED and claim.change is not None for claim in claims)
    return blame(runs, context.baseline, context.references) if has_moved and context.baseline is not None else []


def _find_subject_changes(baseline: Baseline | None, measurement: Measurement) -> list[str]:
    return compare_subject(baseline.fingerprint, measurement.fingerprint) if baseline is not None else []


def _collect_warnings(runs: Sequence[Measurement], baseline: Baseline | None) -> list[str]:
    current = runs[-1]
    warnings = [*current.warnings, *(text for run in runs for text in _warn_outliers(run))]
    if current.faults:
        warnings.append(f"faults were injected into this run: {', '.join(current.faults)}")
    num_devices = current.fingerprint.identity.get("num_devices")
    if not is_cpu(current.hardware) and isinstance(num_devices, int) and num_devices > 1:
        wait = current.metrics.get("wait_s_per_step")
        reason = (wait.reason if wait else None) or "no source"
        warnings.append(f"multi-GPU wait is not judged: wait_s_per_step is n/a ({reason})")
    if baseline is not None:
        warnings += compare_host(baseline.fingerprint, current.fingerprint)
    return warnings


def _warn_outliers(run: Measurement) -> list[str]:
    loops = collect_loops(run, "loop_time_s")
    return [
        f"loop {index + 1} of run {run.run_id} took {format_number(loops[index], 's')}, far from the others: "
        "it is kept, but does not widen the interval"
        for index in (find_outliers(loops) if loops else [])
    ]
