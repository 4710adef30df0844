"""Metrics that come from the samples: busy, idle, memory, power, coverage, the sampler's own cost.

value of a fraction     overlap-weighted over the steady window, then the mean over GPUs
series                  the same by loop
idle in GPU-seconds     summed over GPUs, by loop, by loop and phase
memory                  the largest row of the window, over GPUs
"""
# ruff: noqa: N803, N806  (shapes as suffixes: G devices, L loops, P phases)

from collections.abc import Mapping

import numpy as np

from grpo_perf.record import RunMeta
from grpo_perf.timeline.idle import Attribution, attribute
from grpo_perf.timeline.intervals import Sampled, Times, Values, find_peaks, integrate
from grpo_perf.timeline.lanes import Partition
from grpo_perf.timeline.samples import HOST, Rows, measure_rate, read_column, read_gpu_column
from grpo_perf.timeline.values import NO_GPU, aggregate, missing, single
from grpo_perf.timeline.window import Window
from grpo_perf.types import MetricValue

_MEANS = ("sm_active_fraction", "tensor_active_fraction", "dram_active_fraction", "nvml_utilization", "power_w")
_GPU_ONLY = ("busy_fraction", "idle_fraction", "idle_s_per_step", *_MEANS, "memory_used_fraction")
_COVERAGE_COLUMN = {"gpm": "busy_fraction", "nvml": "nvml_utilization", "host": "host_busy_fraction"}


def measure_devices(rows: Rows, window: Window, partition: Partition, meta: RunMeta) -> dict[str, MetricValue]:
    """Every metric of the GPUs and of the host that samples give."""
    measured = {
        "wait_s_per_step": missing("needs several GPUs and a trace"),
        **_measure_host(rows, partition),
        "coverage_fraction": _measure_coverage(rows, window, meta),
        "sampler_cost_fraction": _measure_sampler(rows),
    }
    if meta.hardware.device == "gpu":
        return measured | _measure_gpus(rows, window, partition, meta)
    host_memory = {HOST: sampled} if (sampled := read_column(rows, "memory_used_gib").get(HOST)) else {}
    measured["memory_used_gib"] = _measure_peak("memory_used_gib", host_memory, window.edges_ns)
    return measured | {name: missing(NO_GPU) for name in _GPU_ONLY}


def measure_coverage(rows: Rows, window: Window, meta: RunMeta) -> dict[int, float]:
    """Share of the steady window that samples cover, by device; a GPU without rows has 0.

    Counted in the column that the run is judged by: GPM activity, NVML utilisation where there is no GPM, host load.
    """
    on_gpu = meta.hardware.device == "gpu"
    column = _COVERAGE_COLUMN[meta.hardware.telemetry] if on_gpu else "host_busy_fraction"
    length_ns = int(window.edges_ns[-1] - window.edges_ns[0]) if window.num_loops else 0
    covered = {} if on_gpu else {HOST: 0.0}
    for device, sampled in read_column(rows, column).items():
        if (device != HOST) == on_gpu:
            covered_ns = int(integrate(sampled, window.edges_ns)[0].sum())
            covered[device] = covered_ns / length_ns if length_ns else 0.0
    return covered


def _measure_gpus(rows: Rows, window: Window, partition: Partition, meta: RunMeta) -> dict[str, MetricValue]:
    measured = {name: _measure_mean(name, read_gpu_column(rows, name), window.edges_ns) for name in _MEANS}
    memory = _measure_peak("memory_used_gib", read_gpu_column(rows, "memory_used_gib"), window.edges_ns)
    measured |= {"memory_used_gib": memory, "memory_used_fraction": _divide_memory(memory, meta)}
    busy = read_gpu_column(rows, "busy_fraction")
    reason = _explain_absence(busy, "busy_fraction")
    if reason and meta.hardware.telemetry != "gpm":
        reason = f"telemetry is {meta.hardware.telemetry}: this GPU reports no graphics activity (GPM)"
    if reason:
        return measured | {name: missing(reason) for name in ("busy_fraction", "idle_fraction", "idle_s_per_step")}
    return measured | _measure_idle(attribute(busy, partition))


def _measure_idle(found: Attribution) -> dict[str, MetricValue]:
    """Busy and idle of the loop, and idle by phase, over all GPUs."""
    busy_L, busy = found.busy_fraction_GL.mean(axis=0), float(found.busy_fraction_G.mean())
    measured = {
        "busy_fraction": aggregate("busy_fraction", busy_L.tolist(), value=busy),
        "idle_fraction": aggregate("idle_fraction", (1 - busy_L).tolist(), value=1 - busy),
        "idle_s_per_step": aggregate("idle_s_per_step", found.idle_s_GL.sum(axis=0).tolist()),
    }
    idle_s_LP = found.idle_s_GLP.sum(axis=0)
    idle_P = 1 - found.busy_fraction_GP.mean(axis=0)
    for column, phase in enumerate(found.partition.phases):
        measured[f"idle_s_per_step/{phase}"] = _aggregate_phase("idle_s_per_step", phase, idle_s_LP[:, column])
        measured[f"idle_fraction/{phase}"] = (
            single(idle_P[column]) if np.isfinite(idle_P[column]) else missing(f"no sample covers {phase}")
        )
    return measured


def _measure_host(rows: Rows, partition: Partition) -> dict[str, MetricValue]:
    """Load of the run's processes over all cores, and idle host seconds by loop and phase."""
    sampled = read_column(rows, "host_busy_fraction").get(HOST)
    if not sampled or not sampled.num_rows:
        none = missing("no host samples in the steady window")
        return {"host_busy_fraction": none, "host_idle_s_per_step": none}
    found = attribute({HOST: sampled}, partition)
    busy = float(found.busy_fraction_G[0])
    idle_s_LP = found.idle_s_GLP[0]
    return {
        "host_busy_fraction": aggregate("host_busy_fraction", found.busy_fraction_GL[0].tolist(), value=busy),
        "host_idle_s_per_step": aggregate("host_idle_s_per_step", found.idle_s_GL[0].tolist()),
        **{
            f"host_idle_s_per_step/{phase}": _aggregate_phase("host_idle_s_per_step", phase, idle_s_LP[:, column])
            for column, phase in enumerate(partition.phases)
        },
    }


def _aggregate_phase(name: str, phase: str, idle_s_L: Values) -> MetricValue:
    uncovered = np.flatnonzero(np.isnan(idle_s_L))
    if len(uncovered):
        return missing(f"no sample covers {phase} in steady loop {uncovered[0] + 1}")
    return aggregate(name, idle_s_L.tolist())


def _measure_mean(name: str, sampled: Mapping[int, Sampled], edges_ns: Times) -> MetricValue:
    """Overlap-weighted mean over the window, then over GPUs."""
    if reason := _explain_absence(sampled, name):
        return missing(reason)
    covered_ns, integral_ns = (
        np.stack(part) for part in zip(*(integrate(of_gpu, edges_ns) for of_gpu in sampled.values()), strict=True)
    )
    with np.errstate(invalid="ignore"):
        series = (integral_ns / covered_ns).mean(axis=0)
    return aggregate(name, series.tolist(), value=float((integral_ns.sum(axis=1) / covered_ns.sum(axis=1)).mean()))


def _measure_peak(name: str, sampled: Mapping[int, Sampled], edges_ns: Times) -> MetricValue:
    """The largest value of the window, over devices."""
    if reason := _explain_absence(sampled, name):
        return missing(reason)
    return aggregate(name, np.stack([find_peaks(of_gpu, edges_ns) for of_gpu in sampled.values()]).max(axis=0).tolist())


def _divide_memory(memory: MetricValue, meta: RunMeta) -> MetricValue:
    capacity_gib = meta.hardware.memory_gib
    if memory.value is None or not capacity_gib:
        return missing(memory.reason or f"the capacity of {meta.hardware.device_name} is not known")
    return aggregate("memory_used_fraction", [used_gib / capacity_gib for used_gib in memory.series])


def _measure_coverage(rows: Rows, window: Window, meta: RunMeta) -> MetricValue:
    return single(min(measure_coverage(rows, window, meta).values()))


def _measure_sampler(rows: Rows) -> MetricValue:
    """CPU seconds of the sampler process per second of the steady window."""
    rates = [
        rate for sampled in read_column(rows, "sampler_cpu_s").values() if (rate := measure_rate(sampled)) is not None
    ]
    return single(max(rates)) if rates else missing("the samples do not carry the sampler's CPU time")


def _explain_absence(sampled: Mapping[int, Sampled], column: str) -> str | None:
    """Why a column cannot be averaged over devices; None if each device has values."""
    if not sampled:
        return "no samples in the steady window"
    empty = [device for device, of_device in sampled.items() if not of_device.num_rows]
    if empty:
        return f"{'the host' if empty[0] == HOST else f'GPU {empty[0]}'} has no {column} in the steady window"
    return None
