"""What a person sees: the summary table of a session, and the runs as pytest-benchmark knows them."""

from grpo_perf.report.benchmark import play_into_benchmark
from grpo_perf.report.ladder import group_runs, plot_ladder, render_ladder
from grpo_perf.report.table import CellRow, render_summary
from grpo_perf.report.truth import render_loads, render_phases

__all__ = [
    "CellRow",
    "group_runs",
    "play_into_benchmark",
    "plot_ladder",
    "render_ladder",
    "render_loads",
    "render_phases",
    "render_summary",
]
