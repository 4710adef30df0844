"""The summary as a person sees it."""

from dataclasses import replace
from pathlib import Path

from grpo_perf.report import CellRow, render_summary
from grpo_perf.types import JudgeContext, Measurement, MetricValue, Target
from grpo_perf.verdict import judge
from tests.verdict.measurements import TIER, make_baseline, make_measurement, make_ratio_baseline


def make_row(
    run: Measurement | None, *, role: str = "measured", wall_s: float | None = 312.4, **context: object
) -> CellRow:
    verdict = None
    if run is not None and role != "reference":
        targets = {"busy_fraction": Target(minimum=0.45)}
        settings = {"baseline": make_baseline(), "baseline_path": "baselines/x.json"} | context
        verdict = judge(run, tier=TIER, targets=targets, context=JudgeContext(**settings))  # type: ignore[arg-type]
    cell = f"{run.workload}/{run.tier}" if run else "qwen2.5-7b/memory"
    return CellRow(
        cell=cell,
        role=role,
        measurement=run,
        verdict=verdict,
        path=Path("runs/run-1"),
        wall_s=wall_s,  # type: ignore[arg-type]
    )


def test_a_passing_cell_is_one_line() -> None:
    lines = render_summary([make_row(make_measurement())])
    assert lines == [
        "cell                          loop s    tokens/h    busy    idle  idle s/step in      baseline  change"
        "               verdict",
        "--------------------------  --------  ----------  ------  ------  ----------------  ----------  "
        "-------------------  ---------",
        "qwen2.5-1.5b/dynamic-batch        10   3,600,000  60.0 %  40.0 %  gen 3                   10 s  "
        "+0.0 % [+0.0, +0.0]  PASS",
        "",
        "  wall time 312 s: qwen2.5-1.5b/dynamic-batch 312 s",
    ]


def test_a_regressed_cell_says_why_and_what_next() -> None:
    run = make_measurement([13.0] * 5, phases={"gen": 5.0, "ref": 1.0, "update_actor": 7.0}, subject={"verl": "0.9.1"})
    text = "\n".join(render_summary([make_row(run)]))
    assert "+30.0 % [+30.0, +30.0]  REGRESSED" in text
    assert "REGRESSED qwen2.5-1.5b/dynamic-batch (runs/run-1)" in text
    assert "  REGRESSED loop_time_s +30.0 % [+30.0, +30.0], allowed 5.0 %: update_actor +3 s (100 % of it)" in text
    assert "  loop time by phase: update_actor +3 s (100 % of the change)" in text
    assert "  changed since the baseline: verl 0.9.0 -> 0.9.1" in text
    assert text.count("next: grpo-perf judge runs/run-1") == 1


def test_an_upgrade_that_passes_is_still_told() -> None:
    lines = render_summary([make_row(make_measurement(subject={"verl": "0.9.1"}))])
    assert "PASS qwen2.5-1.5b/dynamic-batch (runs/run-1)" in lines
    assert "  changed since the baseline: verl 0.9.0 -> 0.9.1" in lines


def test_claims_with_the_same_message_are_told_once() -> None:
    lines = render_summary([make_row(make_measurement(invalid_reasons=["GPU 0 was throttled"]))])
    assert sum("GPU 0 was throttled" in line for line in lines) == 1
    assert "  next: pytest perf_tests -m gpu -k dynamic-batch" in lines


def test_no_baseline_prints_its_command_in_one_piece() -> None:
    lines = render_summary([make_row(make_measurement(), baseline=None)])
    assert "  next: pytest perf_tests -m gpu -k dynamic-batch --perf-baseline=create" in lines
    row = lines[2]
    assert "n/a" in row
    assert row.endswith("NO_BASELINE")


def test_cpu_rows_speak_of_the_host_and_of_ratios() -> None:
    base = make_measurement([20.0] * 5, hardware="cpu", tier="untuned", run_id="base")
    run = make_measurement(hardware="cpu")
    context = {"baseline": make_ratio_baseline(0.5), "references": [base]}
    lines = render_summary([make_row(base, role="reference", wall_s=100.0), make_row(run, wall_s=50.0, **context)])
    reference, measured = lines[2], lines[3]
    words = "cpu-tiny/untuned 20 1,800,000 host 87 % host 13 % host gen 1.2 n/a n/a reference"
    assert reference.split() == words.split()
    assert "x 0.5" in measured
    assert lines[-1] == "  wall time 150 s: cpu-tiny/untuned 100 s, cpu-tiny/dynamic-batch 50 s"


def test_what_is_missing_is_not_available() -> None:
    lines = render_summary([make_row(None, wall_s=None)])
    assert lines[2].split() == ["qwen2.5-7b/memory"] + ["n/a"] * 8
    assert len(lines) == 3


def test_a_gpu_without_gpm_shows_no_busy() -> None:
    blind = {name: MetricValue(value=None, reason="no GPM") for name in ("busy_fraction", "idle_fraction")}
    blind |= {f"idle_s_per_step/{phase}": MetricValue(value=None) for phase in ("gen", "ref")}
    assert "3,600,000     n/a     n/a  n/a" in render_summary([make_row(make_measurement(metrics=blind))])[2]


def test_a_stored_run_is_marked() -> None:
    lines = render_summary([make_row(make_measurement(), role="replayed")])
    assert lines[2].startswith("qwen2.5-1.5b/dynamic-batch *")
    assert lines[3] == "* judged from a stored run"


def test_the_summary_fits_140_columns() -> None:
    run = make_measurement([1.0, 9999.123, 43210.0, 5000.0, 77000.0], warnings=["a warning of many words " * 20])
    row = make_row(run, wall_s=123456.0)
    long = replace(row, cell="a-workload-with-a-very-long-name-72b-instruct-v2.5-1m-context/fsdp2-prefetch-offload")
    lines = render_summary([row, long, make_row(make_measurement(hardware="cpu"))])
    assert max(map(len, lines)) <= 140
    assert lines[3].startswith("…")
    assert "fsdp2-prefetch-offload " in lines[3]


def test_nothing_measured() -> None:
    assert render_summary([]) == ["no cell was measured"]
