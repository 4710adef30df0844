"""The trainer's lane cut so that each instant belongs to its innermost span.

    step          ├──────────────────────────────┤                ├────────
    spans           ├─gen─┤ ├ref┤ ├update_actor┤    ├─logging─┤     ├─gen
                              ├offload┤
    owner   gap   u  gen   u ref off  update    u gap logging  gap u gen
                  └─────────────────── loop ──────────────────────┘

`u` is `unaccounted`: time inside `step` that no other span covers. `gap` is time in no span at all. So in each loop
the spans' own times + gap + unaccounted = loop, exactly, in whole nanoseconds. (The metric `gap_s` is wider: all loop
time outside `step`, marks such as `logging` included.)

Shapes: L loops, P phases (span names, `unaccounted`, `gap`), S segments.
"""
# ruff: noqa: N802  (shapes as suffixes)

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from grpo_perf.metrics import MARKED, PHASES
from grpo_perf.record import Span
from grpo_perf.timeline.intervals import Times
from grpo_perf.units import NS_PER_S

STEP = "step"
GAP = "gap"
UNACCOUNTED = "unaccounted"
TRAINER = "trainer"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Partition:
    """Contiguous segments that fill the loops, each owned by one phase."""

    edges_ns: Times
    """S + 1 times; segment s is [edges[s], edges[s + 1])."""
    phase_of_segment: NDArray[np.intp]
    loop_of_segment: NDArray[np.intp]
    loop_edges_ns: Times
    """L + 1 times."""
    phases: tuple[str, ...]
    """In the order of a step: verl's phases, marks, unknown names, `unaccounted`, `gap`; only those that occur."""

    @property
    def num_loops(self) -> int:
        """Loops that the segments fill."""
        return max(0, len(self.loop_edges_ns) - 1)

    @property
    def length_ns_LP(self) -> Times:
        """Own time of each phase in each loop."""
        return self.sum_LP(np.diff(self.edges_ns)).astype(np.int64)

    def sum_LP(self, per_segment: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
        """A quantity of the segments added up by loop and phase (exact for whole numbers below 2**53)."""
        shape = (self.num_loops, len(self.phases))
        cell = self.loop_of_segment * shape[1] + self.phase_of_segment
        sums = np.bincount(cell, weights=per_segment, minlength=shape[0] * shape[1])
        return np.asarray(sums, dtype=np.float64).reshape(shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Two spans of one thread of which neither contains the other: nesting is broken there."""

    lane: str
    outer: Span
    inner: Span

    @property
    def overlap_s(self) -> float:
        """Length of the part they share, in seconds."""
        return (self.outer.t1_ns - self.inner.t0_ns) / NS_PER_S


def nest(spans: Iterable[Span]) -> list[Span]:
    """Spans sorted so that a span comes after those that contain it."""
    return sorted(spans, key=lambda span: (span.t0_ns, -span.t1_ns))


def cut_partition(spans: Iterable[Span], loop_edges_ns: Times) -> Partition:
    """Each instant of the loops given to the innermost of the trainer's spans.

    A span that outlives the one it started in is cut at that one's end (find_crossings reports it).
    """
    if len(loop_edges_ns) < 2:
        return _empty_partition()
    times, owners = _sweep(nest(spans), before_ns=int(loop_edges_ns[0]))
    change_ns = np.array(times, dtype=np.int64)
    inside = np.clip(change_ns, loop_edges_ns[0], loop_edges_ns[-1])
    edges = np.union1d(inside, loop_edges_ns)
    # Of changes at the same instant the last one holds, hence side="right".
    owner = np.array(owners, dtype=object)[np.searchsorted(change_ns, edges[:-1], side="right") - 1]
    phases = order_phases(set(owner))
    index = {name: number for number, name in enumerate(phases)}
    return Partition(
        edges_ns=edges,
        phase_of_segment=np.array([index[name] for name in owner], dtype=np.intp),
        loop_of_segment=np.searchsorted(loop_edges_ns, edges[:-1], side="right") - 1,
        loop_edges_ns=loop_edges_ns,
        phases=phases,
    )


def order_phases(names: Iterable[str]) -> tuple[str, ...]:
    """Names in the order of a step; unknown ones by name after the known, `unaccounted` and `gap` last."""
    known = (*PHASES, *MARKED)
    rank = {name: number for number, name in enumerate(known)}
    rank |= {UNACCOUNTED: len(known) + 1, GAP: len(known) + 2}
    return tuple(sorted(names, key=lambda name: (rank.get(name, len(known)), name)))


def find_crossings(spans: Iterable[Span]) -> list[Crossing]:
    """Partial overlaps on the `trainer` and `rank<k>` lanes, by thread.

    Rollout and reward lanes hold concurrent requests of one event loop, which may overlap.
    """
    threads = [span for span in spans if span.lane == TRAINER or span.lane.startswith("rank")]
    threads.sort(key=lambda span: (span.lane, span.pid, span.tid, span.t0_ns, -span.t1_ns))
    crossings: list[Crossing] = []
    for _, of_thread in groupby(threads, key=lambda span: (span.lane, span.pid, span.tid)):
        open_spans: list[Span] = []
        for span in of_thread:
            while open_spans and open_spans[-1].t1_ns <= span.t0_ns:
                open_spans.pop()
            if open_spans and span.t1_ns > open_spans[-1].t1_ns:
                crossings.append(Crossing(lane=span.lane, outer=open_spans[-1], inner=span))
            else:
                open_spans.append(span)
    return crossings


def _sweep(spans: list[Span], *, before_ns: int) -> tuple[list[int], list[str]]:
    """Times at which the innermost span changes, in order, and who owns the time from there on."""
    times, owners = [min([before_ns, *(span.t0_ns for span in spans[:1])])], [GAP]
    open_spans: list[tuple[int, str]] = []

    def close(until_ns: int | None) -> None:
        while open_spans and (until_ns is None or open_spans[-1][0] <= until_ns):
            end_ns, _ = open_spans.pop()
            times.append(end_ns)
            owners.append(open_spans[-1][1] if open_spans else GAP)

    for span in spans:
        close(span.t0_ns)
        end_ns = min(span.t1_ns, open_spans[-1][0]) if open_spans else span.t1_ns
        if end_ns <= span.t0_ns:
            continue
        owner = UNACCOUNTED if span.name == STEP else span.name
        times.append(span.t0_ns)
        owners.append(owner)
        open_spans.append((end_ns, owner))
    close(None)
    return times, owners


def _empty_partition() -> Partition:
    none = np.array([], dtype=np.int64)
    return Partition(
        edges_ns=none,
        phase_of_segment=none.astype(np.intp),
        loop_of_segment=none.astype(np.intp),
        loop_edges_ns=none,
        phases=(),
    )
