"""What is claimed of every cell. A cell is run once, at its first claim; the tests judge the record of that run.

pytest perf_tests                       everything that fits this machine
pytest perf_tests -k dynamic-batch      one tier
pytest perf_tests --perf-plan           what would run, and for how long
"""

from typing import Any

import pytest

from grpo_perf.gate import PerfGate
from grpo_perf.report import play_into_benchmark

NAMED = (
    "measurement",
    "training_health",
    "busy_fraction",
    "idle_fraction",
    "idle_s_per_step",
    "loop_time_s",
    "epoch_time_s",
    "effective_tokens_per_hour",
    "memory_used_gib",
    "phase_s/*",
    "phase_to_rest/*",
)
"""Claims that have a test of their own here."""


@pytest.mark.perf("measurement")
def test_measurement(perf_gate: PerfGate) -> None:
    """The run can be judged: it is complete, the devices were watched throughout, and the phases cover its steps."""
    perf_gate.check()


@pytest.mark.perf("training_health")
def test_training_health(perf_gate: PerfGate) -> None:
    """Speed did not cost learning: loss and gradients are finite, rollout and actor agree on the log-probs."""
    perf_gate.check()


@pytest.mark.perf("busy_fraction")
def test_busy_fraction(perf_gate: PerfGate) -> None:
    """The GPUs compute for at least the share of time that the tier promises."""
    perf_gate.check()


@pytest.mark.perf("idle_fraction")
def test_idle_fraction(perf_gate: PerfGate) -> None:
    """The GPUs stand idle for at most the share of time that the tier allows."""
    perf_gate.check()


@pytest.mark.perf("idle_s_per_step")
def test_idle_seconds(perf_gate: PerfGate) -> None:
    """A loop leaves the GPUs idle no longer than it did."""
    perf_gate.check()


@pytest.mark.perf("loop_time_s")
def test_loop_time(perf_gate: PerfGate) -> None:
    """A loop, from step to step, takes no longer than it did."""
    perf_gate.check()


@pytest.mark.perf("epoch_time_s")
def test_epoch_time(perf_gate: PerfGate) -> None:
    """An epoch takes no longer than it did."""
    perf_gate.check()


@pytest.mark.perf("effective_tokens_per_hour")
def test_effective_tokens_per_hour(perf_gate: PerfGate) -> None:
    """As many tokens an hour are trained on as before, padding not counted."""
    perf_gate.check()


@pytest.mark.perf("memory_used_gib")
def test_memory(perf_gate: PerfGate) -> None:
    """Memory at its peak is what it was."""
    perf_gate.check()


@pytest.mark.perf("phase_s/*", "phase_to_rest/*")
def test_phase(perf_gate: PerfGate) -> None:
    """A phase that the tier is about takes no longer than it did; on CPU, than it did beside the rest of its loop."""
    perf_gate.check()


@pytest.mark.perf("*", without=NAMED)
def test_target(perf_gate: PerfGate) -> None:
    """Every further limit that the tier sets is kept."""
    perf_gate.check()


@pytest.mark.perf
@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used")
def test_benchmark(benchmark: Any, perf_gate: PerfGate) -> None:
    """The steady loops of the run appear in pytest-benchmark's table, JSON and comparisons."""
    play_into_benchmark(benchmark, perf_gate.measurement)
