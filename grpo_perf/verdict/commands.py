"""The commands that a verdict names: what to type next for this cell on this hardware."""

from grpo_perf.types import Measurement
from grpo_perf.verdict.samples import is_cpu


def create_command(hardware: str, tier: str) -> str:
    """Measures a tier on this kind of hardware and writes its baseline, over an older one if there is one."""
    return f"{_measure_command(hardware, tier)} --perf-baseline=create"


def baseline_command(measurement: Measurement) -> str:
    """Measures the cell's tier and writes its baseline, over an older one if there is one."""
    return create_command(measurement.hardware, measurement.tier)


def budget_command(measurement: Measurement) -> str:
    """Measures the cell's tier with time for further runs, so that an inconclusive claim can be decided."""
    return f"{measure_again_command(measurement)} --perf-budget-min 60"


def measure_again_command(measurement: Measurement) -> str:
    """Measures the cell's tier again."""
    return _measure_command(measurement.hardware, measurement.tier)


def judge_command(measurement: Measurement) -> str:
    """Judges the recorded run again, nothing is measured; runs are in `runs/` unless another folder was given."""
    return f"grpo-perf judge runs/{measurement.run_id}"


def _measure_command(hardware: str, tier: str) -> str:
    # On CPU the whole environment (verl and the platform plug-in) comes from the script.
    start = "bash ci/perf.sh" if is_cpu(hardware) else "pytest perf_tests -m gpu"
    return f"{start} -k {tier}"
