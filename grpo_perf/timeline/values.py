"""How loops become one value: the aggregation that the registry names, None with a reason where it cannot be."""

import math
import statistics
from collections.abc import Sequence

import numpy as np

from grpo_perf.metrics import get_metric
from grpo_perf.types import MetricValue

NO_GPU = "no GPU in this run"


def missing(reason: str) -> MetricValue:
    """A metric that could not be measured."""
    return MetricValue(value=None, reason=reason)


def single(value: float) -> MetricValue:
    """A metric of the whole run."""
    return MetricValue(value=float(value)) if math.isfinite(value) else missing(f"the value is {value}")


def aggregate(name: str, series: Sequence[float], *, value: float | None = None) -> MetricValue:
    """A metric with one value a loop, made one value by the registry's aggregation.

    Args:
        name: the metric, or a member of its family.
        series: one value a loop (a step for what verl logs by step), all finite.
        value: given where the aggregate is more exact than that of the series (a mean weighted by overlap).
    """
    numbers = [float(number) for number in series]
    if not numbers:
        return missing("no steady loop")
    bad = next((index for index, number in enumerate(numbers) if not math.isfinite(number)), None)
    if bad is not None:
        return missing(f"it could not be measured in steady loop {bad + 1}")
    return MetricValue(value=_reduce(name, numbers) if value is None else float(value), series=numbers)


def _reduce(name: str, numbers: list[float]) -> float:
    match get_metric(name).aggregation:
        case "median":
            return statistics.median(numbers)
        case "mean":
            return float(np.mean(numbers))
        case "max":
            return max(numbers)
        case "min":
            return min(numbers)
        case "none":
            raise ValueError(f"{name} is one value of the whole run; it has no series to aggregate")
