"""Interval algebra on one monotonic clock, and integrals of sampled values over windows.

    a               ██████████      ██████
    b                     ████████████
    union           ██████████████████████
    intersect             ████      ██
    subtract        ██████            ████

A sampled value is constant within its row and unknown outside: a null, a NaN or a gap is uncovered time, never 0.

    rows            |0.5 |0.5 |    |1.0 |null|1.0 |
    window               [                        ]      covered 3 of 5 rows, integral 2.5, mean 0.83

Times are int64 nanoseconds: monotonic clocks pass 2**53 ns after 104 days of uptime, where floats lose whole ns.
Everything is linear in the number of intervals, plus a binary search for each query.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Times = NDArray[np.int64]
Values = NDArray[np.float64]

_FIRST_NS = np.iinfo(np.int64).min
_LAST_NS = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Intervals:
    """Half-open intervals [start, end): sorted, none empty, none overlapping or touching another."""

    starts_ns: Times
    ends_ns: Times

    @property
    def total_ns(self) -> int:
        """Total length in ns."""
        return int((self.ends_ns - self.starts_ns).sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sampled:
    """A value that is constant within each row [start, end) and unknown elsewhere; rows sorted and disjoint."""

    starts_ns: Times
    ends_ns: Times
    values: Values

    @property
    def num_rows(self) -> int:
        """Rows that carry a value."""
        return len(self.values)


def make_intervals(starts_ns: ArrayLike, ends_ns: ArrayLike) -> Intervals:
    """The union of any intervals: sorted, merged where they overlap or touch, empty ones dropped."""
    starts, ends = np.asarray(starts_ns, dtype=np.int64), np.asarray(ends_ns, dtype=np.int64)
    kept = ends > starts
    order = np.argsort(starts[kept], kind="stable")
    starts, ends = starts[kept][order], ends[kept][order]
    if not len(starts):
        return Intervals(starts_ns=starts, ends_ns=ends)
    reach = np.maximum.accumulate(ends)
    opens = np.concatenate(([True], starts[1:] > reach[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return Intervals(starts_ns=starts[opens], ends_ns=reach[closes])


def union(a: Intervals, b: Intervals) -> Intervals:
    """Time that lies in either."""
    return make_intervals(np.concatenate((a.starts_ns, b.starts_ns)), np.concatenate((a.ends_ns, b.ends_ns)))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Time that lies in both."""
    first = np.searchsorted(b.ends_ns, a.starts_ns, side="right")
    num_met = np.searchsorted(b.starts_ns, a.ends_ns, side="left") - first
    of_a = np.repeat(np.arange(len(a.starts_ns)), num_met)
    within = np.arange(len(of_a)) - np.repeat(np.cumsum(num_met) - num_met, num_met)
    of_b = first[of_a] + within
    return Intervals(
        starts_ns=np.maximum(a.starts_ns[of_a], b.starts_ns[of_b]),
        ends_ns=np.minimum(a.ends_ns[of_a], b.ends_ns[of_b]),
    )


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Time that lies in `a` and not in `b`."""
    outside = make_intervals(np.concatenate(([_FIRST_NS], b.ends_ns)), np.concatenate((b.starts_ns, [_LAST_NS])))
    return intersect(a, outside)


def make_sampled(starts_ns: Times, ends_ns: Times, values: Values) -> Sampled:
    """A sampled value from rows in any order: rows without a finite value or length are dropped.

    Where two rows overlap (clock stamps taken around a call may), the earlier one keeps the time.
    """
    kept = np.isfinite(values) & (ends_ns > starts_ns)
    if not kept.all():
        starts_ns, ends_ns, values = starts_ns[kept], ends_ns[kept], values[kept]
    if np.any(starts_ns[1:] < ends_ns[:-1]):
        order = np.argsort(starts_ns, kind="stable")
        starts_ns, ends_ns, values = starts_ns[order], ends_ns[order], values[order]
        reach_ns = np.maximum.accumulate(ends_ns)
        starts_ns = np.concatenate((starts_ns[:1], np.maximum(starts_ns[1:], reach_ns[:-1])))
        kept = ends_ns > starts_ns
        starts_ns, ends_ns, values = starts_ns[kept], ends_ns[kept], values[kept]
    return Sampled(starts_ns=starts_ns, ends_ns=ends_ns, values=values)


def cumulate(sampled: Sampled, times_ns: Times) -> tuple[Times, Values]:
    """Covered ns, and value x ns, from the beginning up to each time."""
    if not sampled.num_rows:
        return np.zeros(len(times_ns), dtype=np.int64), np.zeros(len(times_ns))
    lengths = sampled.ends_ns - sampled.starts_ns
    covered = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    integral = np.concatenate(([0.0], np.cumsum(lengths * sampled.values)[:-1]))
    row = np.maximum(np.searchsorted(sampled.starts_ns, times_ns, side="right") - 1, 0)
    into = np.clip(times_ns - sampled.starts_ns[row], 0, lengths[row])
    return covered[row] + into, integral[row] + into * sampled.values[row]


def integrate(sampled: Sampled, edges_ns: Times) -> tuple[Times, Values]:
    """Covered ns, and value x ns, of each window between consecutive edges."""
    covered, integral = cumulate(sampled, edges_ns)
    return np.diff(covered), np.diff(integral)


def overlap_ns(intervals: Intervals, edges_ns: Times) -> Times:
    """Ns of each window between consecutive edges that lie in the intervals."""
    ones = np.ones(len(intervals.starts_ns))
    covered, _ = integrate(Sampled(starts_ns=intervals.starts_ns, ends_ns=intervals.ends_ns, values=ones), edges_ns)
    return covered


def find_peaks(sampled: Sampled, edges_ns: Times) -> Values:
    """The largest value of the rows that overlap each window between consecutive edges; NaN where there is none."""
    first = np.searchsorted(sampled.ends_ns, edges_ns[:-1], side="right")
    after = np.searchsorted(sampled.starts_ns, edges_ns[1:], side="left")
    return np.array(
        [
            sampled.values[low:high].max() if high > low else np.nan
            for low, high in zip(first.tolist(), after.tolist(), strict=True)
        ],
        dtype=np.float64,
    )
