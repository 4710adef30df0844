"""What was measured, in three classes: identity must match, subject is judged, host is compared with a warning."""

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from grpo_perf.types import Cell, Fingerprint, Hardware, Scalar

_HOST_KEYS = ("python",)


def build_fingerprint(
    *,
    cell: Cell,
    hardware: Hardware,
    versions: Mapping[str, str | None],
    workload_hash: str,
    rollout_engine: str,
    environment: Mapping[str, Scalar],
) -> Fingerprint:
    """The fingerprint of a run about to start."""
    identity: dict[str, Scalar] = {
        "device_name": hardware.device_name,
        "num_devices": hardware.num_devices,
        "num_nodes": 1,
        "telemetry": hardware.telemetry,
        "workload_hash": workload_hash,
        "rollout_engine": rollout_engine,
    }
    if hardware.device == "gpu":
        identity |= {
            "memory_gib": hardware.memory_gib,
            "mig": hardware.mig,
            "power_limit_w": hardware.power_limit_w,
            "flash_attn": _flash_attention(versions),
        }
    subject: dict[str, Scalar] = {name: version for name, version in versions.items() if name not in _HOST_KEYS}
    subject |= {f"override:{key}": _as_scalar(value) for key, value in sorted(cell.overrides.items())}
    return Fingerprint(identity=identity, subject=subject | dict(environment), host=_describe_host(hardware, versions))


def _flash_attention(versions: Mapping[str, str | None]) -> str:
    version = versions.get("flash-attn")
    if version is None:
        return "none"
    return "stand-in" if "stand-in" in (versions.get("flash-attn-summary") or "") else "real"


def _as_scalar(value: object) -> Scalar:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _describe_host(hardware: Hardware, versions: Mapping[str, str | None]) -> dict[str, Scalar]:
    return {
        "cpu": cpu_model(Path("/proc/cpuinfo")),
        "num_cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": versions.get("python"),
        "driver": hardware.driver,
        "cuda": hardware.cuda,
    }


def cpu_model(cpuinfo: Path) -> str | None:
    """The processor as /proc/cpuinfo names it, None where it does not say."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return None
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    return names[0] if names else None
