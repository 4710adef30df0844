"""An NVML without a driver: GPUs are data, and any call can be made to fail."""

from collections.abc import Callable
from dataclasses import dataclass, field

from grpo_perf.telemetry.nvml import NvmlError


@dataclass(slots=True, kw_only=True)
class FakeGpu:
    """One GPU; numbers as the recorded H200 gave them in a busy moment (data/h200, q15_tuned)."""

    name: str = "NVIDIA H200"
    uuids: list[str] = field(default_factory=lambda: ["GPU-0000"])
    mig_enabled: bool = False
    supports_gpm: bool = True
    memory_total_bytes: int = 141 << 30
    power_limit_w: float = 700.0
    utilization_percent: float = 13.0
    power_w: float = 149.848
    memory_used_bytes: int = 13 << 30
    sm_clock_mhz: float = 1980.0
    temperature_c: float = 31.0
    throttle_reasons: int = 4
    compute_pids: list[int] = field(default_factory=list)
    gpm: list[float | None] = field(default_factory=lambda: [53.846, 51.625, 1.461, 40.783, 7.0, 24.0])
    broken: dict[str, NvmlError] = field(default_factory=dict)
    """Method name -> what it raises; `*` breaks every call."""


class FakeNvml:
    """Implements the Nvml protocol."""

    def __init__(self, *gpus: FakeGpu, open_error: NvmlError | None = None) -> None:
        self.gpus = list(gpus)
        self.open_error = open_error
        self.is_open = False
        self.compared: list[tuple[int, int]] = []
        self.calls: list[str] = []

    def open(self) -> None:
        if self.open_error is not None:
            raise self.open_error
        self.is_open = True

    def close(self) -> None:
        self.is_open = False

    def driver_version(self) -> str:
        return "580.159.04"

    def cuda_version(self) -> str:
        return "13.0"

    def num_gpus(self) -> int:
        return len(self.gpus)

    def _get(self, index: int, what: str) -> FakeGpu:
        self.calls.append(what)
        gpu = self.gpus[index]
        error = gpu.broken.get(what) or gpu.broken.get("*")
        if error is not None:
            raise error
        return gpu

    def name(self, index: int) -> str:
        return self._get(index, "name").name

    def uuids(self, index: int) -> list[str]:
        return self._get(index, "uuids").uuids

    def mig_enabled(self, index: int) -> bool:
        return self._get(index, "mig_enabled").mig_enabled

    def supports_gpm(self, index: int) -> bool:
        return self._get(index, "supports_gpm").supports_gpm

    def memory_total_bytes(self, index: int) -> int:
        return self._get(index, "memory_total_bytes").memory_total_bytes

    def power_limit_w(self, index: int) -> float:
        return self._get(index, "power_limit_w").power_limit_w

    def utilization_percent(self, index: int) -> float:
        return self._get(index, "utilization_percent").utilization_percent

    def power_w(self, index: int) -> float:
        return self._get(index, "power_w").power_w

    def memory_used_bytes(self, index: int) -> int:
        return self._get(index, "memory_used_bytes").memory_used_bytes

    def sm_clock_mhz(self, index: int) -> float:
        return self._get(index, "sm_clock_mhz").sm_clock_mhz

    def temperature_c(self, index: int) -> float:
        return self._get(index, "temperature_c").temperature_c

    def throttle_reasons(self, index: int) -> int:
        return self._get(index, "throttle_reasons").throttle_reasons

    def compute_pids(self, index: int) -> list[int]:
        return self._get(index, "compute_pids").compute_pids

    def take_gpm_sample(self, index: int, slot: int) -> None:
        assert slot in (0, 1)
        self._get(index, "take_gpm_sample")

    def compare_gpm_samples(self, index: int, older: int, newer: int) -> list[float | None]:
        self.compared.append((older, newer))
        return self._get(index, "compare_gpm_samples").gpm


def count_up(step_ns: int) -> Callable[[], int]:
    """A clock that moves by step_ns at every look."""
    now_ns = 0

    def read() -> int:
        nonlocal now_ns
        now_ns += step_ns
        return now_ns

    return read
