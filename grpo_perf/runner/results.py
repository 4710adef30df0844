"""What one session holds: the runs of a cell, and what was concluded about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_perf.record import RunMeta, RunRecord, load_run
from grpo_perf.report import CellRow
from grpo_perf.runner.judging import cell_name, wall_s
from grpo_perf.runner.plan import Role
from grpo_perf.types import CellVerdict, Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a cell in this session."""

    path: Path
    meta: RunMeta
    measurement: Measurement

    @property
    def is_valid(self) -> bool:
        """Whether it can be judged."""
        return not self.measurement.invalid_reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """What a session concluded about a cell."""

    name: str
    role: Role
    path: Path
    """The run that the verdict is about; the folder of all runs where nothing could be started."""
    measurement: Measurement | None
    verdict: CellVerdict
    wall_s: float | None = None

    def load_record(self) -> RunRecord:
        """The run as it was written.

        Raises:
            RecordError: nothing could be started, so there is none.
        """
        return load_run(self.path)

    def row(self) -> CellRow:
        """The cell's line of the summary."""
        return CellRow(
            cell=self.name,
            role=self.role,
            measurement=self.measurement,
            verdict=self.verdict,
            path=self.path,
            wall_s=self.wall_s,
        )


def choose_run(runs: Sequence[Run]) -> Run:
    """The run that a cell is judged by: the last valid one, else the last."""
    return ([run for run in runs if run.is_valid] or list(runs))[-1]


def make_result(run: Run, verdict: CellVerdict, *, is_stored: bool = False) -> CellResult:
    """The conclusion about a run; a copy of a stored run is shown as one."""
    return CellResult(
        name=cell_name(run.meta),
        role="replayed" if is_stored or run.meta.engine == "replay" else "measured",
        path=run.path,
        measurement=run.measurement,
        verdict=verdict,
        wall_s=wall_s(run.meta),
    )


def make_reference_row(runs: Sequence[Run]) -> CellRow:
    """The line of a cell that was run only because others are compared with it."""
    run = choose_run(runs)
    return CellRow(
        cell=cell_name(run.meta),
        role="reference",
        measurement=run.measurement,
        verdict=None,
        path=run.path,
        wall_s=wall_s(run.meta),
    )
