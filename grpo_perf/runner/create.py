"""Writes the baseline of a cell from the runs of a session."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from grpo_perf.baseline import make_baseline, save_baseline
from grpo_perf.errors import BaselineError
from grpo_perf.record import RunMeta
from grpo_perf.runner.judging import cell_name
from grpo_perf.types import Measurement, Provenance

GIT_LIMIT_S = 10.0


def create_baseline(
    root: Path, meta: RunMeta, measurements: Sequence[Measurement], references: Sequence[Measurement]
) -> tuple[str, bool]:
    """A line that says what was written or why not, and whether it was.

    Args:
        meta: of one of the runs: tier, hardware and workload are those of all.
    """
    name = cell_name(meta)
    if meta.workload.device == "cpu" and meta.tier.builds_on is None:
        return f"{name}: no baseline needed, on CPU only ratios to a base tier are kept", False
    provenance = Provenance(
        run_ids=[measurement.run_id for measurement in measurements],
        commit=read_commit(root),
        created_unix_s=time.time(),
        reason="--perf-baseline=create",
    )
    try:
        baseline = make_baseline(
            measurements,
            tier=meta.tier,
            references=references,
            num_warmup_steps=meta.workload.num_warmup_steps,
            provenance=provenance,
        )
        path = save_baseline(root, baseline)
    except (BaselineError, OSError) as error:
        return f"{name}: no baseline written: {error}", False
    return f"{name}: baseline written, not gated: {path}. Look at it: git diff {path}", True


def read_commit(folder: Path) -> str | None:
    """The commit checked out around the folder, None outside a repository or without git."""
    here = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    try:
        done = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=GIT_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
