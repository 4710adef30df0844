"""A baseline from finished runs: samples kept as they are, medians and spreads beside them.

GPU   run 1 │ 17.7 17.6 17.8 │          absolute: samples are runs x loops
      run 2 │ 17.9 17.7 17.7 │          median of the runs' values, spread of all loops

CPU   run 1 │ 3.1 3.0 │ / base run 1 │ 5.2 5.3 │     ratio: samples are runs x 1
      run 2 │ 3.2 3.0 │ / base run 2 │ 5.4 5.1 │     spread: what the loops' scatter does to the ratio (bootstrap)

CPU seconds scatter from machine to machine and hour to hour; the ratio to the base tier of the same session does not.
"""

import math
import statistics
from collections.abc import Iterable, Sequence

from grpo_perf.baseline.store import SCHEMA_VERSION
from grpo_perf.errors import BaselineError
from grpo_perf.metrics import REGISTRY, get_metric
from grpo_perf.types import Baseline, BaselineMetric, Measurement, Provenance, Tier
from grpo_perf.verdict.commands import baseline_command
from grpo_perf.verdict.identity import compare_identity, compare_subject
from grpo_perf.verdict.samples import collect_runs, find_problem, is_cpu
from grpo_perf.verdict.stats import Runs, robust_spread, spread_of_ratio, summarize_runs

MIN_LOOPS = 2
_STORED_FAMILIES = ("phase_s", "phase_to_rest", "idle_s_per_step")
_STORED_BESIDE = ("epoch_time_s", "busy_fraction", "idle_fraction", "host_busy_fraction")
"""Not judged against the baseline (the epoch follows the loop time), but what a reader of the file asks for."""


def make_baseline(
    measurements: Sequence[Measurement],
    *,
    tier: Tier,
    references: Sequence[Measurement],
    num_warmup_steps: int,
    provenance: Provenance,
) -> Baseline:
    """The baseline of one cell from one or more runs of it.

    Args:
        tier: the cell's; its base is what a ratio is a ratio to.
        references: runs of the base cell in the same session. With as many as there are runs, run i is divided by
            reference i; else every run by all references together.
        num_warmup_steps: steps left out of every run.
        provenance: where the runs come from.

    Raises:
        BaselineError: a run is invalid, carries an injected fault, is too short, or is of another cell, machine or
            version than the first; or a CPU cell has a base tier and no run of it.
    """
    if not measurements:
        raise BaselineError(f"No run to make a baseline of {tier.name!r} from. Measure one: grpo-perf run CELL")
    first = measurements[0]
    is_ratio = is_cpu(first.hardware) and tier.builds_on is not None
    if is_ratio and not references:
        raise BaselineError(
            f"A baseline of {_name(first)} on {first.hardware!r} is a ratio to tier {tier.builds_on!r}, and this "
            f"session has no run of that. Measure both: {baseline_command(first)}"
        )
    used = references if is_ratio else ()
    for run in (*measurements, *used):
        _check_run(run)
    _check_alike(measurements)
    _check_alike(used)
    return Baseline(
        schema_version=SCHEMA_VERSION,
        hardware=first.hardware,
        workload=first.workload,
        tier=first.tier,
        kind="ratio" if is_ratio else "absolute",
        base_tier=tier.builds_on if is_ratio else None,
        num_runs=len(measurements),
        num_warmup_steps=num_warmup_steps,
        metrics=_make_ratios(measurements, used) if is_ratio else _make_absolutes(measurements),
        fingerprint=first.fingerprint,
        provenance=provenance,
    )


def _make_absolutes(measurements: Sequence[Measurement]) -> dict[str, BaselineMetric]:
    return {name: _make_absolute(name, collect_runs(measurements, name)) for name in _list_metrics(measurements)}


def _make_absolute(name: str, runs: Runs) -> BaselineMetric:
    return BaselineMetric(
        median=summarize_runs(runs, get_metric(name).aggregation),
        spread=robust_spread([value for loops in runs for value in loops]),
        samples=[list(loops) for loops in runs],
    )


def _make_ratios(measurements: Sequence[Measurement], references: Sequence[Measurement]) -> dict[str, BaselineMetric]:
    common = set(_list_metrics(references))
    made = {
        name: _make_ratio(name, collect_runs(measurements, name), collect_runs(references, name))
        for name in _list_metrics(measurements)
        if name in common
    }
    return {name: metric for name, metric in made.items() if metric is not None}


def _make_ratio(name: str, runs: Runs, base_runs: Runs) -> BaselineMetric | None:
    """None where the base cell took no time in some loop: there is nothing to divide by then."""
    if any(value <= 0 for loops in base_runs for value in loops):
        return None
    aggregation = get_metric(name).aggregation
    bases = [[base] for base in base_runs] if len(base_runs) == len(runs) else [base_runs] * len(runs)
    ratios = [
        summarize_runs([loops], aggregation) / summarize_runs(base, aggregation)
        for loops, base in zip(runs, bases, strict=True)
    ]
    return BaselineMetric(
        median=statistics.median(ratios),
        spread=spread_of_ratio(runs, base_runs, aggregation),
        samples=[[ratio] for ratio in ratios],
    )


def _list_metrics(measurements: Iterable[Measurement]) -> list[str]:
    """Metrics worth keeping that every run has a finite value of, sorted."""
    runs = list(measurements)
    wanted = {name for name, metric in REGISTRY.items() if metric.judged} | set(_STORED_BESIDE)
    names = {name for run in runs for name in run.metrics}
    kept = {name for name in names if name in wanted or ("/" in name and name.partition("/")[0] in _STORED_FAMILIES)}
    return sorted(name for name in kept if all(find_problem(run, name) is None for run in runs))


def _check_run(run: Measurement) -> None:
    again = f"Measure again: {baseline_command(run)}"
    if run.invalid_reasons:
        raise BaselineError(f"Run {run.run_id} of {_name(run)} is invalid: {'; '.join(run.invalid_reasons)}. {again}")
    if run.faults:
        raise BaselineError(
            f"Run {run.run_id} of {_name(run)} was slowed down on purpose ({', '.join(run.faults)}) and never becomes "
            f"a baseline. Unset GRPO_PERF_FAULT. {again}"
        )
    if run.num_loops < MIN_LOOPS:
        raise BaselineError(
            f"Run {run.run_id} of {_name(run)} has {run.num_loops} steady loop(s); a baseline needs {MIN_LOOPS}. "
            f"Record more steps (num_steady_steps in the workload). {again}"
        )
    value = run.value("loop_time_s")
    if value is None or not math.isfinite(value) or value <= 0:
        raise BaselineError(f"Run {run.run_id} of {_name(run)} has no loop time. {again}")


def _check_alike(runs: Sequence[Measurement]) -> None:
    """All runs of one side are of one cell, one machine and one set of versions."""
    for run in runs[1:]:
        first = runs[0]
        if (run.workload, run.tier, run.hardware) != (first.workload, first.tier, first.hardware):
            raise BaselineError(
                f"Runs {first.run_id} ({_name(first)} on {first.hardware}) and {run.run_id} ({_name(run)} on "
                f"{run.hardware}) are of different cells: make one baseline of each"
            )
        differences = compare_identity(first.fingerprint, run.fingerprint)
        differences += compare_subject(first.fingerprint, run.fingerprint)
        if differences:
            raise BaselineError(
                f"Runs {first.run_id} and {run.run_id} of {_name(run)} differ: {', '.join(differences)}. A baseline is "
                f"of one environment; measure again: {baseline_command(run)}"
            )


def _name(run: Measurement) -> str:
    return f"{run.workload}/{run.tier}"
