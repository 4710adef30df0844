"""One pass over all GPUs: rows of SAMPLE_SCHEMA, each from the stamp of the previous pass to that of this one.

GPM counters   s0 ......... s1 ......... s2        a sample per pass, compared with the one before
rows              [s0, s1]     [s1, s2]            stamps are the middle of the call that took the sample
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from grpo_perf.telemetry.nvml import Nvml, NvmlError
from grpo_perf.units import BYTES_PER_GIB, NS_PER_S

Row = dict[str, float | int | None]

_GPM_COLUMNS = (
    ("busy_fraction", 0.01),
    ("sm_active_fraction", 0.01),
    ("tensor_active_fraction", 0.01),
    ("dram_active_fraction", 0.01),
    ("pcie_tx_bytes_per_s", float(1 << 20)),
    ("pcie_rx_bytes_per_s", float(1 << 20)),
)
"""Column and factor to its unit, in the order of nvml.GPM_METRICS."""

_FOREIGN_PERIOD_NS = NS_PER_S


@dataclass(slots=True)
class _Gpu:
    """What is remembered of one GPU between passes."""

    index: int
    has_gpm: bool
    stamp_ns: int | None = None
    slot: int = 0
    is_primed: bool = False
    """Whether `slot` holds the GPM sample of the previous pass."""
    unsupported: set[str] = field(default_factory=set)
    num_foreign: int | None = None
    foreign_due_ns: int = 0
    first_problem: str | None = None
    num_problems: int = 0


class GpuMeter:
    """Reads every GPU once per pass; a GPU that fails gives rows of nulls and never ends the pass."""

    def __init__(
        self,
        nvml: Nvml,
        indices: Sequence[int],
        *,
        use_gpm: bool,
        owns: Callable[[int], bool | None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Args: owns: whether a pid is of the run, None where that cannot be known."""
        self._nvml = nvml
        self._owns = owns
        self._clock_ns = clock_ns
        self._gpus = [_Gpu(index, use_gpm) for index in indices]

    def poll(self) -> list[Row]:
        """One row per GPU; none on the first pass, which only takes the first sample."""
        rows = (self._poll_gpu(gpu) for gpu in self._gpus)
        return [row for row in rows if row is not None]

    @property
    def problem(self) -> str | None:
        """What the GPUs refused so far, None where nothing."""
        told = [
            f"GPU {gpu.index}: {gpu.first_problem} ({gpu.num_problems} failed reads)"
            for gpu in self._gpus
            if gpu.first_problem
        ]
        return "; ".join(told) or None

    def _poll_gpu(self, gpu: _Gpu) -> Row | None:
        t0_ns = gpu.stamp_ns
        gpm_values = self._read_gpm(gpu)  # stamps the GPU
        if t0_ns is None or gpu.stamp_ns is None:
            return None
        nvml, read = self._nvml, self._read
        percent = read(gpu, "nvml_utilization", nvml.utilization_percent)
        memory_bytes = read(gpu, "memory_used_gib", nvml.memory_used_bytes)
        reasons = read(gpu, "throttle_reasons", nvml.throttle_reasons)
        row: Row = {
            "t0_ns": t0_ns,
            "t1_ns": gpu.stamp_ns,
            "device": gpu.index,
            "nvml_utilization": percent / 100 if percent is not None else None,
            "power_w": read(gpu, "power_w", nvml.power_w),
            "memory_used_gib": memory_bytes / BYTES_PER_GIB if memory_bytes is not None else None,
            "sm_clock_mhz": read(gpu, "sm_clock_mhz", nvml.sm_clock_mhz),
            "temperature_c": read(gpu, "temperature_c", nvml.temperature_c),
            "throttle_reasons": int(reasons) if reasons is not None else None,
            "num_foreign_processes": self._count_foreign(gpu),
        }
        return row | gpm_values

    def _read_gpm(self, gpu: _Gpu) -> Row:
        if not gpu.has_gpm:
            gpu.stamp_ns = self._clock_ns()
            return {}
        newer = 1 - gpu.slot
        before_ns = self._clock_ns()
        try:
            self._nvml.take_gpm_sample(gpu.index, newer)
        except NvmlError as error:
            self._note(gpu, error)
            gpu.stamp_ns, gpu.is_primed = self._clock_ns(), False
            return {}
        gpu.stamp_ns = (before_ns + self._clock_ns()) // 2
        older, was_primed = gpu.slot, gpu.is_primed
        gpu.slot, gpu.is_primed = newer, True
        return self._compare_gpm(gpu, older, newer) if was_primed else {}

    def _compare_gpm(self, gpu: _Gpu, older: int, newer: int) -> Row:
        try:
            values = self._nvml.compare_gpm_samples(gpu.index, older, newer)
        except NvmlError as error:
            self._note(gpu, error)
            return {}
        # NVML answers NaN now and then (DRAM bandwidth of an idle GPU): not measured, so null.
        return {
            column: value * factor if value is not None and math.isfinite(value) else None
            for (column, factor), value in zip(_GPM_COLUMNS, values, strict=True)
        }

    def _read(self, gpu: _Gpu, column: str, getter: Callable[[int], float]) -> float | None:
        if column in gpu.unsupported:
            return None
        try:
            return getter(gpu.index)
        except NvmlError as error:
            if error.kind == "unsupported":
                gpu.unsupported.add(column)  # asked no more: each refused call costs as much as an answered one
            else:
                self._note(gpu, error)
            return None

    def _count_foreign(self, gpu: _Gpu) -> int | None:
        # Looked at once a second; the rows between carry the last answer.
        now_ns = self._clock_ns()
        if now_ns >= gpu.foreign_due_ns:
            gpu.foreign_due_ns = now_ns + _FOREIGN_PERIOD_NS
            gpu.num_foreign = self._judge_processes(gpu)
        return gpu.num_foreign

    def _judge_processes(self, gpu: _Gpu) -> int | None:
        try:
            pids = self._nvml.compute_pids(gpu.index)
        except NvmlError as error:
            if error.kind != "unsupported":
                self._note(gpu, error)
            return None
        owned = [self._owns(pid) for pid in pids]
        # In a container NVML may give pids of the host's namespace, or 0 for processes that it may not show. One such
        # pid says that the numbers are not ours, and then even a match would be chance: not judgeable, not foreign.
        return None if None in owned else owned.count(False)

    def _note(self, gpu: _Gpu, error: NvmlError) -> None:
        gpu.first_problem = gpu.first_problem or str(error)
        gpu.num_problems += 1
