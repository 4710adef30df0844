import sys
from collections.abc import Mapping

import pytest

from grpo_perf.telemetry.hardware import CPU_ONLY, detect_hardware, explain_missing_gpu, list_visible
from grpo_perf.telemetry.nvml import NvmlError, NvmlErrorKind

from .fake_nvml import FakeGpu, FakeNvml


def two_gpus() -> FakeNvml:
    return FakeNvml(FakeGpu(uuids=["GPU-aa11", "MIG-bb22"]), FakeGpu(uuids=["GPU-cc33"]))


def test_one_h200_has_the_key_of_its_baselines_folder() -> None:
    nvml = FakeNvml(FakeGpu())
    hardware = detect_hardware(nvml, {})
    assert (hardware.key, hardware.device, hardware.num_devices) == ("1xNVIDIA-H200", "gpu", 1)
    assert (hardware.memory_gib, hardware.power_limit_w, hardware.mig) == (141.0, 700.0, False)
    assert (hardware.telemetry, hardware.driver, hardware.cuda) == ("gpm", "580.159.04", "13.0")
    assert not nvml.is_open


def test_unlike_gpus_are_joined_and_the_smallest_counts() -> None:
    nvml = FakeNvml(FakeGpu(name="NVIDIA L4", memory_total_bytes=24 << 30, power_limit_w=72.0), FakeGpu())
    hardware = detect_hardware(nvml, {})
    assert hardware.key == "2xNVIDIA-H200+NVIDIA-L4"
    assert hardware.device_name == "NVIDIA H200+NVIDIA L4"
    assert (hardware.memory_gib, hardware.power_limit_w) == (24.0, 72.0)


@pytest.mark.parametrize(
    ("gpu", "telemetry", "mig"),
    [(FakeGpu(supports_gpm=False), "nvml", False), (FakeGpu(mig_enabled=True), "nvml", True)],
)
def test_without_trustworthy_gpm_the_source_is_nvml(gpu: FakeGpu, telemetry: str, mig: bool) -> None:
    hardware = detect_hardware(FakeNvml(gpu), {})
    assert (hardware.telemetry, hardware.mig) == (telemetry, mig)


def test_a_gpu_without_power_limit_has_none() -> None:
    gpu = FakeGpu(broken={"power_limit_w": NvmlError("Not Supported", "unsupported")})
    assert detect_hardware(FakeNvml(gpu), {}).power_limit_w is None


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, [0, 1]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "1, 0"}, [0, 1]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "0,7,1"}, [0]),  # an invalid entry hides itself and all after it
        ({"CUDA_VISIBLE_DEVICES": "GPU-cc"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-bb22"}, [0]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-dd"}, []),
    ],
)
def test_cuda_visible_devices_limits_what_counts(environ: Mapping[str, str], expected: list[int]) -> None:
    assert list_visible(two_gpus(), environ) == expected


def test_no_gpu_is_the_cpu_machine() -> None:
    assert detect_hardware(FakeNvml(open_error=NvmlError("not found", "no_library")), {}) == CPU_ONLY
    assert detect_hardware(two_gpus(), {"CUDA_VISIBLE_DEVICES": ""}) == CPU_ONLY
    assert (CPU_ONLY.key, CPU_ONLY.device, CPU_ONLY.telemetry) == ("cpu", "cpu", "host")


def test_usable_gpus_need_no_explanation() -> None:
    assert explain_missing_gpu(two_gpus(), {}) is None


@pytest.mark.parametrize(
    ("kind", "said", "command"),
    [
        ("no_binding", "cannot import pynvml", f"{sys.executable} -m pip install nvidia-ml-py"),
        ("no_library", "no NVIDIA driver", "nvidia-smi"),
        ("no_driver", "does not answer (Driver Not Loaded)", "sudo modprobe nvidia"),
        ("mismatch", "different versions", "cat /proc/driver/nvidia/version"),
        ("permission", "may not ask", "ls -l /dev/nvidiactl"),
        ("failed", "could not be started", "nvidia-smi"),
    ],
)
def test_each_dead_end_says_why_and_the_next_command(kind: NvmlErrorKind, said: str, command: str) -> None:
    message = explain_missing_gpu(FakeNvml(open_error=NvmlError("Driver Not Loaded", kind)), {})
    assert message is not None
    assert said in message
    assert command in message


def test_a_driver_without_gpu_and_hidden_gpus_are_told_apart() -> None:
    assert "lspci" in (explain_missing_gpu(FakeNvml(), {}) or "")
    hidden = explain_missing_gpu(two_gpus(), {"CUDA_VISIBLE_DEVICES": "-1"})
    assert hidden == (
        "CUDA_VISIBLE_DEVICES='-1' hides all 2 GPUs of this machine. Show them again: unset CUDA_VISIBLE_DEVICES"
    )


def test_a_lost_gpu_is_named() -> None:
    lost = FakeNvml(FakeGpu(), FakeGpu(broken={"*": NvmlError("GPU is lost")}))
    message = explain_missing_gpu(lost, {})
    assert message is not None
    assert message.startswith("GPU 1 does not answer: GPU is lost. Look at it: nvidia-smi -q -i 1.")
    with pytest.raises(NvmlError, match="GPU 1 does not answer"):
        detect_hardware(lost, {})
