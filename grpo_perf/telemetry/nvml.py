"""The seam to NVML: what this room asks of it, and the one place that imports pynvml (when it is first used)."""

import importlib
from collections.abc import Callable
from typing import Any, Literal, Protocol

from grpo_perf.errors import PerfError

NvmlErrorKind = Literal["no_binding", "no_library", "no_driver", "mismatch", "permission", "unsupported", "failed"]

GPM_METRICS = (1, 2, 5, 10, 20, 21)
"""nvmlGpmMetricId_t: graphics, SM, any tensor, DRAM bandwidth (% of peak), PCIe tx and rx (MiB/s). Source: nvml.h."""


class NvmlError(PerfError):
    """NVML refused or could not be asked; `kind` says which, callers act on it."""

    def __init__(self, message: str, kind: NvmlErrorKind = "failed") -> None:
        super().__init__(message)
        self.kind: NvmlErrorKind = kind


class Nvml(Protocol):
    """NVML by GPU index (its own order, that of the PCI bus). Every call raises NvmlError."""

    def open(self) -> None:
        """Connect to the driver; safe to repeat."""

    def close(self) -> None:
        """Free what was allocated; safe to repeat, never raises."""

    def driver_version(self) -> str:
        """Version of the NVIDIA driver."""

    def cuda_version(self) -> str:
        """Newest CUDA version that the driver runs."""

    def num_gpus(self) -> int:
        """All GPUs of the machine, whatever CUDA_VISIBLE_DEVICES says."""

    def name(self, index: int) -> str:
        """Model, as NVML names it."""

    def uuids(self, index: int) -> list[str]:
        """UUID of the GPU, then those of its MIG devices."""

    def mig_enabled(self, index: int) -> bool:
        """Whether the GPU is cut into MIG devices."""

    def supports_gpm(self, index: int) -> bool:
        """Whether the GPU has GPM counters (Hopper and later)."""

    def memory_total_bytes(self, index: int) -> int:
        """Device memory in bytes."""

    def power_limit_w(self, index: int) -> float:
        """The power limit in force, in watts."""

    def utilization_percent(self, index: int) -> float:
        """Share of the last 1/6 to 1 s in which any kernel ran, in percent."""

    def power_w(self, index: int) -> float:
        """Power draw in watts."""

    def memory_used_bytes(self, index: int) -> int:
        """Device memory in use, in bytes."""

    def sm_clock_mhz(self, index: int) -> float:
        """SM clock in MHz."""

    def temperature_c(self, index: int) -> float:
        """GPU temperature in degrees Celsius."""

    def throttle_reasons(self, index: int) -> int:
        """Bit mask of clocks-event reasons."""

    def compute_pids(self, index: int) -> list[int]:
        """Processes with a compute context on the GPU."""

    def take_gpm_sample(self, index: int, slot: int) -> None:
        """Store the GPM counters as they stand in slot 0 or 1."""

    def compare_gpm_samples(self, index: int, older: int, newer: int) -> list[float | None]:
        """GPM_METRICS between two slots, in their units; None where the GPU has no such metric, NaN where idle."""


class PynvmlDevices:
    """The real NVML."""

    def __init__(self) -> None:
        self._pynvml: Any = None
        self._is_open = False
        self._handles: dict[int, Any] = {}
        self._gpm_samples: dict[tuple[int, int], Any] = {}
        self._gpm_query: Any = None

    def open(self) -> None:
        """Load libnvidia-ml and connect to the driver."""
        if self._is_open:
            return
        try:
            self._pynvml = importlib.import_module("pynvml")
        except ImportError as error:
            raise NvmlError(str(error), "no_binding") from error
        self._call(self._pynvml.nvmlInit)
        self._is_open = True
        # One query for all GPUs and all passes: it holds room for several hundred metrics.
        self._gpm_query = self._pynvml.c_nvmlGpmMetricsGet_t()
        self._gpm_query.version = self._pynvml.NVML_GPM_METRICS_GET_VERSION
        self._gpm_query.numMetrics = len(GPM_METRICS)

    def close(self) -> None:
        """Free the GPM samples and disconnect."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            for sample in self._gpm_samples.values():
                self._call(self._pynvml.nvmlGpmSampleFree, sample)
            self._call(self._pynvml.nvmlShutdown)
        except NvmlError:
            pass  # a driver that died in mid-run cannot be told goodbye
        self._gpm_samples.clear()
        self._handles.clear()

    def driver_version(self) -> str:
        """Version of the NVIDIA driver."""
        return str(self._call(self._pynvml.nvmlSystemGetDriverVersion))

    def cuda_version(self) -> str:
        """NVML says 13000 for CUDA 13.0."""
        version = int(self._call(self._pynvml.nvmlSystemGetCudaDriverVersion_v2))
        return f"{version // 1000}.{version % 1000 // 10}"

    def num_gpus(self) -> int:
        """All GPUs of the machine."""
        return int(self._call(self._pynvml.nvmlDeviceGetCount))

    def name(self, index: int) -> str:
        """Model, as NVML names it."""
        return str(self._ask(index, "nvmlDeviceGetName"))

    def uuids(self, index: int) -> list[str]:
        """UUID of the GPU, then those of its MIG devices."""
        found = [str(self._ask(index, "nvmlDeviceGetUUID"))]
        for number in range(self._num_mig_slots(index)):
            try:
                device = self._ask(index, "nvmlDeviceGetMigDeviceHandleByIndex", number)
                found.append(str(self._call(self._pynvml.nvmlDeviceGetUUID, device)))
            except NvmlError:
                continue  # an empty slot: MIG devices need not be numbered without gaps
        return found

    def mig_enabled(self, index: int) -> bool:
        """Whether the GPU is cut into MIG devices; a GPU without MIG is not."""
        try:
            current, _pending = self._ask(index, "nvmlDeviceGetMigMode")
        except NvmlError as error:
            if error.kind == "unsupported":
                return False
            raise
        return bool(current)

    def supports_gpm(self, index: int) -> bool:
        """Whether the GPU has GPM counters; an older driver or GPU has none."""
        try:
            return bool(self._ask(index, "nvmlGpmQueryDeviceSupport").isSupportedDevice)
        except NvmlError as error:
            if error.kind == "unsupported":
                return False
            raise

    def memory_total_bytes(self, index: int) -> int:
        """Device memory in bytes."""
        return int(self._ask(index, "nvmlDeviceGetMemoryInfo").total)

    def power_limit_w(self, index: int) -> float:
        """NVML gives milliwatts."""
        return float(self._ask(index, "nvmlDeviceGetEnforcedPowerLimit")) / 1000

    def utilization_percent(self, index: int) -> float:
        """What nvidia-smi prints."""
        return float(self._ask(index, "nvmlDeviceGetUtilizationRates").gpu)

    def power_w(self, index: int) -> float:
        """NVML gives milliwatts."""
        return float(self._ask(index, "nvmlDeviceGetPowerUsage")) / 1000

    def memory_used_bytes(self, index: int) -> int:
        """Device memory in use, in bytes."""
        return int(self._ask(index, "nvmlDeviceGetMemoryInfo").used)

    def sm_clock_mhz(self, index: int) -> float:
        """SM clock in MHz."""
        return float(self._ask(index, "nvmlDeviceGetClockInfo", self._pynvml.NVML_CLOCK_SM))

    def temperature_c(self, index: int) -> float:
        """GPU temperature in degrees Celsius."""
        return float(self._ask(index, "nvmlDeviceGetTemperature", self._pynvml.NVML_TEMPERATURE_GPU))

    def throttle_reasons(self, index: int) -> int:
        """Asked by its old name: drivers before 535 do not know the new one, newer ones know both."""
        return int(self._ask(index, "nvmlDeviceGetCurrentClocksThrottleReasons"))

    def compute_pids(self, index: int) -> list[int]:
        """Processes with a compute context on the GPU."""
        return [int(process.pid) for process in self._ask(index, "nvmlDeviceGetComputeRunningProcesses_v3")]

    def take_gpm_sample(self, index: int, slot: int) -> None:
        """Store the GPM counters as they stand."""
        sample = self._gpm_samples.get((index, slot))
        if sample is None:
            sample = self._gpm_samples[index, slot] = self._call(self._pynvml.nvmlGpmSampleAlloc)
        self._ask(index, "nvmlGpmSampleGet", sample)

    def compare_gpm_samples(self, index: int, older: int, newer: int) -> list[float | None]:
        """GPM_METRICS between two slots."""
        query = self._gpm_query
        query.sample1, query.sample2 = self._gpm_samples[index, older], self._gpm_samples[index, newer]
        for position, metric_id in enumerate(GPM_METRICS):
            query.metrics[position].metricId = metric_id
        self._call(self._pynvml.nvmlGpmMetricsGet, query)
        answers = [query.metrics[position] for position in range(len(GPM_METRICS))]
        return [float(answer.value) if answer.nvmlReturn == 0 else None for answer in answers]

    def _num_mig_slots(self, index: int) -> int:
        return int(self._ask(index, "nvmlDeviceGetMaxMigDeviceCount")) if self.mig_enabled(index) else 0

    def _ask(self, index: int, function: str, *arguments: Any) -> Any:
        handle = self._handles.get(index)
        if handle is None:
            handle = self._handles[index] = self._call(self._pynvml.nvmlDeviceGetHandleByIndex, index)
        return self._call(getattr(self._pynvml, function), handle, *arguments)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._pynvml.NVMLError as error:
            raise NvmlError(str(error), self._classify(error.value)) from error

    def _classify(self, code: int) -> NvmlErrorKind:
        nvml = self._pynvml
        kinds: dict[int, NvmlErrorKind] = {
            nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no_library",
            nvml.NVML_ERROR_DRIVER_NOT_LOADED: "no_driver",
            nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "mismatch",
            nvml.NVML_ERROR_NO_PERMISSION: "permission",
            nvml.NVML_ERROR_NOT_SUPPORTED: "unsupported",
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND: "unsupported",
        }
        return kinds.get(code, "failed")
