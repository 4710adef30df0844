"""Several runs with one question. `truth`: can the measurement itself be believed?"""

from grpo_perf.campaigns.truth import (
    SHARED_LOADS,
    TRUTH_LOADS,
    LoadResult,
    Overhead,
    TracedStep,
    compare_known_loads,
    compare_trace,
    measure_known_loads,
    measure_overhead,
    name_shared,
)

__all__ = [
    "SHARED_LOADS",
    "TRUTH_LOADS",
    "LoadResult",
    "Overhead",
    "TracedStep",
    "compare_known_loads",
    "compare_trace",
    "measure_known_loads",
    "measure_overhead",
    "name_shared",
]
