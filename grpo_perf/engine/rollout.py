"""Which rollout engine this machine's CPU can run, where there is no GPU."""

import platform
from pathlib import Path

from grpo_perf.catalog import RolloutEngine

_ENOUGH = {"avx2", "avx512f"}  # vLLM's CPU build for x86-64 has kernels for these and no others


def choose_rollout_engine(machine: str, cpu_flags: set[str]) -> tuple[RolloutEngine, str | None]:
    """(`vllm`, None), or (`hf`, the line that says why vLLM's CPU build cannot run here)."""
    if machine.lower() not in ("x86_64", "amd64"):
        return "hf", f"vLLM's CPU build needs x86-64, this machine is {machine}: using the transformers rollout."
    if not cpu_flags & _ENOUGH:
        return "hf", "vLLM's CPU build needs AVX2 or AVX-512, this CPU has neither: using the transformers rollout."
    return "vllm", None


def read_cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> set[str]:
    """Instruction set flags of the first core; empty where the system does not list them."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return set()
    for line in lines:
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()


def detect_rollout_engine() -> tuple[RolloutEngine, str | None]:
    """choose_rollout_engine() for this machine."""
    return choose_rollout_engine(platform.machine(), read_cpu_flags())
