"""The environment variables of a measured run, and the folder that stands on its PYTHONPATH."""

import os
from collections.abc import Mapping
from pathlib import Path

from grpo_perf.types import Device, Scalar

INSIDE = Path(__file__).parent / "inside"

_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HYDRA_FULL_ERROR": "1",
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "true",
    # Ray sizes its memory monitor from MemTotal, which is not the limit on virtual machines that grow.
    "RAY_memory_monitor_refresh_ms": "0",
}
_CPU = {
    "VERL_PLATFORM": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # One thread a process: with two, vLLM, the trainer and Ray fight for two cores and step times scatter.
    "OMP_NUM_THREADS": "1",
}
_DROPPED = (
    "GRPO_PERF_FAULT",
    "RAY_ADDRESS",
    "PYTEST_CURRENT_TEST",
    "PYTEST_ADDOPTS",
    "VIRTUAL_ENV",
    "PYTHONHOME",
    "PYTHONDONTWRITEBYTECODE",
)


def build_environment(
    *,
    base: Mapping[str, str],
    device: Device,
    python: Path,
    run_id: str,
    run_dir: Path,
    scratch: Path,
    cache_dir: Path,
    faults: list[str],
    experiment: str = "",
    versions: Mapping[str, str | None],
) -> dict[str, str]:
    """The whole environment of a measured run. What the user set wins over our defaults, except the probe's own."""
    modules = ["grpo_perf_probe"]
    if device == "cpu":
        modules.append("grpo_perf_cpu_platform")
    modules += [name for name in base.get("VERL_USE_EXTERNAL_MODULES", "").split(",") if name]
    paths = [str(INSIDE)]
    alias = write_vllm_alias(run_dir / "site", versions) if device == "cpu" else None
    if alias is not None:
        paths.append(str(alias))
    paths += [base["PYTHONPATH"]] if base.get("PYTHONPATH") else []
    defaults = _QUIET | (_CPU if device == "cpu" else _gpu_defaults(versions))
    defaults |= _compile_caches(cache_dir)
    environment = defaults | {key: value for key, value in base.items() if key not in _DROPPED}
    if base.get("PYTHONDONTWRITEBYTECODE"):
        # A dozen processes would compile the same 5,000 modules; the bytecode goes to our cache, not to their packages.
        environment["PYTHONPYCACHEPREFIX"] = str(cache_dir.resolve() / "bytecode")
    environment |= {
        "PATH": f"{python.parent}{os.pathsep}{base.get('PATH', os.defpath)}",
        "PYTHONPATH": os.pathsep.join(paths),
        "VERL_USE_EXTERNAL_MODULES": ",".join(dict.fromkeys(modules)),
        "VERL_FILE_LOGGER_PATH": str(run_dir / "steps.jsonl"),
        "GRPO_PERF_RUN_ID": run_id,
        "GRPO_PERF_PARTS": str(run_dir / "parts"),
        "GRPO_PERF_RUN_FAULTS": ",".join(faults),
        "GRPO_PERF_EXPERIMENT": experiment,
        "TMPDIR": str(scratch),
    }
    return environment


def _compile_caches(cache_dir: Path) -> dict[str, str]:
    # Two of these default to TMPDIR, which ends with the run: a second cell would compile everything again.
    compiled = cache_dir.resolve() / "compiled"
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(compiled / "inductor"),
        "TRITON_CACHE_DIR": str(compiled / "triton"),
        "VLLM_CACHE_ROOT": str(compiled / "vllm"),
    }


def _gpu_defaults(versions: Mapping[str, str | None]) -> dict[str, str]:
    # vLLM samples with flashinfer by default and fails at the first token where it is not installed.
    return {} if versions.get("flashinfer-python") else {"VLLM_USE_FLASHINFER_SAMPLER": "0"}


def write_vllm_alias(folder: Path, versions: Mapping[str, str | None]) -> Path | None:
    """A metadata-only distribution `vllm`, as a folder for PYTHONPATH; None where `vllm` itself is installed.

    verl and vLLM ask importlib.metadata for a distribution called "vllm"; vLLM's CPU build is called "vllm-cpu" and
    ships the same import package. Nothing is installed under the measured environment.
    """
    version = versions.get("vllm-cpu")
    if versions.get("vllm") or not version:
        return None
    info = folder / f"vllm-{version}+cpu.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    return folder


def describe_changes(environment: Mapping[str, str], base: Mapping[str, str]) -> dict[str, Scalar]:
    """What the run's environment sets beyond the caller's, for the fingerprint; run-specific paths are left out."""
    per_run = {"GRPO_PERF_RUN_ID", "GRPO_PERF_PARTS", "VERL_FILE_LOGGER_PATH", "TMPDIR", "PATH", "PYTHONPATH"}
    per_run |= {
        "PYTHONPYCACHEPREFIX",
        "GRPO_PERF_RUN_FAULTS",
        "GRPO_PERF_EXPERIMENT",
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
        "VLLM_CACHE_ROOT",
    }
    changed = {key: value for key, value in environment.items() if base.get(key) != value}
    return {f"env:{key}": value for key, value in sorted(changed.items()) if key not in per_run}
