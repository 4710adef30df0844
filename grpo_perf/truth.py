"""What perf_tests/test_measurement.py asks: does the measurement tell the truth, and what does it cost?"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import pytest

from grpo_perf.campaigns import (
    LoadResult,
    Overhead,
    TracedStep,
    compare_trace,
    measure_known_loads,
    measure_overhead,
)
from grpo_perf.record import load_run, write_json
from grpo_perf.report import render_loads, render_phases
from grpo_perf.runner import PerfSession
from grpo_perf.types import Scalar
from grpo_perf.units import format_percent

TRACED_STEP = 6
"""Late enough for the first trace of each process, which is thrown away, to lie behind the first step."""
STEPS_AFTER_TRACE = 3
OVERHEAD_STEPS = 44
"""Steady steps, unless --perf-steps says otherwise: 22 loops of either kind, or so."""


@dataclass(frozen=True)
class Truth:
    """Checks of the measurement, each made once a session, with its table printed and its figures kept in runs/."""

    session: PerfSession
    say: Callable[[str], None]

    @cached_property
    def known_loads(self) -> dict[str, LoadResult]:
        """Known loads by name. Without verl: two minutes of a GPU."""
        options = self.session.options
        if options.hardware.device != "gpu":
            pytest.fail("Known loads need an NVIDIA GPU with GPM. Look: grpo-perf doctor", pytrace=False)
        self.session.prepare()
        folder = options.runs_dir.absolute() / time.strftime("%Y%m%d-%H%M%S-known-loads", time.gmtime())
        folder.mkdir(parents=True)
        self.say("known loads: about two minutes")
        results = measure_known_loads(options.python, folder, options.hardware)
        rows = [_describe_load(result) for result in results]
        write_json(folder / "truth.json", rows)
        self._show(f"busy fraction of known loads, {options.hardware.device_name} ({folder})", render_loads(rows))
        return {result.load: result for result in results}

    def trace_step(self, cell: str) -> TracedStep:
        """A run of the cell in which every kernel of one step is recorded beside the samples."""
        num_steps = TRACED_STEP + STEPS_AFTER_TRACE - 1
        path = self.session.run_experiment(cell, f"trace:{TRACED_STEP}", num_steps)
        found = compare_trace(load_run(path))
        rows: list[dict[str, Scalar]] = [
            {
                "phase": phase,
                "num_rows": agreement.num_rows,
                "busy": agreement.measured,
                "kernels": agreement.known,
                "both": found.both[phase].known,
            }
            for phase, agreement in found.kernels.items()
        ]
        write_json(path / "truth.json", {"traced": found, "rows": rows})
        title = (
            f"step {found.step} of {cell}: {found.num_kernels:,} kernels and {found.num_copies:,} copies of "
            f"{found.num_processes} processes, step time {format_percent(found.slowdown, signed=True)} by tracing "
            f"({path})"
        )
        self._show(title, render_phases(rows))
        return found

    def measure_overhead(self, cell: str) -> Overhead:
        """A run of the cell in which spans and sampler are off in every other step."""
        asked = self.session.options.workload_changes.get("num_steady_steps")
        path = self.session.run_experiment(cell, "alternate", asked if isinstance(asked, int) else OVERHEAD_STEPS)
        found = measure_overhead(load_run(path))
        write_json(path / "truth.json", found)
        self._show(f"what watching costs, {cell} ({path})", [describe_overhead(found)])
        return found

    def _show(self, title: str, lines: list[str]) -> None:
        self.say(title)
        for line in lines:
            self.say(f"  {line}")


def describe_overhead(found: Overhead) -> str:
    """`loop time +0.1 % [-0.4, +0.6] with spans and sampler on, 22 loops against 21 without`."""
    change = found.change
    return (
        f"loop time {format_percent(change.point, digits=2, signed=True)} "
        f"[{change.low * 100:+.2f}, {change.high * 100:+.2f}] with spans and sampler on, "
        f"{len(found.watched_s)} loops against {len(found.unwatched_s)} without"
    )


def _describe_load(result: LoadResult) -> dict[str, Scalar]:
    agreement = result.kernels
    return {
        "load": result.load,
        "known": agreement.known,
        "known_with_copies": result.both.known,
        "busy": agreement.measured,
        "error": agreement.error,
        "row_error": agreement.row_error,
        "nvml": result.nvml,
        "clock_error_s": result.clock_error_s,
        "num_rows": agreement.num_rows,
    }
