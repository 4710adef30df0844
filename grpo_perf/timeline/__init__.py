"""One record in, metrics out: clocks, intervals, idle by phase."""

from grpo_perf.timeline.health import TimingError, compare_timing
from grpo_perf.timeline.idle import Attribution, attribute
from grpo_perf.timeline.intervals import (
    Intervals,
    Sampled,
    integrate,
    intersect,
    make_intervals,
    make_sampled,
    overlap_ns,
    subtract,
    union,
)
from grpo_perf.timeline.lanes import (
    GAP,
    STEP,
    TRAINER,
    UNACCOUNTED,
    Crossing,
    Partition,
    cut_partition,
    find_crossings,
    order_phases,
)
from grpo_perf.timeline.measure import cut_loops, measure
from grpo_perf.timeline.samples import HOST, Rows, read_column, read_gpu_column, select_rows
from grpo_perf.timeline.window import Window, find_window

__all__ = [
    "GAP",
    "HOST",
    "STEP",
    "TRAINER",
    "UNACCOUNTED",
    "Attribution",
    "Crossing",
    "Intervals",
    "Partition",
    "Rows",
    "Sampled",
    "TimingError",
    "Window",
    "attribute",
    "compare_timing",
    "cut_loops",
    "cut_partition",
    "find_crossings",
    "find_window",
    "integrate",
    "intersect",
    "make_intervals",
    "make_sampled",
    "measure",
    "order_phases",
    "overlap_ns",
    "read_column",
    "read_gpu_column",
    "select_rows",
    "subtract",
    "union",
]
