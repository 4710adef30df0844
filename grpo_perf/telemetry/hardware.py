"""What the machine offers, or why it offers no GPU."""

import os
import sys
from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

from grpo_perf.telemetry.nvml import Nvml, NvmlError, PynvmlDevices
from grpo_perf.types import Hardware
from grpo_perf.units import BYTES_PER_GIB

T = TypeVar("T")

CPU_ONLY = Hardware(key="cpu", device="cpu", device_name="cpu", num_devices=1)
"""The processor's model belongs to the host's fingerprint: CPU baselines are ratios and travel between machines."""


def detect_hardware(nvml: Nvml | None = None, environ: Mapping[str, str] | None = None) -> Hardware:
    """The GPUs that a run started here would use, or CPU_ONLY where there are none.

    Raises:
        NvmlError: the driver works but a GPU that counts does not answer.
    """
    nvml = nvml if nvml is not None else PynvmlDevices()
    try:
        nvml.open()
    except NvmlError:
        return CPU_ONLY  # explain_missing_gpu says why
    try:
        indices = list_visible(nvml, os.environ if environ is None else environ)
        return _describe(nvml, indices) if indices else CPU_ONLY
    finally:
        nvml.close()


def explain_missing_gpu(nvml: Nvml | None = None, environ: Mapping[str, str] | None = None) -> str | None:
    """Why no GPU can be measured, with the next command; None where GPUs are usable."""
    nvml = nvml if nvml is not None else PynvmlDevices()
    environ = os.environ if environ is None else environ
    try:
        nvml.open()
    except NvmlError as error:
        return _explain_error(error)
    try:
        if nvml.num_gpus() == 0:
            return "The NVIDIA driver answers but has no GPU. Look for one on the bus: lspci | grep -i nvidia"
        indices = list_visible(nvml, environ)
        if not indices:
            return (
                f"CUDA_VISIBLE_DEVICES={environ['CUDA_VISIBLE_DEVICES']!r} hides all {nvml.num_gpus()} GPUs of this "
                "machine. Show them again: unset CUDA_VISIBLE_DEVICES"
            )
        _describe(nvml, indices)
    except NvmlError as error:
        return str(error)
    finally:
        nvml.close()
    return None


def list_visible(nvml: Nvml, environ: Mapping[str, str]) -> list[int]:
    """NVML indices of the GPUs that CUDA_VISIBLE_DEVICES leaves, ascending; all where it is not set.

    Its numbers are taken in PCI order, NVML's. CUDA's default order differs only between unlike GPUs of one machine;
    there, set CUDA_DEVICE_ORDER=PCI_BUS_ID.

    Source: CUDA C++ Programming Guide, environment variables (an invalid entry hides itself and all after it).
    """
    num_gpus = nvml.num_gpus()
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return list(range(num_gpus))
    visible: set[int] = set()
    for entry in (part.strip() for part in wanted.split(",")):
        index = int(entry) if entry.isdecimal() else _find_uuid(nvml, num_gpus, entry)
        if index is None or index >= num_gpus:
            break
        visible.add(index)
    return sorted(visible)


def _find_uuid(nvml: Nvml, num_gpus: int, entry: str) -> int | None:
    # CUDA accepts an unambiguous beginning of a UUID; a MIG device counts for the GPU that it is a part of.
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    for index in range(num_gpus):
        if any(uuid.startswith(entry) for uuid in _ask(nvml.uuids, index)):
            return index
    return None


def _describe(nvml: Nvml, indices: list[int]) -> Hardware:
    names = sorted({_ask(nvml.name, index) for index in indices})
    mig = any(_ask(nvml.mig_enabled, index) for index in indices)
    has_gpm = all(_ask(nvml.supports_gpm, index) for index in indices)
    # GPM of a GPU cut by MIG counts its other tenants too: no busy value is better than theirs.
    telemetry: Literal["gpm", "nvml"] = "gpm" if has_gpm and not mig else "nvml"
    memory_bytes = _smallest(nvml.memory_total_bytes, indices)
    return Hardware(
        key=_name_key(len(indices), names),
        device="gpu",
        device_name="+".join(names),
        num_devices=len(indices),
        memory_gib=memory_bytes / BYTES_PER_GIB if memory_bytes is not None else None,
        power_limit_w=_smallest(nvml.power_limit_w, indices),
        mig=mig,
        telemetry=telemetry,
        driver=nvml.driver_version(),
        cuda=nvml.cuda_version(),
    )


def _name_key(num_gpus: int, names: list[str]) -> str:
    # The key names a folder: blanks and slashes of a model name become dashes.
    return f"{num_gpus}x{'+'.join(names)}".replace(" ", "-").replace("/", "-")


def _smallest(getter: Callable[[int], float], indices: list[int]) -> float | None:
    # The smallest GPU is what a run can count on; a GPU that does not tell (no power sensor) makes it unknown.
    try:
        return min(_ask(getter, index) for index in indices)
    except NvmlError as error:
        if error.kind == "unsupported":
            return None
        raise


def _ask(getter: Callable[[int], T], index: int) -> T:
    try:
        return getter(index)
    except NvmlError as error:
        raise NvmlError(
            f"GPU {index} does not answer: {error}. Look at it: nvidia-smi -q -i {index}. "
            "Measure without it: CUDA_VISIBLE_DEVICES with the numbers of the others",
            error.kind,
        ) from error


def _explain_error(error: NvmlError) -> str:
    match error.kind:
        case "no_binding":
            python = sys.executable
            return f"{python} cannot import pynvml ({error}). Install it: {python} -m pip install nvidia-ml-py"
        case "no_library":
            return (
                "libnvidia-ml.so.1 was not found: this machine has no NVIDIA driver, or this container was started "
                "without it (docker run --gpus all). Look: nvidia-smi"
            )
        case "no_driver":
            return (
                f"The NVIDIA library is installed but the driver does not answer ({error}). "
                "Load it: sudo modprobe nvidia. Look: dmesg | grep -i nvrm"
            )
        case "mismatch":
            return (
                f"The NVIDIA library and the loaded driver are of different versions ({error}): the driver was "
                "upgraded while it was in use. Reboot. Look: cat /proc/driver/nvidia/version"
            )
        case "permission":
            return f"This user may not ask the NVIDIA driver ({error}). Look: ls -l /dev/nvidiactl /dev/nvidia0"
        case _:
            return f"NVML could not be started ({error}). Look: nvidia-smi"
