"""From measurements to runs x loops.

Measurement.metrics["loop_time_s"].series ─┐
siblings' series ──────────────────────────┴─► [[10.1, 10.0, 10.2], [10.3, 10.1, 10.2]]
"""

import math
from collections.abc import Iterable, Sequence

from grpo_perf.types import Device, Measurement


def collect_loops(measurement: Measurement, metric: str) -> list[float]:
    """One run's values by loop, in the metric's unit; its one value where it has no loops, empty where it is n/a."""
    found = measurement.metrics.get(metric)
    if found is None or found.value is None:
        return []
    if found.series:
        return list(found.series)
    if metric == "epoch_time_s":
        return _scale_loops(measurement, found.value)
    return [found.value]


def _scale_loops(measurement: Measurement, epoch_time_s: float) -> list[float]:
    """The loops stretched to an epoch: it has one value a run, and scatters as the loop time that it is made of."""
    loop_time = measurement.metrics.get("loop_time_s")
    if loop_time is None or not loop_time.value or not loop_time.series:
        return [epoch_time_s]
    return [epoch_time_s * loop_time_s / loop_time.value for loop_time_s in loop_time.series]


def collect_runs(measurements: Iterable[Measurement], metric: str) -> list[list[float]]:
    """Runs x loops of a metric, without the runs in which it is n/a."""
    runs = [collect_loops(measurement, metric) for measurement in measurements]
    return [loops for loops in runs if loops]


def select_valid(measurements: Iterable[Measurement]) -> list[Measurement]:
    """The runs that can be judged."""
    return [measurement for measurement in measurements if not measurement.invalid_reasons]


def count_loops(measurements: Sequence[Measurement]) -> int:
    """Steady loops of all runs together."""
    return sum(measurement.num_loops for measurement in measurements)


def find_problem(measurement: Measurement, metric: str) -> str | None:
    """Why a metric of a run cannot be judged, None where it can."""
    found = measurement.metrics.get(metric)
    if found is None:
        return f"{metric} is n/a: the run has no source for it"
    if found.value is None:
        return f"{metric} is n/a: {found.reason or 'the run has no source for it'}"
    bad = next((value for value in (found.value, *found.series) if not math.isfinite(value)), None)
    return None if bad is None else f"{metric} is {bad}"


def find_device(hardware: str) -> Device:
    """The device class that a hardware key names."""
    return "cpu" if is_cpu(hardware) else "gpu"


def is_cpu(hardware: str) -> bool:
    """Whether a hardware key means a machine without accelerator (`cpu`, `cpu-hf`)."""
    return hardware == "cpu" or hardware.startswith("cpu-")
