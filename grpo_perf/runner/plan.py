"""What a session is about to do: cells, runs, expected minutes. Printed before anything starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tabulate import tabulate

from grpo_perf.engine import find_runs
from grpo_perf.runner.cells import CellSpec
from grpo_perf.runner.judging import cell_name, wall_s
from grpo_perf.runner.options import RunnerOptions
from grpo_perf.runner.subject import Subject
from grpo_perf.types import Device
from grpo_perf.units import NA

DEFAULT_RUN_S: dict[Device, float] = {"cpu": 145.0, "gpu": 480.0}
"""Seconds of one run where none of its cell is in runs/: 125 to 175 s were seen for cpu-tiny on two shared cores; on
one H200 200 to 280 s of start-up and some steps of 5 s to 50 s (docs/h200.md)."""

Role = Literal["measured", "reference", "replayed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCell:
    """One row of the plan."""

    name: str
    role: Role
    num_runs: int
    run_s: float
    """Expected seconds of one run; 0 where nothing is run."""
    source: str
    """Where the expectation comes from."""
    faults: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a person wants to know before they wait."""

    subject: Subject
    hardware: str
    cells: list[PlannedCell]
    remarks: list[str]

    @property
    def expected_min(self) -> float:
        """Minutes, further runs of inconclusive cells not counted."""
        return sum(cell.num_runs * cell.run_s for cell in self.cells) / 60


def make_plan(
    options: RunnerOptions,
    subject: Subject,
    selected: Sequence[CellSpec],
    faults: Mapping[str, list[str]],
    remarks: Sequence[str] = (),
) -> Plan:
    """The plan of a session that measures the selected cells.

    Args:
        faults: cell name -> specs, of every cell that runs.
    """
    names = [spec.name for spec in selected]
    seen = {} if options.stored else last_run_s(options.runs_dir)
    cells: dict[str, PlannedCell] = {}
    for spec in selected:
        if spec.reference and spec.reference not in names:
            role: Role = "reference"
            cells.setdefault(spec.reference, _plan_cell(options, spec.reference, spec.device, role, seen, faults))
        role = "replayed" if spec.name in options.stored else "measured"
        cells[spec.name] = _plan_cell(options, spec.name, spec.device, role, seen, faults)
    return Plan(
        subject=subject,
        hardware=_describe_hardware(options, selected),
        cells=list(cells.values()),
        remarks=[*subject.remarks, *remarks],
    )


def last_run_s(runs_dir: Path) -> dict[str, float]:
    """Cell name -> wall seconds of its last complete run in the folder."""
    if not runs_dir.is_dir():
        return {}
    found: dict[str, float] = {}
    for _, meta in find_runs(runs_dir):
        duration_s = wall_s(meta)
        if meta.status == "complete" and duration_s is not None:
            found[cell_name(meta)] = duration_s
    return found


def render_plan(plan: Plan) -> list[str]:
    """Lines for a terminal or a log."""
    rows = [
        (cell.name, _describe_role(cell), cell.num_runs, f"{cell.run_s / 60:.1f}" if cell.num_runs else NA, cell.source)
        for cell in plan.cells
    ]
    table = tabulate(rows, headers=("cell", "role", "runs", "min each", "expected from"), disable_numparse=True)
    num_runs = sum(cell.num_runs for cell in plan.cells)
    return [
        f"verl under test: {plan.subject.title}",
        *[f"note: {remark}" for remark in plan.remarks],
        f"plan: {_count(len(plan.cells), 'cell')} on {plan.hardware}, {_count(num_runs, 'run')}, "
        f"about {plan.expected_min:.0f} min",
        *[f"  {line}" for line in table.splitlines()],
    ]


def _plan_cell(
    options: RunnerOptions,
    name: str,
    device: Device,
    role: Role,
    seen: Mapping[str, float],
    faults: Mapping[str, list[str]],
) -> PlannedCell:
    if role == "replayed":
        source = str(options.stored[name])
        return PlannedCell(name=name, role=role, num_runs=0, run_s=0.0, source=source, faults=[])
    return PlannedCell(
        name=name,
        role=role,
        num_runs=options.num_create_runs if options.baseline_mode == "create" else 1,
        run_s=seen.get(name, DEFAULT_RUN_S[device]),
        source="its last run" if name in seen else f"default of {device}",
        faults=faults.get(name, []),
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _describe_role(cell: PlannedCell) -> str:
    return f"{cell.role}, FAULT {' '.join(cell.faults)}" if cell.faults else cell.role


def _describe_hardware(options: RunnerOptions, selected: Sequence[CellSpec]) -> str:
    if options.stored:
        return "stored runs"
    return ", ".join(sorted({options.hardware_for(spec.device).key for spec in selected})) or options.hardware.key
