"""A cell in, a verdict out: engine, record, measurement, baseline and judgement, in that order."""

from grpo_perf.runner.cells import CellSpec, find_stored, list_specs, order_specs, specify
from grpo_perf.runner.doctor import describe_machine
from grpo_perf.runner.judging import judge_folder, measure_folder
from grpo_perf.runner.options import RunnerOptions
from grpo_perf.runner.plan import Plan, make_plan, render_plan
from grpo_perf.runner.results import CellResult
from grpo_perf.runner.session import PerfSession
from grpo_perf.runner.settings import Settings, Setup, set_up

__all__ = [
    "CellResult",
    "CellSpec",
    "PerfSession",
    "Plan",
    "RunnerOptions",
    "Settings",
    "Setup",
    "describe_machine",
    "find_stored",
    "judge_folder",
    "list_specs",
    "make_plan",
    "measure_folder",
    "order_specs",
    "render_plan",
    "set_up",
    "specify",
]
