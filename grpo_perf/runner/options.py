"""What a session of runs is told, and the checks that a person should see before anything starts."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from grpo_perf.catalog import Catalog, RolloutEngine
from grpo_perf.errors import UsageError
from grpo_perf.telemetry.hardware import CPU_ONLY
from grpo_perf.types import Device, Hardware, Overrides
from grpo_perf.units import BYTES_PER_GIB

BaselineMode = Literal["check", "create"]
WarmStart = Literal["auto", "on", "off"]

RUN_ROOM_GIB = 0.1
"""Room that a session must find: a run folder holds about 5 MiB, its log up to ten times that."""

_PROBE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """Everything a PerfSession needs beside its engine."""

    python: Path
    """The interpreter whose verl is measured."""
    runs_dir: Path
    baselines_dir: Path
    cache_dir: Path
    """Generated models and data."""
    catalog: Catalog | None
    """None where only stored runs are judged."""
    hardware: Hardware
    rollout_engine: RolloutEngine = "vllm"
    warm_start: WarmStart = "auto"
    """`auto`: where there is no GPU. With one it has not been shown to leave the measured steps alone."""
    faults: str = ""
    """GRPO_PERF_FAULT as it was given."""
    budget_min: float = 10.0
    """Minutes that may go into further runs of inconclusive cells."""
    baseline_mode: BaselineMode = "check"
    num_create_runs: int = 3
    """Valid runs that a new baseline is made from."""
    workload_changes: Mapping[str, object] = field(default_factory=dict)
    extra_overrides: Overrides = field(default_factory=dict)
    stored: Mapping[str, Path] = field(default_factory=dict)
    """Cell name -> run folder that is judged instead of running the cell."""

    def starts_warm(self, device: Device) -> bool:
        """Whether processes of a run on that device are forked from one that has imported verl's stack."""
        return self.warm_start == "on" or (self.warm_start == "auto" and device == "cpu")

    def hardware_for(self, device: Device) -> Hardware:
        """The hardware that a workload of that device runs on: GPU machines can run CPU cells too."""
        hardware = self.hardware if self.hardware.device == device else CPU_ONLY
        if device == "cpu" and self.rollout_engine == "hf":
            # Another rollout is another machine to a ratio: its baselines have their own folder.
            return replace(hardware, key="cpu-hf")
        return hardware


def check_runs_dir(folder: Path) -> None:
    """Make the folder of the runs and prove that it takes data.

    Raises:
        UsageError: read-only, full, or no folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe-") as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
            status = os.statvfs(folder)
    except OSError as error:
        raise UsageError(
            f"Cannot write runs to {folder}: {error.strerror or error}. Choose another folder: --perf-runs DIR"
        ) from error
    free_gib = status.f_bavail * status.f_frsize / BYTES_PER_GIB
    if free_gib < RUN_ROOM_GIB:
        raise UsageError(
            f"Only {free_gib * 1024:.0f} MiB are free in {folder}; a session needs {RUN_ROOM_GIB * 1024:.0f} MiB. "
            "Make room or choose another folder: --perf-runs DIR"
        )
