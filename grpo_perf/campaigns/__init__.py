"""Several runs with one question. `truth`: can the measurement itself be believed?"""

from grpo_perf.campaigns.truth import (
    SHARED_NAME,
    TRUTH_LOADS,
    LoadResult,
    Overhead,
    TracedStep,
    compare_trace,
    measure_known_loads,
    measure_overhead,
)

__all__ = [
    "SHARED_NAME",
    "TRUTH_LOADS",
    "LoadResult",
    "Overhead",
    "TracedStep",
    "compare_trace",
    "measure_known_loads",
    "measure_overhead",
]
