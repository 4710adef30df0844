"""Metrics that need only the clock and verl's token counts: loop time, phases, gap, tokens, epoch.

step k        ├─ gen ─┤├─ ref ─┤├─ update ─┤ │ gap_s                │ step k + 1
              └────────────── step ──────────┘└─ logging, nothing ──┘
              └───────────────────── loop_time_s ───────────────────┘
"""

import math

import numpy as np
from numpy.typing import NDArray

from grpo_perf.metrics import PHASES
from grpo_perf.record import RunMeta
from grpo_perf.timeline.intervals import Times, make_intervals, overlap_ns
from grpo_perf.timeline.lanes import UNACCOUNTED, Partition
from grpo_perf.timeline.values import NO_GPU, aggregate, missing, single
from grpo_perf.timeline.window import Window
from grpo_perf.types import MetricValue
from grpo_perf.units import NS_PER_S

TOKENS_KEY = "perf/total_num_tokens"
"""verl: prompt + response tokens of a step without padding, over all GPUs."""


def measure_loops(window: Window, partition: Partition, meta: RunMeta) -> dict[str, MetricValue]:
    """Loop time, own time of each phase, gap, unaccounted share, epoch time and tokens."""
    loop_s = np.diff(window.edges_ns) / NS_PER_S
    loop_time = aggregate("loop_time_s", loop_s.tolist())
    phase_s = partition.length_ns_LP / NS_PER_S
    return {
        "loop_time_s": loop_time,
        **{
            f"phase_s/{phase}": aggregate("phase_s", phase_s[:, column].tolist())
            for column, phase in enumerate(partition.phases)
        },
        **_compare_with_rest(partition, loop_s),
        **_measure_gap(window, partition),
        "epoch_time_s": _measure_epoch(loop_time, meta),
        **_measure_tokens(window, loop_s.tolist(), meta),
    }


def _compare_with_rest(partition: Partition, loop_s: NDArray[np.float64]) -> dict[str, MetricValue]:
    """Each verl phase over the rest of its loop; left out where a phase is the whole loop."""
    measured = {}
    for column, phase in enumerate(partition.phases):
        own_s = partition.length_ns_LP[:, column] / NS_PER_S
        if phase in PHASES and bool((own_s < loop_s).all()):
            ratios = (own_s / (loop_s - own_s)).tolist()
            measured[f"phase_to_rest/{phase}"] = aggregate("phase_to_rest", ratios)
    return measured


def _measure_gap(window: Window, partition: Partition) -> dict[str, MetricValue]:
    """Loop time outside `step` in seconds, and the share of `step` that no other span covers."""
    step_ns = measure_step_ns(window)
    unaccounted_ns = np.zeros_like(step_ns)
    if UNACCOUNTED in partition.phases:
        unaccounted_ns = partition.length_ns_LP[:, partition.phases.index(UNACCOUNTED)]
    gap_s = (np.diff(window.edges_ns) - step_ns) / NS_PER_S
    return {
        "gap_s": aggregate("gap_s", gap_s.tolist()),
        "unaccounted_fraction": aggregate("unaccounted_fraction", (unaccounted_ns / step_ns).tolist()),
    }


def measure_step_ns(window: Window) -> Times:
    """Ns of each steady loop inside `step`."""
    steps = make_intervals([span.t0_ns for span in window.spans], [span.t1_ns for span in window.spans])
    return overlap_ns(steps, window.edges_ns)


def _measure_epoch(loop_time: MetricValue, meta: RunMeta) -> MetricValue:
    """Seconds of an epoch at the median loop time."""
    if loop_time.value is None:
        return missing(loop_time.reason or "no loop time")
    num_steps = math.ceil(meta.workload.dataset_size / meta.workload.train_batch_size)
    return single(num_steps * loop_time.value)


def _measure_tokens(window: Window, loop_s: list[float], meta: RunMeta) -> dict[str, MetricValue]:
    """Tokens of the step that starts each loop, over the loop's time."""
    hourly, per_gpu = "effective_tokens_per_hour", "tokens_per_s_per_gpu"
    tokens: list[float] = []
    for number, step in zip(window.steady_numbers[:-1], window.steady_steps[:-1], strict=True):
        count = step.number(TOKENS_KEY) if step else None
        if count is None or not math.isfinite(count):
            what = f"step {number} has no {TOKENS_KEY} in steps.jsonl"
            reason = what if count is None else f"{TOKENS_KEY} is {count} in step {number}"
            return {hourly: missing(reason), per_gpu: missing(reason)}
        tokens.append(count)
    per_s = [count / length for count, length in zip(tokens, loop_s, strict=True)]
    measured = {hourly: aggregate(hourly, [rate * 3600 for rate in per_s]), per_gpu: missing(NO_GPU)}
    if meta.hardware.device == "gpu":
        measured[per_gpu] = aggregate(per_gpu, [rate / meta.hardware.num_devices for rate in per_s])
    return measured
