"""A finished run as rounds of pytest-benchmark, so that its table, JSON, storage and comparison work on our loops.

record   loop_time_s  17.7   17.6   17.8
clock    0 17.7  0 17.6  0 17.8              two readings a round: 0, then the loop's time
rounds   17.7         17.6   17.8            end - start = the recorded number, to the last bit

Only the clock is ours. `benchmark.pedantic` reads it right before and right after each round, once each, and neither
calibrates nor measures the timer's precision. Source: pytest-benchmark 5.3.1, BenchmarkFixture._make_runner and
_raw_pedantic.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from grpo_perf.types import Measurement


def play_into_benchmark(benchmark: Any, measurement: Measurement) -> None:
    """Play the steady loops of a run into a `benchmark` fixture: one round a loop, in seconds.

    A run without loops gives no round; `extra_info` says why.
    """
    found = measurement.metrics.get("loop_time_s")
    loops = found.series if found is not None and found.value is not None else []
    benchmark.extra_info.update(describe_run(measurement))
    if not loops:
        # A fixture that no mode was set on is warned about as unused; there is nothing to play, and that is said above.
        benchmark._mode = "play_into_benchmark"
        return
    benchmark._timer = make_clock(loops)
    benchmark.pedantic(_do_nothing, rounds=len(loops), iterations=1, warmup_rounds=0)


def describe_run(measurement: Measurement) -> dict[str, Any]:
    """Everything else that is known about the run, for `extra_info`: plain JSON, None for what was not measured."""
    return {
        "run_id": measurement.run_id,
        "cell": f"{measurement.workload}/{measurement.tier}",
        "hardware": measurement.hardware,
        "num_loops": measurement.num_loops,
        "invalid_reasons": list(measurement.invalid_reasons),
        "faults": list(measurement.faults),
        "metrics": {name: metric.value for name, metric in sorted(measurement.metrics.items())},
    }


def make_clock(loops: Sequence[float]) -> Callable[[], float]:
    """A timer that reads 0 at the start of each round and the loop's time at its end, in seconds."""
    readings = _read(loops)

    def record_clock() -> float:
        return next(readings)

    return record_clock


def _read(loops: Sequence[float]) -> Iterator[float]:
    for loop_s in loops:
        yield 0.0
        yield loop_s


def _do_nothing() -> None:
    """The target of a round: the work was done when the run was recorded."""
