"""The adapter against the real pynvml module with its functions replaced: names, structs and codes are pynvml's."""

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from grpo_perf.telemetry.nvml import GPM_METRICS, NvmlError, PynvmlDevices


def refuse(code: int) -> Any:
    def function(*_arguments: Any) -> Any:
        raise pynvml.NVMLError(code)

    return function


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> PynvmlDevices:
    answers: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: f"handle{index}",
        "nvmlDeviceGetName": lambda _handle: "NVIDIA H200",
        "nvmlSystemGetDriverVersion": lambda: "580.159.04",
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 13010,
        "nvmlDeviceGetUUID": lambda handle: {"handle0": "GPU-aa", "mig1": "MIG-bb"}[handle],
        "nvmlDeviceGetMigMode": lambda _handle: [0, 0],
        "nvmlGpmQueryDeviceSupport": lambda _handle: SimpleNamespace(isSupportedDevice=1),
        "nvmlDeviceGetMemoryInfo": lambda _handle: SimpleNamespace(total=141 << 30, used=2 << 30),
        "nvmlDeviceGetEnforcedPowerLimit": lambda _handle: 700_000,
        "nvmlDeviceGetPowerUsage": lambda _handle: 149_848,
        "nvmlDeviceGetUtilizationRates": lambda _handle: SimpleNamespace(gpu=13, memory=2),
        "nvmlDeviceGetClockInfo": lambda _handle, clock: {pynvml.NVML_CLOCK_SM: 1980}[clock],
        "nvmlDeviceGetTemperature": lambda _handle, sensor: {pynvml.NVML_TEMPERATURE_GPU: 31}[sensor],
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _handle: 4,
        "nvmlDeviceGetComputeRunningProcesses_v3": lambda _handle: [SimpleNamespace(pid=584)],
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    devices = PynvmlDevices()
    devices.open()
    return devices


def test_units(devices: PynvmlDevices) -> None:
    assert (devices.num_gpus(), devices.name(0)) == (1, "NVIDIA H200")
    assert (devices.driver_version(), devices.cuda_version()) == ("580.159.04", "13.1")
    assert (devices.memory_total_bytes(0), devices.memory_used_bytes(0)) == (141 << 30, 2 << 30)
    assert (devices.power_limit_w(0), devices.power_w(0)) == (700.0, 149.848)
    assert (devices.utilization_percent(0), devices.sm_clock_mhz(0), devices.temperature_c(0)) == (13.0, 1980.0, 31.0)
    assert (devices.throttle_reasons(0), devices.compute_pids(0)) == (4, [584])
    assert devices.supports_gpm(0)
    assert not devices.mig_enabled(0)


def test_gpm_asks_the_six_metrics_of_the_two_samples(devices: PynvmlDevices, monkeypatch: pytest.MonkeyPatch) -> None:
    allocated: list[Any] = []
    freed: list[Any] = []

    def allocate() -> Any:
        allocated.append(pynvml.c_nvmlGpmSample_t())
        return allocated[-1]

    def answer(query: Any) -> Any:
        assert (query.version, query.numMetrics) == (1, 6)
        assert [query.metrics[position].metricId for position in range(6)] == list(GPM_METRICS) == [1, 2, 5, 10, 20, 21]
        for position in range(6):
            query.metrics[position].value = position + 0.5
        query.metrics[5].nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
        return query

    monkeypatch.setattr(pynvml, "nvmlGpmSampleAlloc", allocate)
    monkeypatch.setattr(pynvml, "nvmlGpmSampleGet", lambda _handle, sample: sample)
    monkeypatch.setattr(pynvml, "nvmlGpmMetricsGet", answer)
    monkeypatch.setattr(pynvml, "nvmlGpmSampleFree", freed.append)
    for slot in (0, 1, 0):
        devices.take_gpm_sample(0, slot)
    assert len(allocated) == 2
    assert devices.compare_gpm_samples(0, 1, 0) == [0.5, 1.5, 2.5, 3.5, 4.5, None]
    devices.close()
    devices.close()
    assert freed == allocated


def test_mig_devices_are_named_with_their_gpu(devices: PynvmlDevices, monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices.uuids(0) == ["GPU-aa"]

    def get_mig_device(_handle: str, number: int) -> str:
        if number != 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return "mig1"

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigMode", lambda _handle: [1, 1])
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMaxMigDeviceCount", lambda _handle: 7)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigDeviceHandleByIndex", get_mig_device)
    assert devices.uuids(0) == ["GPU-aa", "MIG-bb"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no_library"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "no_driver"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "mismatch"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "permission"),
        (pynvml.NVML_ERROR_UNKNOWN, "failed"),
    ],
)
def test_a_refused_start_says_which_kind(code: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", refuse(code))
    with pytest.raises(NvmlError) as caught:
        PynvmlDevices().open()
    assert caught.value.kind == kind


def test_what_an_old_gpu_or_driver_lacks_is_no_error(devices: PynvmlDevices, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigMode", refuse(pynvml.NVML_ERROR_NOT_SUPPORTED))
    monkeypatch.setattr(pynvml, "nvmlGpmQueryDeviceSupport", refuse(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND))
    assert not devices.mig_enabled(0)
    assert not devices.supports_gpm(0)


def test_a_lost_gpu_is_an_error(devices: PynvmlDevices, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = refuse(pynvml.NVML_ERROR_GPU_IS_LOST)
    for name in ("nvmlDeviceGetMigMode", "nvmlGpmQueryDeviceSupport", "nvmlDeviceGetPowerUsage"):
        monkeypatch.setattr(pynvml, name, lost)
    for call in (devices.mig_enabled, devices.supports_gpm, devices.power_w):
        with pytest.raises(NvmlError, match="GPU is lost"):
            call(0)
