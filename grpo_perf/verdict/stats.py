"""Medians, robust spreads, and an interval for a change that respects runs.

    baseline  run 1 │ 10 11 10 11 │    candidate  run 1 │ 13 14 13 14 │
              run 2 │ 11 10 11 10 │

    4,000 times: draw runs with replacement, then loops inside each drawn run     (cluster bootstrap)
                 change = value(candidate draw) / value(baseline draw) - 1

            [·····99 % of the changes·····]
    ──┼──────────┼───────────────┼──────────────► change
      0        limit           point

Loops of one run share its luck (placement, clocks, neighbours), so loops of several runs are never thrown together.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpo_perf.metrics import Aggregation

Runs = Sequence[Sequence[float]]
"""One row a run, one value a loop."""
Draws = NDArray[np.float64]

CONFIDENCE = 0.99
NUM_DRAWS = 4000
_SEED = 20260101  # any constant: the same record must give the same verdict everywhere
_MAD_TO_SIGMA = 1.4826  # 1 / Phi^-1(3/4): MAD of a normal sample -> its standard deviation
_OUTLIER_SPREADS = 5.0
_OUTLIER_FRACTION = 0.5
_OUTLIER_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A relative change and the interval that holds it, all fractions."""

    point: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the interval's width, as a fraction."""
        return (self.high - self.low) / 2

    def reversed(self) -> "Change":
        """The same change with its sign turned: what is worse becomes positive for metrics where higher is better."""
        return Change(point=-self.point, low=-self.high, high=-self.low)


def robust_spread(values: Sequence[float]) -> float:
    """1.4826 x the median absolute deviation, in the unit of the values; 0 for one value.

    Source: Rousseeuw and Croux, Alternatives to the Median Absolute Deviation, JASA 88 (1993).
    """
    centre = statistics.median(values)
    return _MAD_TO_SIGMA * statistics.median(abs(value - centre) for value in values)


def aggregate_loops(loops: Sequence[float], aggregation: Aggregation) -> float:
    """One run's value from its loops; `none` (one value a run) falls back to the median."""
    match aggregation:
        case "max":
            return max(loops)
        case "min":
            return min(loops)
        case "mean":
            return statistics.fmean(loops)
        case _:
            return statistics.median(loops)


def summarize_runs(runs: Runs, aggregation: Aggregation) -> float:
    """Median over runs of each run's value, in the unit of the metric."""
    return statistics.median(aggregate_loops(loops, aggregation) for loops in runs)


def find_outliers(loops: Sequence[float]) -> list[int]:
    """Indices of loops that are no member of their run's distribution.

    Such a loop lies more than 5 robust deviations and more than half the median off. More than a quarter of the loops
    are a second mode (async trainers alternate between 10 s and 24 s), not outliers: none is returned then.
    """
    centre = statistics.median(loops)
    fence = max(_OUTLIER_SPREADS * robust_spread(loops), _OUTLIER_FRACTION * abs(centre))
    found = [index for index, value in enumerate(loops) if abs(value - centre) > fence]
    return found if len(found) <= _OUTLIER_SHARE * len(loops) else []


def clip_outliers(loops: Sequence[float]) -> list[float]:
    """The loops with each outlier moved to the nearest ordinary loop (winsorised).

    The median of a run does not change by this. Without it one stalled loop in five would stretch the interval of the
    median to the stall, and every verdict to INCONCLUSIVE; the gate prints each such loop as a warning.
    """
    outliers = set(find_outliers(loops))
    ordinary = [value for index, value in enumerate(loops) if index not in outliers]
    return [min(max(value, min(ordinary)), max(ordinary)) for value in loops]


def draw_values(runs: Runs, aggregation: Aggregation, rng: np.random.Generator) -> Draws:
    """NUM_DRAWS values of `summarize_runs` under the cluster bootstrap, in the unit of the metric."""
    num_runs = len(runs)
    chosen = rng.integers(num_runs, size=(num_runs, NUM_DRAWS))
    drawn = np.empty((num_runs, NUM_DRAWS))
    for slot in range(num_runs):
        # Each slot draws its own loops of every run: a run drawn twice is not the same run twice.
        per_run = np.stack([_draw_run(loops, aggregation, rng) for loops in runs])
        drawn[slot] = per_run[chosen[slot], np.arange(NUM_DRAWS)]
    return np.asarray(np.median(drawn, axis=0), dtype=np.float64)


def _draw_run(loops: Sequence[float], aggregation: Aggregation, rng: np.random.Generator) -> Draws:
    values = np.asarray(clip_outliers(loops) if aggregation == "median" else loops, dtype=np.float64)
    picked = values[rng.integers(len(values), size=(NUM_DRAWS, len(values)))]
    match aggregation:
        case "max":
            return np.asarray(picked.max(axis=1))
        case "min":
            return np.asarray(picked.min(axis=1))
        case "mean":
            return np.asarray(picked.mean(axis=1))
        case _:
            return np.asarray(np.median(picked, axis=1), dtype=np.float64)


def compare_runs(candidate: Runs, baseline: Runs, aggregation: Aggregation) -> Change | None:
    """candidate / baseline - 1 with its 99 % interval; None where the baseline can be 0."""
    rng = np.random.default_rng(_SEED)
    above, below = draw_values(candidate, aggregation, rng), draw_values(baseline, aggregation, rng)
    point = _divide(summarize_runs(candidate, aggregation), summarize_runs(baseline, aggregation))
    return _enclose(point, above, below)


def compare_ratios(
    candidate: Runs,
    reference: Runs,
    ratios: Runs,
    ratio_spread: float,
    aggregation: Aggregation,
) -> Change | None:
    """(candidate / reference) / baseline ratio - 1 with its 99 % interval; None where a divisor can be 0.

    Args:
        candidate: runs of the judged cell.
        reference: runs of its base cell in the same session.
        ratios: the baseline's samples, runs x 1.
        ratio_spread: robust deviation of the ratio inside a session. Stands in for run-to-run scatter where the
            baseline has one run only, so that a single ratio is not taken as exact.
    """
    rng = np.random.default_rng(_SEED)
    above = draw_values(candidate, aggregation, rng)
    below = draw_values(reference, aggregation, rng) * draw_values(ratios, "median", rng)
    ratio = summarize_runs(ratios, "median")
    if len(ratios) == 1 and ratio > 0:
        below = below * np.exp(rng.normal(0.0, ratio_spread / ratio, NUM_DRAWS))
    point = _divide(summarize_runs(candidate, aggregation), summarize_runs(reference, aggregation) * ratio)
    return _enclose(point, above, below)


def spread_of_ratio(candidate: Runs, reference: Runs, aggregation: Aggregation) -> float:
    """Robust deviation of candidate / reference under the cluster bootstrap: what scattering loops do to the ratio."""
    rng = np.random.default_rng(_SEED)
    above, below = draw_values(candidate, aggregation, rng), draw_values(reference, aggregation, rng)
    return robust_spread([float(value) for value in above / below])


def _divide(above: float, below: float) -> float | None:
    return above / below if below > 0 else None


def _enclose(ratio: float | None, above: Draws, below: Draws) -> Change | None:
    if ratio is None or not bool((below > 0).all()):
        return None
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(above / below, [tail, 1 - tail])
    return Change(point=ratio - 1, low=float(low) - 1, high=float(high) - 1)
