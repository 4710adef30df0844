"""A verdict from a run folder alone: the same function for the session that ran it and for `grpo-perf judge`."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from grpo_perf.baseline import baseline_path, load_baseline
from grpo_perf.errors import RecordError
from grpo_perf.record import RunMeta, RunRecord, load_meta, load_run, save_meta, save_verdict
from grpo_perf.timeline import measure
from grpo_perf.types import CellVerdict, Claim, JudgeContext, Measurement, Verdict
from grpo_perf.verdict import judge


def measure_folder(path: Path) -> tuple[RunRecord, Measurement]:
    """The record of a run folder and everything that can be measured from it.

    Raises:
        RecordError: no run folder, truncated, or of another schema version.
    """
    try:
        record = load_run(path)
    except (OSError, TypeError, KeyError) as error:
        # Lines of another program's spans.jsonl have other fields; a folder may be unreadable.
        raise RecordError(
            f"{path} cannot be read as a run folder: {error}. List the runs there are: ls runs/"
        ) from error
    return record, measure(record)


def judge_folder(path: Path, baselines_dir: Path | None = None) -> CellVerdict:
    """The verdict on a run, by the tier, targets, baseline and references that its run.json keeps.

    Args:
        baselines_dir: judge by the cell's baseline of this folder instead of the kept one.

    Raises:
        RecordError: no run folder, truncated, or of another schema version.
        BaselineError: a baseline that cannot be read.
    """
    record, measurement = measure_folder(path)
    meta, context = record.meta, record.meta.context
    if baselines_dir is not None:
        names = (meta.hardware.key, meta.workload.name, meta.tier.name)
        context = replace(
            context,
            baseline=load_baseline(baselines_dir, *names),
            baseline_path=str(baseline_path(baselines_dir, *names)),
        )
    return judge_measurement(meta, measurement, context)


def judge_measurement(meta: RunMeta, measurement: Measurement, context: JudgeContext) -> CellVerdict:
    """The verdict on a measured run in the given context."""
    return judge(measurement, tier=meta.tier, targets=meta.targets, context=context)


def conclude(path: Path, context: JudgeContext) -> CellVerdict:
    """Write the context into run.json and the verdict beside it, then give the verdict."""
    save_meta(path, replace(load_meta(path), context=context))
    verdict = judge_folder(path)
    save_verdict(path, verdict)
    return verdict


def refuse(*, cell: str, hardware: str, claims: Iterable[str], message: str) -> CellVerdict:
    """INVALID on every claim, for a cell that left no record to judge."""
    invalid = [Claim(metric=name, verdict=Verdict.INVALID, message=message) for name in claims]
    return CellVerdict(cell=cell, hardware=hardware, verdict=Verdict.INVALID, claims=invalid, run_ids=[])


def cell_name(meta: RunMeta) -> str:
    """`workload/tier` of a run."""
    return f"{meta.workload.name}/{meta.tier.name}"


def wall_s(meta: RunMeta) -> float | None:
    """Seconds from launch to end, None for a run that never ended by itself."""
    if meta.launched_ns is None or meta.ended_ns is None:
        return None
    return (meta.ended_ns - meta.launched_ns) / 1e9
