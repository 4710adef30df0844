"""The summary of a session: a row a cell, and below it what is not PASS, why, and what to type next.

cell                 loop s   tokens/h    busy    idle  idle s/step in   baseline  change                  verdict
1.5b/dynamic-batch     17.9  1,630,000  45.1 %  54.9 %  gen 4.4            13.7 s  +31.0 % [+27.1, +35.2]  REGRESSED
"""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tabulate import tabulate

from grpo_perf.metrics import phase_of
from grpo_perf.types import CellVerdict, Claim, Measurement, Verdict
from grpo_perf.units import NA, format_number, format_percent
from grpo_perf.verdict.samples import is_cpu

Role = Literal["measured", "reference", "replayed"]

WIDTH = 140
_HEADERS = ("cell", "loop s", "tokens/h", "busy", "idle", "idle s/step in", "baseline", "change", "verdict")
_CAPS = (7, 11, 9, 9, 24, 9, 24, 12)
"""Columns but the first; that one has what they leave of the width, 19 columns at the least."""
_BLANKS = 2
"""Between columns; tabulate also keeps a column that much wider than its header (MIN_PADDING)."""
_INDENT = "  "
_CHANGE_OF = "loop_time_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRow:
    """One line of the summary."""

    cell: str
    """`workload/tier`."""
    role: Role
    """`reference`: only the base of a ratio, not judged; `replayed`: judged from a stored run."""
    measurement: Measurement | None
    verdict: CellVerdict | None
    path: Path
    """The run folder."""
    wall_s: float | None
    """What the cell cost, start-up included."""


def render_summary(rows: Sequence[CellRow]) -> list[str]:
    """Lines for the terminal, at most 140 columns wide except for commands, which stay in one piece."""
    if not rows:
        return ["no cell was measured"]
    lines = _render_table(rows)
    if any(row.role == "replayed" for row in rows):
        lines.append("* judged from a stored run")
    for row in rows:
        lines += _render_details(row)
    return [*lines, *_render_wall(rows)]


def _render_table(rows: Sequence[CellRow]) -> list[str]:
    cells = [_make_row(row) for row in rows]
    rest = [[_clip(text, cap) for text, cap in zip(row[1:], _CAPS, strict=True)] for row in cells]
    padded = [header + " " * _BLANKS for header in _HEADERS[1:]]
    used = sum(_BLANKS + max(map(len, column)) for column in zip(padded, *rest, strict=True))
    table = [[_clip_left(row[0], WIDTH - used), *others] for row, others in zip(cells, rest, strict=True)]
    align = ("left", "right", "right", "right", "right", "left", "right", "left", "left")
    text = tabulate(table, headers=_HEADERS, tablefmt="simple", colalign=align, disable_numparse=True)
    return [line.rstrip() for line in text.splitlines()]


def _make_row(row: CellRow) -> tuple[str, ...]:
    claim = _find_claim(row.verdict, _CHANGE_OF) if row.role != "reference" else None
    return (
        f"{row.cell} *" if row.role == "replayed" else row.cell,
        _show(row.measurement, "loop_time_s"),
        _show(row.measurement, "effective_tokens_per_hour"),
        _show_share(row.measurement, "busy_fraction"),
        _show_share(row.measurement, "idle_fraction"),
        _show_top_idle(row.measurement),
        _show_baseline(claim, row.measurement),
        _show_change(claim),
        "reference" if row.role == "reference" else row.verdict.verdict.value if row.verdict else NA,
    )


def _show(measurement: Measurement | None, metric: str) -> str:
    return format_number(measurement.value(metric)) if measurement else NA


def _show_share(measurement: Measurement | None, metric: Literal["busy_fraction", "idle_fraction"]) -> str:
    """The GPUs' share, else the host's under its own name: on CPU a GPU share is `n/a`, never a stand-in."""
    if measurement is None:
        return NA
    value = measurement.value(metric)
    if value is not None:
        return format_percent(value)
    host_busy = measurement.value("host_busy_fraction")
    if host_busy is None:
        return NA
    share = host_busy if metric == "busy_fraction" else 1 - host_busy
    return f"host {format_percent(share, digits=0)}"


def _show_top_idle(measurement: Measurement | None) -> str:
    """The phase that holds the most idle, with its seconds a step; the host's where no GPU was seen."""
    for family, prefix in (("idle_s_per_step", ""), ("host_idle_s_per_step", "host ")):
        amounts = _collect_family(measurement, family)
        if amounts:
            idle_s, phase = max(amounts)
            return f"{prefix}{phase} {format_number(idle_s)}"
    return NA


def _collect_family(measurement: Measurement | None, family: str) -> list[tuple[float, str]]:
    metrics = measurement.metrics if measurement else {}
    return [
        (metric.value, phase_of(name) or name)
        for name, metric in metrics.items()
        if name.startswith(f"{family}/") and metric.value is not None
    ]


def _find_claim(verdict: CellVerdict | None, metric: str) -> Claim | None:
    claims = verdict.claims if verdict else []
    return next((claim for claim in claims if claim.metric == metric), None)


def _show_baseline(claim: Claim | None, measurement: Measurement | None) -> str:
    """The baseline's loop time, or its ratio to the base tier on CPU."""
    if claim is None or claim.reference is None or claim.change is None:
        return NA
    is_ratio = measurement is not None and is_cpu(measurement.hardware)
    return f"x {format_number(claim.reference)}" if is_ratio else format_number(claim.reference, "s")


def _show_change(claim: Claim | None) -> str:
    if claim is None or claim.change is None:
        return NA
    change = format_percent(claim.change, signed=True)
    if claim.interval is None:
        return change
    return f"{change} [{claim.interval[0] * 100:+.1f}, {claim.interval[1] * 100:+.1f}]"


def _clip_left(text: str, width: int) -> str:
    """A cell's tier tells rows apart: its end is what must stay."""
    return text if len(text) <= width else f"…{text[len(text) - width + 1 :]}"


def _clip(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _render_details(row: CellRow) -> list[str]:
    """What a cell that is not PASS has to say; warnings and subject changes are said of every cell."""
    verdict = row.verdict
    if verdict is None or row.role == "reference":
        return []
    body = list(_list_remarks(verdict))
    if verdict.verdict is Verdict.PASS and not body:
        return []
    wrapped = [line for text in body for line in _wrap(text)]
    commands = [f"{_INDENT}next: {command}" for command in _list_commands(verdict)]
    return ["", f"{verdict.verdict.value} {row.cell} ({row.path})", *wrapped, *commands]


def _list_remarks(verdict: CellVerdict) -> Iterator[str]:
    if verdict.verdict is not Verdict.PASS:
        failing = (claim for claim in verdict.claims if claim.verdict is not Verdict.PASS)
        yield from dict.fromkeys(f"{claim.verdict.value} {claim.message}" for claim in failing)
        if verdict.blame:
            yield f"loop time by phase: {', '.join(verdict.blame)}"
    if verdict.subject_changes:
        yield f"changed since the baseline: {', '.join(verdict.subject_changes)}"
    yield from (f"warning: {text}" for text in verdict.warnings)


def _list_commands(verdict: CellVerdict) -> list[str]:
    """Next commands of the severest claims, each once."""
    claims = [claim for claim in verdict.claims if claim.verdict is verdict.verdict]
    return list(dict.fromkeys(claim.next_command for claim in claims if claim.next_command))


def _wrap(text: str) -> Iterable[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=_INDENT,
        subsequent_indent=_INDENT * 2,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _render_wall(rows: Sequence[CellRow]) -> list[str]:
    """What the session cost, in seconds by cell."""
    costs = [(row.cell, row.wall_s) for row in rows if row.wall_s is not None]
    if not costs:
        return []
    parts = ", ".join(f"{cell} {wall_s:.0f} s" for cell, wall_s in costs)
    return ["", *_wrap(f"wall time {sum(wall_s for _, wall_s in costs):.0f} s: {parts}")]
