"""The seam between what is asked and how it is run: one request in, one finished run folder out."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from grpo_perf.catalog import RolloutEngine
from grpo_perf.types import Cell, Hardware

Progress = Callable[[str], None]
"""Takes one line about a run in progress, without a newline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One run of one cell."""

    cell: Cell
    runs_dir: Path
    """The new run folder is made in it."""
    hardware: Hardware
    python: Path
    """The interpreter whose verl is measured."""
    rollout_engine: RolloutEngine = "vllm"
    faults: list[str] = field(default_factory=list)
    """`update_actor:+50%`: those of this cell only, without `@cell`."""
    warm_start: bool = False
    """Fork the run's processes from one that has imported verl's stack (inside/grpo_perf_warm.py)."""
    experiment: str = ""
    """`alternate` or `trace:STEP` (inside/grpo_perf_experiment.py); such a run tests the measurement, never a cell."""
    cache_dir: Path
    """Generated models and data, shared between runs."""


class Engine(Protocol):
    """Whatever turns a request into a run folder."""

    def run(self, request: RunRequest, progress: Progress) -> Path:
        """The finished run folder; a run that failed is a folder that says so.

        Raises:
            UsageError: the request can never run; found before anything was started.
            EngineError: nothing could be started.
            KeyboardInterrupt: Ctrl-C or SIGTERM; the folder is kept and marked partial.
        """
        ...
