"""Tiers side by side: gains with intervals, idle by phase, and a plot that holds a bar a tier."""

from dataclasses import replace
from pathlib import Path

import pytest

from grpo_perf.errors import UsageError
from grpo_perf.report import group_runs, plot_ladder, render_ladder
from grpo_perf.timeline import measure
from grpo_perf.types import Measurement
from tests.builders import make_record, make_tier

SLOW = {"gen": 6.0, "update_actor": 1.5}
FAST = {"gen": 2.0, "update_actor": 1.5}


def run(tier: str, phases: dict[str, float], number: int = 1) -> Measurement:
    record = make_record(phases=phases, busy=0.5, tier=make_tier(name=tier), run_id=f"{tier}-{number}")
    return measure(record)


def test_runs_of_a_tier_are_one_rung_and_the_first_is_the_reference() -> None:
    runs = [run("untuned", SLOW), run("recommended", FAST), run("recommended", FAST, 2)]
    rungs = group_runs(runs)
    assert [(rung.name.partition("/")[2], len(rung.runs)) for rung in rungs] == [("untuned", 1), ("recommended", 2)]
    lines = render_ladder(rungs)
    assert "faster than untuned" in lines[0]
    untuned, recommended = lines[2:4]
    assert not untuned.split("|")[5].strip()
    assert [cell.strip() for cell in recommended.split("|")[2:6]] == ["2", "8", "4", "x 2 [2, 2] (1)"]
    assert "One run on a side" in "\n".join(lines)


def test_a_run_that_may_not_be_judged_is_marked() -> None:
    cut = replace(run("untuned", SLOW), invalid_reasons=["the run is partial"])
    lines = render_ladder(group_runs([cut, run("recommended", FAST)]))
    assert lines[2].startswith("| `untuned` (!)")
    assert "(!) untuned: not to be judged, the run is partial." in lines


def test_idle_by_phase_leaves_out_what_is_never_idle() -> None:
    lines = render_ladder(group_runs([run("untuned", {"gen": 6.0, "adv": 0.01}), run("fast", {"gen": 2.0})]))
    header = next(line for line in lines if "idle GPU-s" in line)
    assert "`gen`" in header
    assert "`adv`" not in header
    assert any(line.startswith("| `untuned`") and " 3 |" in line for line in lines)


def test_runs_of_two_workloads_are_no_ladder() -> None:
    one = run("untuned", SLOW)
    with pytest.raises(UsageError, match="one workload on one kind of machine"):
        group_runs([one, replace(one, workload="other")])


def test_the_plot_names_tiers_and_phases(tmp_path: Path) -> None:
    path = tmp_path / "ladder.svg"
    plot_ladder(group_runs([run("untuned", SLOW), run("recommended", FAST)]), path)
    assert path.read_text().count("<svg") == 1
    again = tmp_path / "again.png"
    plot_ladder(group_runs([run("untuned", SLOW)]), again)
    assert again.read_bytes().startswith(b"\x89PNG")


def test_a_plot_of_an_unknown_kind_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ladder\.xyz cannot be written"):
        plot_ladder(group_runs([run("untuned", SLOW)]), tmp_path / "ladder.xyz")
