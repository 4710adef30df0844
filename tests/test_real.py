"""Real verl on the CPU: a whole session as a user runs it, and every way in which a run can be cut short.

Each test has a time limit, and afterwards nothing of its run may be left: no process, no shared memory.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_perf.catalog import load_catalog, resolve_cell
from grpo_perf.engine import RunRequest, VerlEngine
from grpo_perf.engine.supervisor import SHM, carriers
from grpo_perf.record import load_meta, load_run
from grpo_perf.telemetry import detect_hardware
from grpo_perf.timeline import find_crossings, measure

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[1]
CELL = "cpu-tiny/untuned"
END_S = 40.0
"""For everything of a run to be gone after its end."""

JUDGE_ALONE = """
import sys
for name in ("verl", "vllm", "torch", "ray", "transformers"):
    sys.modules[name] = None  # importing it raises ImportError
from grpo_perf.cli import main
sys.exit(main(["judge", sys.argv[1]]))
"""


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Fail a test that leaves shared memory behind."""
    before = set(os.listdir(SHM))
    yield
    wait_for(lambda: set(os.listdir(SHM)) <= before, "shared memory to be gone", END_S)


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def wait_for(condition: Callable[[], object], what: str, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit_s:.0f} s for {what}"
        time.sleep(0.2)


def find_run(runs: Path) -> Path | None:
    found = sorted(runs.glob("*/run.json"))
    return found[-1].parent if found else None


def start_cli(python: Path, runs: Path, *options: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "grpo_perf.cli",
        "run",
        CELL,
        "--python",
        str(python),
        "--runs",
        str(runs),
        *options,
    ]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_trainer(runs: Path) -> Path:
    """The run folder, once Ray has started processes of verl."""

    def has_started() -> bool:
        folder = find_run(runs)
        return folder is not None and "TaskRunner" in (folder / "log.txt").read_text(errors="replace")

    wait_for(lambda: find_run(runs) and (find_run(runs) / "log.txt").exists(), "the run folder", 60)  # type: ignore[operator]
    wait_for(has_started, "the trainer", 90)
    folder = find_run(runs)
    assert folder is not None
    return folder


def expect_nothing_running(run_id: str) -> None:
    wait_for(lambda: not carriers(run_id, skip=set()), "every process of the run to be gone", END_S)


@pytest.mark.timeout(420)
def test_a_session_measures_judges_and_leaves_a_record_that_stands_alone(verl_python: Path, tmp_path: Path) -> None:
    runs, junit, benchmark = tmp_path / "runs", tmp_path / "junit.xml", tmp_path / "benchmark.json"
    command = [sys.executable, "-m", "pytest", "perf_tests", "-m", "cpu", "-k", "untuned", "--perf-steps=3"]
    command += [f"--perf-python={verl_python}", f"--perf-runs={runs}", f"--junitxml={junit}"]
    command += [f"--benchmark-json={benchmark}", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "GRPO performance" in done.stdout
    assert "verl under test: verl " in done.stdout
    assert 'name="test_measurement[cpu-tiny/untuned]"' in junit.read_text()

    folder = find_run(runs)
    assert folder is not None
    record = load_run(folder)
    measurement = measure(record)
    assert measurement.invalid_reasons == []
    assert len(record.steps) == 4
    expect_exact_timing(measurement.metrics)
    assert find_crossings(record.spans) == []
    assert measurement.value("busy_fraction") is None  # no GPU: n/a, never 0
    expect_benchmark_plays_the_record(json.loads(benchmark.read_text()), measurement.metrics["loop_time_s"].series)

    alone = subprocess.run(
        [sys.executable, "-c", JUDGE_ALONE, str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert alone.returncode == 0, alone.stdout + alone.stderr
    assert json.loads((folder / "verdict.json").read_text())["verdict"] == "PASS"
    assert "PASS" in alone.stdout
    expect_nothing_running(record.meta.run_id)


def expect_exact_timing(metrics: dict[str, Any]) -> None:
    """Spans match verl's own timing_s within max(5 ms, 1 %), and at most 10 % of a step is unaccounted."""
    assert metrics["timing_error_fraction"].value <= 0.01
    assert metrics["unaccounted_fraction"].value <= 0.10


def expect_benchmark_plays_the_record(data: dict[str, Any], loops_s: list[float]) -> None:
    (played,) = data["benchmarks"]
    assert played["stats"]["data"] == pytest.approx(loops_s)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_cut_short_is_kept_as_partial(verl_python: Path, tmp_path: Path, number: signal.Signals) -> None:
    with start_cli(verl_python, tmp_path) as process:
        folder = wait_for_trainer(tmp_path)
        process.send_signal(number)
        process.communicate(timeout=END_S)
    expect_nothing_running(folder.name)
    wait_for(lambda: load_meta(folder).status == "partial", "the record to say so", END_S)
    assert measure(load_run(folder)).invalid_reasons != []


@pytest.mark.timeout(200)
def test_a_crash_of_verl_is_a_record_that_names_the_error(verl_python: Path, tmp_path: Path) -> None:
    with start_cli(verl_python, tmp_path, "--override", "trainer.v1.trainer_mode=no-such-mode") as process:
        output, _ = process.communicate(timeout=180)
    assert process.returncode == 3, output
    assert "INVALID" in output
    folder = find_run(tmp_path)
    assert folder is not None
    meta = load_meta(folder)
    assert meta.status == "failed"
    assert "no-such-mode" in (meta.reason or "")
    expect_nothing_running(folder.name)


@pytest.mark.timeout(120)
def test_a_hang_is_ended_with_stacks_of_its_processes(verl_python: Path, tmp_path: Path, cache_dir: Path) -> None:
    hardware = detect_hardware()
    cell = resolve_cell(load_catalog(ROOT / "perf_tests"), CELL, hardware.key)
    cell = replace(cell, workload=replace(cell.workload, start_up_timeout_s=12.0))
    request = RunRequest(cell=cell, runs_dir=tmp_path, hardware=hardware, python=verl_python, cache_dir=cache_dir)
    folder = VerlEngine().run(request, print)
    meta = load_meta(folder)
    assert meta.status == "failed"
    assert meta.reason is not None
    assert "hang: no end of the first step within 12 s" in meta.reason
    assert "main_ppo" in (folder / "stacks.txt").read_text()
    expect_nothing_running(meta.run_id)


@pytest.mark.timeout(60)
def test_an_unknown_key_is_refused_before_anything_starts(verl_python: Path, tmp_path: Path) -> None:
    with start_cli(verl_python, tmp_path, "--override", "actor_rollout_ref.actor.use_dynamic_bs=True") as process:
        output, _ = process.communicate(timeout=50)
    assert process.returncode == 2, output
    assert "use_dynamic_bsz" in output
