"""Known loads of a real H200, compared again from what was recorded; a run with every other step unwatched."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from grpo_perf.campaigns import LoadResult, compare_known_loads, measure_overhead
from grpo_perf.errors import RecordError
from grpo_perf.record import RunRecord
from tests.builders import make_record

DATA = Path(__file__).parents[1] / "data" / "h200_known_loads"


@pytest.fixture(scope="module")
def known_loads() -> dict[str, LoadResult]:
    return {result.load: result for result in compare_known_loads(DATA)}


@pytest.mark.parametrize("period_ms", [10, 100])
@pytest.mark.parametrize("percent", [5, 25, 50, 75, 95])
def test_busy_is_the_duty_of_the_kernels(known_loads: dict[str, LoadResult], percent: int, period_ms: int) -> None:
    result = known_loads[f"duty:{percent}:{period_ms}"]
    assert result.kernels.known == pytest.approx(percent / 100, abs=0.004)
    assert abs(result.kernels.error) < 0.004
    assert result.kernels.num_rows > 30
    assert result.clock_error_s < 1e-4


def test_nodes_of_a_graph_count(known_loads: dict[str, LoadResult]) -> None:
    assert abs(known_loads["graph:50:10"].kernels.error) < 0.004


def test_copies_from_the_host_are_idle_and_nvml_calls_them_utilization(known_loads: dict[str, LoadResult]) -> None:
    result = known_loads["h2d:50:100"]
    assert result.kernels.measured < 0.001
    assert result.both.known == pytest.approx(0.486, abs=0.001)
    assert result.nvml == pytest.approx(0.49, abs=0.01)


@pytest.mark.parametrize("load", ["d2d:50:10", "memset:50:10"])
def test_copies_within_the_gpu_are_busy(known_loads: dict[str, LoadResult], load: str) -> None:
    assert abs(known_loads[load].both.error) < 0.004


def test_taking_turns_every_few_ms_counts_as_busy(known_loads: dict[str, LoadResult]) -> None:
    error = known_loads["duty:30:10 in 2 processes"].kernels.error
    assert 0.01 < error < 0.02


def unwatch(record: RunRecord, steps: set[int]) -> RunRecord:
    """The record without any span but `step` in the steps of these indices."""
    bounds = [span for span in record.spans if span.name == "step"]
    hidden = [(bounds[index].t0_ns, bounds[index].t1_ns) for index in steps]
    spans = [
        span
        for span in record.spans
        if span.name == "step" or not any(t0_ns <= span.t0_ns < t1_ns for t0_ns, t1_ns in hidden)
    ]
    return replace(record, spans=spans)


def test_overhead_compares_watched_with_unwatched_loops() -> None:
    lengths = [1.0, 1.02, 1.0, 1.0, 1.02, 1.02, 1.0, 1.0, 1.02, 1.0]
    record = make_record(loops=len(lengths) - 2, phases={"gen": lengths}, unaccounted_s=0.0, gap_s=0.0)
    found = measure_overhead(unwatch(record, {2, 3, 6, 7}))
    assert np.allclose(found.watched_s, 1.02)
    assert np.allclose(found.unwatched_s, 1.0)
    assert found.change.point == pytest.approx(0.02)


def test_a_run_that_was_watched_throughout_has_no_overhead() -> None:
    with pytest.raises(RecordError, match=r"0 unwatched steady loops.*--perf-steps"):
        measure_overhead(make_record())
