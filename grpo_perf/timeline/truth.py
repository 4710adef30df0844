"""Sampled activity against intervals that are known from elsewhere: kernels' own stamps, or a profiler's trace.

    known       ███   ████    █████     ███        kernels
    rows      |    |    |    |    |    |           each says: busy for this share
    within       [          ]   [       ]          only rows wholly inside one of these count
    kept           |    |         |    |

Per kept row: error = busy said - busy known. Rows are weighted by their length.
"""

from dataclasses import dataclass

import numpy as np

from grpo_perf.timeline.intervals import Intervals, Sampled, Times, Values, cumulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far samples and known intervals agree; fractions of time."""

    num_rows: int
    seconds: float
    """Length of the rows that were compared."""
    known: float
    measured: float
    row_error: float
    """Root mean square of single rows: how exact one sample is."""

    @property
    def error(self) -> float:
        """Measured minus known, over all rows."""
        return self.measured - self.known


def compare(sampled: Sampled, known: Intervals, *, starts_ns: Times, ends_ns: Times) -> Agreement | None:
    """Agreement over the rows wholly inside one of the windows [start, end); None where there is no such row.

    Args:
        starts_ns: of the windows, sorted; windows may touch, and a row over two of them is left out.
        ends_ns: of the same windows.
    """
    window = np.searchsorted(starts_ns, sampled.starts_ns, side="right") - 1
    kept = (window >= 0) & (sampled.ends_ns <= ends_ns[np.maximum(window, 0)])
    if not kept.any():
        return None
    lengths = (sampled.ends_ns - sampled.starts_ns)[kept]
    busy_ns = measure_overlap(known, sampled.starts_ns[kept], sampled.ends_ns[kept])
    errors = sampled.values[kept] - busy_ns / lengths
    return Agreement(
        num_rows=int(kept.sum()),
        seconds=float(lengths.sum() / 1e9),
        known=float(busy_ns.sum() / lengths.sum()),
        measured=float(np.average(sampled.values[kept], weights=lengths)),
        row_error=float(np.sqrt(np.average(errors**2, weights=lengths))),
    )


def measure_overlap(intervals: Intervals, starts_ns: Times, ends_ns: Times) -> Values:
    """Ns of each window [start, end) that lie in the intervals; windows in any order."""
    ones = Sampled(starts_ns=intervals.starts_ns, ends_ns=intervals.ends_ns, values=np.ones(len(intervals.starts_ns)))
    return np.asarray(cumulate(ones, ends_ns)[0] - cumulate(ones, starts_ns)[0], dtype=np.float64)
