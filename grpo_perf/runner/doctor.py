"""What this machine can measure, what is missing, and the next command."""

import shutil
import sys
from pathlib import Path

from grpo_perf.errors import UsageError
from grpo_perf.runner.cells import list_specs
from grpo_perf.runner.options import check_runs_dir
from grpo_perf.runner.settings import Setup

_TELEMETRY = {
    "gpm": "GPM: busy, idle and their phases can be measured",
    "nvml": "NVML without GPM: busy and idle are n/a, time, memory and power can be measured",
    "host": "processes of the run: host_busy_fraction stands for busy, GPU metrics are n/a",
}


def describe_machine(setup: Setup) -> tuple[list[str], bool]:
    """Lines for a person, and whether any cell can be measured."""
    hardware = setup.options.hardware
    names = [spec.name for spec in list_specs(setup.options, setup.devices)]
    problems = [_find_subject_problem(setup), _find_runs_problem(setup), _find_cell_problem(names)]
    found = [problem for problem in problems if problem]
    lines = [
        f"hardware   {hardware.key}" + (f". No GPU is usable: {setup.gpu_problem}" if setup.gpu_problem else ""),
        f"telemetry  {_TELEMETRY.get(hardware.telemetry, hardware.telemetry)}",
        f"verl       {setup.subject.title}",
        f"rollout    {setup.subject.rollout_engine}",
        *[f"note       {remark}" for remark in setup.subject.remarks],
        f"stacks     {_describe_stacks()}",
        f"cells      {', '.join(names) or 'none'}",
        *[f"missing    {problem}" for problem in found],
    ]
    if not found:
        lines.append(f"next       pytest perf_tests --perf-plan, or one cell: grpo-perf run {names[0]}")
    return lines, not found


def _find_subject_problem(setup: Setup) -> str | None:
    return str(setup.subject_problem) if setup.subject_problem else None


def _find_runs_problem(setup: Setup) -> str | None:
    try:
        check_runs_dir(setup.options.runs_dir)
    except UsageError as error:
        return str(error)
    return None


def _find_cell_problem(names: list[str]) -> str | None:
    return None if names else "No workload of the catalogue fits this machine. Add one: perf_tests/workloads/NAME.toml"


def _describe_stacks() -> str:
    if shutil.which("py-spy") or Path(sys.executable).with_name("py-spy").is_file():
        return "py-spy: a hang leaves the stacks of its processes"
    return "py-spy is not on PATH: a hang leaves no stacks. Install it: pip install py-spy"
