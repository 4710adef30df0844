"""The commands that a verdict names: what to type next for this cell on this hardware."""

from typing import Literal

from grpo_perf.types import Measurement
from grpo_perf.verdict.samples import is_cpu


def baseline_command(measurement: Measurement, mode: Literal["create", "refresh"]) -> str:
    """Measures the cell's tier and writes its baseline."""
    return f"{_measure_command(measurement)} --perf-baseline={mode}"


def budget_command(measurement: Measurement) -> str:
    """Measures the cell's tier with time for further runs, so that an inconclusive claim can be decided."""
    return f"{_measure_command(measurement)} --perf-budget-min 60"


def measure_again_command(measurement: Measurement) -> str:
    """Measures the cell's tier again."""
    return _measure_command(measurement)


def diagnose_command(measurement: Measurement) -> str:
    """Looks for the cause in the recorded run; runs are kept in `runs/` unless another folder was given."""
    return f"grpo-perf diagnose runs/{measurement.run_id}"


def _measure_command(measurement: Measurement) -> str:
    # On CPU the whole environment (verl and the platform plug-in) comes from the script.
    start = "bash ci/perf.sh" if is_cpu(measurement.hardware) else "pytest perf_tests -m gpu"
    return f"{start} -k {measurement.tier}"
