"""The command line: what is printed, and the exit code."""

import subprocess
import sys
from pathlib import Path

import pytest

from grpo_perf.cli import EXIT_NO_VERDICT, EXIT_OK, EXIT_REGRESSED, EXIT_USAGE, exit_code, main
from grpo_perf.runner import measure_folder, settings
from grpo_perf.runner.subject import Subject
from grpo_perf.types import Verdict
from tests.builders import make_hardware
from tests.run_folders import write_baseline, write_catalog, write_ladder, write_run

REPO = Path(__file__).parents[1]
REPLAY = ("--engine", "replay:stored")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a catalogue, as the current one, on a machine without a GPU."""
    monkeypatch.delenv("GRPO_PERF_FAULT", raising=False)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(settings, "detect_hardware", lambda: make_hardware(device="cpu"))
    monkeypatch.setattr(settings, "explain_missing_gpu", lambda: "No driver. Look: nvidia-smi")
    monkeypatch.setattr(settings, "inspect_subject", lambda *_: Subject(title="verl 0.9.1"))
    write_catalog(tmp_path / "perf_tests")
    return tmp_path


def test_run_measures_judges_and_passes(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_ladder(project / "stored")
    write_baseline(project)
    assert main(["run", "cpu-tiny/dynamic-batch", *REPLAY]) == EXIT_OK
    out = capsys.readouterr().out
    assert "plan: 2 cells on cpu, 2 runs" in out
    assert "cpu-tiny/untuned: replay of stored/untuned-1" in out
    assert "PASS" in out


def test_run_of_a_slow_cell(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_ladder(project / "stored", update_actor_s=2.0)
    write_baseline(project)
    assert main(["run", "cpu-tiny/dynamic-batch", *REPLAY]) == EXIT_REGRESSED
    assert "update_actor" in capsys.readouterr().out


def test_run_without_a_baseline_has_no_verdict(project: Path) -> None:
    write_ladder(project / "stored")
    assert main(["run", "cpu-tiny/dynamic-batch", *REPLAY]) == EXIT_NO_VERDICT


def test_judge_gives_the_verdict_of_the_run(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_ladder(project / "stored", update_actor_s=2.0)
    write_baseline(project)
    main(["run", "cpu-tiny/dynamic-batch", *REPLAY])
    capsys.readouterr()
    untuned, dynamic = (str(next((project / "runs").glob(f"{tier}*"))) for tier in ("untuned", "dynamic"))
    assert main(["judge", dynamic]) == EXIT_REGRESSED
    assert "REGRESSED" in capsys.readouterr().out
    assert main(["judge", untuned]) == EXIT_OK
    assert main(["judge", untuned, dynamic]) == EXIT_REGRESSED


def test_judge_by_other_baselines(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_ladder(project / "stored", update_actor_s=2.0)
    main(["run", "cpu-tiny/dynamic-batch", *REPLAY])
    path = str(next((project / "runs").glob("dynamic*")))
    assert main(["judge", path]) == EXIT_NO_VERDICT
    write_baseline(project / "elsewhere")
    capsys.readouterr()
    assert main(["judge", path, "--baselines", "elsewhere/baselines"]) == EXIT_REGRESSED
    assert "update_actor" in capsys.readouterr().out
    assert main(["judge", path]) == EXIT_NO_VERDICT  # the run keeps what it was judged by


def test_judge_needs_no_verl_vllm_or_torch(project: Path) -> None:
    """In a process of its own, with those imports forbidden."""
    path = write_run(project / "stored")
    code = (
        "import sys\n"
        "for name in ('verl', 'vllm', 'torch', 'ray', 'transformers', 'pynvml'): sys.modules[name] = None\n"
        "from grpo_perf.cli import main\n"
        f"sys.exit(main(['judge', {str(path)!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPO, check=False)
    assert done.returncode == EXIT_OK, done.stderr
    assert "cpu-tiny/untuned" in done.stdout


def test_cells_are_listed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert project.is_dir()
    assert main(["cells"]) == EXIT_OK
    assert capsys.readouterr().out.split() == ["cpu-tiny/untuned", "cpu-tiny/dynamic-batch"]


def test_doctor_says_what_can_be_measured(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert project.is_dir()
    assert main(["doctor"]) == EXIT_OK
    out = capsys.readouterr().out
    assert "hardware   cpu. No GPU is usable: No driver. Look: nvidia-smi" in out
    assert "verl       verl 0.9.1" in out
    assert "next       pytest perf_tests --perf-plan, or one cell: grpo-perf run cpu-tiny/untuned" in out


def test_doctor_says_what_is_missing(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "runs").write_text("")

    def refuse(*_: object) -> None:
        raise settings.UsageError("python has no verl. Name the interpreter: --perf-python PATH")

    monkeypatch.setattr(settings, "inspect_subject", refuse)
    assert main(["doctor"]) == EXIT_NO_VERDICT
    out = capsys.readouterr().out
    assert "missing    python has no verl" in out
    assert "missing    Cannot write runs to runs" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "cpu-tiny/dynamic-bach", *REPLAY], "Did you mean 'dynamic-batch'?"),
        (["run", "cpu-tny/untuned", *REPLAY], "Did you mean 'cpu-tiny'?"),
        (["run", "untuned", *REPLAY], "is not a cell name WORKLOAD/TIER"),
        (["run", "../perf_tests/untuned", *REPLAY], "is not a cell name WORKLOAD/TIER"),
        (["run", "qwen2.5-1.5b/untuned"], "needs a GPU. No driver. Look: nvidia-smi"),
        (["run", "cpu-tiny/untuned", "--override", "data.train_batch_size=4"], "data.train_batch_size"),
        (["run", "cpu-tiny/untuned", "--engine", "magic"], "neither 'verl' nor 'replay:DIR'"),
        (["run", "cpu-tiny/untuned", "--catalog", "nowhere"], "nowhere is no catalogue"),
        (["judge", "nowhere"], "nowhere is not a run folder"),
        (["judge", "odd"], "odd/run.json cannot be read"),
        (["judge", "future"], "has schema version 2; this grpo-perf reads version 1"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    write_ladder(project / "stored")
    for name, text in (("odd", '{"schema_version": 1, "run_'), ("future", '{"schema_version": 2}')):
        (project / name).mkdir()
        (project / name / "run.json").write_text(text)
    assert main(arguments) == EXIT_USAGE
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("grpo-perf: ")
    assert captured.err.count("\n") == 1
    assert not (project / "runs").exists()


def test_a_missing_verl_is_said_before_anything_starts(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise settings.UsageError("python has no verl. Name the interpreter: --perf-python PATH")

    monkeypatch.setattr(settings, "inspect_subject", refuse)
    assert main(["run", "cpu-tiny/untuned"]) == EXIT_USAGE
    assert capsys.readouterr().err == "grpo-perf: python has no verl. Name the interpreter: --perf-python PATH\n"
    assert not (project / "runs").exists()


def test_interruption_prints_what_there_is(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ladder(project / "stored")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("grpo_perf.engine.ReplayEngine.run", interrupt)
    assert main(["run", "cpu-tiny/untuned", *REPLAY]) == EXIT_NO_VERDICT
    assert "interrupted: the run so far is kept" in capsys.readouterr().out


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == EXIT_USAGE
    assert "usage: grpo-perf" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([Verdict.PASS, Verdict.IMPROVED], EXIT_OK),
        ([Verdict.PASS, Verdict.INCONCLUSIVE], EXIT_NO_VERDICT),
        ([Verdict.NO_BASELINE], EXIT_NO_VERDICT),
        ([Verdict.ENV_MISMATCH], EXIT_NO_VERDICT),
        ([Verdict.INVALID], EXIT_NO_VERDICT),
        ([Verdict.INVALID, Verdict.REGRESSED], EXIT_REGRESSED),
        ([Verdict.NOT_APPLIED], EXIT_REGRESSED),
        ([], EXIT_NO_VERDICT),
    ],
)
def test_exit_codes(verdicts: list[Verdict], expected: int) -> None:
    assert exit_code(verdicts) == expected


def test_run_folders_of_tests_can_be_measured(tmp_path: Path) -> None:
    assert measure_folder(write_run(tmp_path))[1].invalid_reasons == []
