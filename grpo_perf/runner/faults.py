"""Faults asked for in GRPO_PERF_FAULT: which phase of which cell is slowed down on purpose.

update_actor:+50%@cpu-tiny/dynamic-batch,gen:+10%        PHASE:+PERCENT%[@CELL], several separated by commas
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from grpo_perf.catalog import nearest
from grpo_perf.errors import UsageError
from grpo_perf.metrics import PHASES

FAULT_ENV = "GRPO_PERF_FAULT"
EXAMPLE = f"{FAULT_ENV}='update_actor:+50%@cpu-tiny/dynamic-batch'"

_SPEC = re.compile(r"(?P<phase>\w+):\+(?P<percent>\d+(?:\.\d+)?)%(?:@(?P<cell>\S+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One slowdown."""

    phase: str
    percent: str
    """As it was written, so that the record shows it the same way."""
    cell: str | None = None
    """None: every cell."""

    @property
    def spec(self) -> str:
        """What the measured processes are told: `update_actor:+50%`."""
        return f"{self.phase}:+{self.percent}%"


def parse_faults(text: str) -> list[Fault]:
    """The faults of a GRPO_PERF_FAULT value; none of an empty one.

    Raises:
        UsageError: not PHASE:+PERCENT%[@CELL], or a phase that verl does not have.
    """
    return [_parse(spec.strip()) for spec in text.split(",") if spec.strip()]


def _parse(spec: str) -> Fault:
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise UsageError(f"{FAULT_ENV}: {spec!r} is not PHASE:+PERCENT%[@CELL]. For example: {EXAMPLE}")
    if match["phase"] not in PHASES:
        near = nearest(match["phase"], PHASES)
        hint = f"did you mean {near!r}?" if near else f"verl's phases are {', '.join(PHASES)}."
        raise UsageError(f"{FAULT_ENV}: {spec!r} names no phase of a step; {hint} For example: {EXAMPLE}")
    return Fault(phase=match["phase"], percent=match["percent"], cell=match["cell"])


def check_fault_cells(faults: Iterable[Fault], running: Sequence[str], known: Sequence[str]) -> None:
    """Refuse a fault that would touch nothing: the run would look like one that survived it.

    Args:
        running: cells that this session runs, references included.
        known: all cells of the catalogue that fit this machine.

    Raises:
        UsageError: names the nearest cell.
    """
    for fault in faults:
        if fault.cell is None or fault.cell in running:
            continue
        if fault.cell in known:
            raise UsageError(
                f"{FAULT_ENV}: {fault.cell!r} is not among the selected cells ({', '.join(running) or 'none'}). "
                f"Select it: -k {fault.cell.partition('/')[2]}"
            )
        near = nearest(fault.cell, known)
        hint = f"did you mean {near!r}?" if near else f"there are {', '.join(known) or 'none'}."
        raise UsageError(f"{FAULT_ENV}: there is no cell {fault.cell!r} here; {hint} For example: {EXAMPLE}")


def select_faults(faults: Iterable[Fault], cell: str) -> list[str]:
    """The specs that are meant for the cell."""
    return [fault.spec for fault in faults if fault.cell in (None, cell)]
