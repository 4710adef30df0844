"""A ladder of tiers side by side, from finished runs: Markdown tables, and a plot of where a loop's time goes.

tier             runs  loops  loop s  faster than untuned       busy  idle s/step
untuned             1      4    51.4                          12.5 %         45.0
recommended         3     15    5.63  x 9.13 [8.60, 10.5]     48.8 %          2.8
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from grpo_perf.errors import UsageError
from grpo_perf.metrics import PHASES, get_metric, phase_of
from grpo_perf.types import Measurement
from grpo_perf.units import NA, format_number, format_percent
from grpo_perf.verdict.samples import collect_runs, count_loops
from grpo_perf.verdict.stats import compare_runs, summarize_runs

MIN_SHOWN_S = 0.05
"""A phase with less idle than that in every tier is left out of the table of idle."""
MIN_BAR = 0.002
"""A phase with less than that share of the longest loop would be a hair in the plot: it is left out."""
_INTERVAL_RUNS = 2
"""With one run on either side an interval shows the scatter of loops and hides that of runs: it is marked."""
_MARK = "(1)"
_INVALID_MARK = "(!)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """All runs of one tier."""

    name: str
    """`workload/tier`."""
    runs: list[Measurement]

    @property
    def invalid_reasons(self) -> list[str]:
        """Why runs of it may not be judged; they are shown all the same."""
        return list(dict.fromkeys(reason for run in self.runs for reason in run.invalid_reasons))

    def value(self, metric: str) -> float | None:
        """Median over runs, None where no run has it."""
        rows = collect_runs(self.runs, metric)
        return summarize_runs(rows, get_metric(metric).aggregation) if rows else None


def group_runs(measurements: Sequence[Measurement]) -> list[Rung]:
    """Runs by cell, cells in the order in which they first appear.

    Raises:
        UsageError: runs of different workloads or hardware: they make no ladder.
    """
    kinds = sorted({(run.workload, run.hardware) for run in measurements})
    if len(kinds) > 1:
        listed = " and ".join(f"{workload} on {hardware}" for workload, hardware in kinds)
        raise UsageError(f"A ladder is of one workload on one kind of machine; these runs are of {listed}.")
    rungs: dict[str, list[Measurement]] = {}
    for run in measurements:
        rungs.setdefault(f"{run.workload}/{run.tier}", []).append(run)
    return [Rung(name=name, runs=runs) for name, runs in rungs.items()]


def render_ladder(rungs: Sequence[Rung]) -> list[str]:
    """Two Markdown tables: the tiers, and the idle of a loop by phase."""
    base = rungs[0]
    headers = ("tier", "runs", "loops", "loop s", f"faster than {_tier(base)}", "tokens/h", "busy", "idle", "NVML")
    rows = [
        (
            f"`{_tier(rung)}`" + (f" {_INVALID_MARK}" if rung.invalid_reasons else ""),
            len(rung.runs),
            count_loops(rung.runs),
            format_number(rung.value("loop_time_s")),
            _show_gain(rung, base),
            format_number(rung.value("effective_tokens_per_hour")),
            format_percent(rung.value("busy_fraction")),
            format_percent(rung.value("idle_fraction")),
            format_percent(rung.value("nvml_utilization")),
        )
        for rung in rungs
    ]
    table = _markdown(rows, headers)
    remark = "The gain is the ratio of loop times, with the 99 % interval of a bootstrap over runs and loops."
    if any(_MARK in str(row[4]) for row in rows):
        remark += f" {_MARK} One run on a side: the scatter between runs is not in it."
    remarks = [remark]
    remarks += [
        f"{_INVALID_MARK} {_tier(rung)}: not to be judged, {'; '.join(rung.invalid_reasons)}."
        for rung in rungs
        if rung.invalid_reasons
    ]
    return [*table, "", *remarks, "", *_render_idle(rungs)]


def _show_gain(rung: Rung, base: Rung) -> str:
    if rung is base:
        return ""
    change = compare_runs(collect_runs(base.runs, "loop_time_s"), collect_runs(rung.runs, "loop_time_s"), "median")
    if change is None:
        return NA
    mark = f" {_MARK}" if min(len(rung.runs), len(base.runs)) < _INTERVAL_RUNS else ""
    low, high = format_number(1 + change.low), format_number(1 + change.high)
    return f"x {format_number(1 + change.point)} [{low}, {high}]{mark}"


def _render_idle(rungs: Sequence[Rung]) -> list[str]:
    idle = {rung.name: collect_phases(rung, "idle_s_per_step") for rung in rungs}
    phases = [
        phase
        for phase in _order({phase for amounts in idle.values() for phase in amounts})
        if any(amounts.get(phase, 0.0) >= MIN_SHOWN_S for amounts in idle.values())
    ]
    if not phases:
        return []
    rows = [(f"`{_tier(rung)}`", *(format_number(idle[rung.name].get(phase)) for phase in phases)) for rung in rungs]
    headers = ("idle GPU-s a loop", *(f"`{phase}`" for phase in phases))
    return _markdown(rows, headers)


def collect_phases(rung: Rung, family: str) -> dict[str, float]:
    """Median over runs of each member of a family, by phase."""
    names = {name for run in rung.runs for name in run.metrics if name.startswith(f"{family}/")}
    values = {phase_of(name) or name: rung.value(name) for name in names}
    return {phase: value for phase, value in values.items() if value is not None}


def plot_ladder(rungs: Sequence[Rung], path: Path) -> None:
    """A bar a tier: the seconds of a loop by phase, the idle part of each phase pale.

    Raises:
        UsageError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(f"--plot needs matplotlib: {error}. Install it: pip install 'grpo-perf[plots]'") from error
    figure = Figure(figsize=(9, 0.8 + 0.7 * len(rungs)), layout="constrained")
    axes = figure.add_subplot()
    times = {rung.name: collect_phases(rung, "phase_s") for rung in rungs}
    longest_s = max(sum(amounts.values()) for amounts in times.values())
    shown = {phase for amounts in times.values() for phase in amounts if amounts[phase] >= MIN_BAR * longest_s}
    idle = {rung.name: collect_phases(rung, "idle_s_per_step") for rung in rungs}
    ends = [0.0] * len(rungs)
    for index, phase in enumerate(_order(shown)):
        color = f"C{index % 10}"
        for row, rung in enumerate(rungs):
            length = times[rung.name].get(phase, 0.0)
            busy_s = max(0.0, length - idle[rung.name].get(phase, 0.0))
            axes.barh(row, busy_s, left=ends[row], color=color, label=phase if row == 0 else None)
            axes.barh(row, length - busy_s, left=ends[row] + busy_s, color=color, alpha=0.3)
            ends[row] += length
    axes.set_yticks(range(len(rungs)), [_tier(rung) for rung in rungs])
    axes.invert_yaxis()
    first = rungs[0].runs[0]
    axes.set_xlabel(f"seconds of a loop; pale: GPU idle ({first.workload}, {first.hardware})")
    axes.legend(fontsize="small", ncols=4, loc="lower right")
    try:
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except (OSError, ValueError) as error:
        raise UsageError(f"--plot: {path} cannot be written: {error}") from error


def _order(names: set[str]) -> list[str]:
    """verl's phases in the order of a step, others by name after them."""
    rank = {name: number for number, name in enumerate(PHASES)}
    return sorted(names, key=lambda name: (rank.get(name, len(rank)), name))


def _tier(rung: Rung) -> str:
    return rung.name.partition("/")[2]


def _markdown(rows: Sequence[Sequence[object]], headers: Sequence[str]) -> list[str]:
    align = ("left", *["right"] * (len(headers) - 1))
    return tabulate(rows, headers=headers, tablefmt="github", colalign=align, disable_numparse=True).splitlines()
