"""Stored runs handed out as new ones."""

from pathlib import Path

import pytest

from grpo_perf.engine import ReplayEngine, RunRequest
from grpo_perf.errors import EngineError, RecordError, UsageError
from grpo_perf.record import load_meta, load_run, save_meta
from grpo_perf.types import Cell, JudgeContext, Target
from tests.builders import make_hardware, make_tier, make_workload
from tests.run_folders import write_run


def make_request(runs_dir: Path, tier: str = "untuned", faults: list[str] | None = None) -> RunRequest:
    """A request for a CPU cell."""
    cell = Cell(
        workload=make_workload(device="cpu"),
        tier=make_tier(name=tier, description="as of today"),
        overrides={},
        targets={"host_busy_fraction": Target(minimum=0.1)},
    )
    return RunRequest(
        cell=cell,
        runs_dir=runs_dir,
        hardware=make_hardware(device="cpu"),
        python=Path("python"),
        faults=faults or [],
        cache_dir=runs_dir / "cache",
    )


def run(engine: ReplayEngine, request: RunRequest) -> Path:
    lines: list[str] = []
    path = engine.run(request, lines.append)
    assert lines[0].startswith("replay of ")
    return path


def test_a_copy_has_a_new_id_and_the_old_data(tmp_path: Path) -> None:
    stored = write_run(tmp_path / "stored", context=JudgeContext(baseline_path="old"))
    path = run(ReplayEngine(tmp_path / "stored"), make_request(tmp_path / "runs", faults=["gen:+5%"]))
    before, after = load_run(stored), load_run(path)
    assert after.spans == before.spans
    assert after.samples.equals(before.samples)
    assert after.meta.run_id == path.name != before.meta.run_id
    assert after.meta.engine == "replay"
    assert after.meta.faults == ["gen:+5%"]
    assert after.meta.context == JudgeContext()


def test_a_copy_is_judged_by_the_tier_of_today(tmp_path: Path) -> None:
    write_run(tmp_path / "stored")
    meta = load_meta(run(ReplayEngine(tmp_path / "stored"), make_request(tmp_path / "runs")))
    assert meta.tier.description == "as of today"
    assert meta.targets == {"host_busy_fraction": Target(minimum=0.1)}


def test_several_runs_of_a_cell_come_oldest_first_and_the_last_one_stays(tmp_path: Path) -> None:
    for number in (2, 1):
        write_run(tmp_path / "stored", run=number)
    engine = ReplayEngine(tmp_path / "stored")
    ids = [run(engine, make_request(tmp_path / "runs")).name.partition("-replay")[0] for _ in range(3)]
    assert ids == ["untuned-1", "untuned-2", "untuned-2"]


def test_one_run_folder_is_enough(tmp_path: Path) -> None:
    stored = write_run(tmp_path / "stored")
    assert run(ReplayEngine(stored), make_request(tmp_path / "runs")).is_dir()


def test_hardware_is_that_of_the_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "stored", device="gpu")
    assert ReplayEngine(tmp_path / "stored").hardware.key == "1xNVIDIA-H200"
    write_run(tmp_path / "stored", device="cpu", run=2)
    with pytest.raises(UsageError, match=r"are of 1xNVIDIA-H200, cpu\. Replay one at a time"):
        _ = ReplayEngine(tmp_path / "stored").hardware


def test_links_and_unknown_files_are_left_behind(tmp_path: Path) -> None:
    stored = write_run(tmp_path / "stored")
    (stored / "log.txt").symlink_to("/etc/hostname")
    (stored / "payload.py").write_text("")
    (stored / "parts").mkdir()
    (stored / "parts" / "spans-1.jsonl").write_text("")
    (stored / "parts" / "other").write_text("")
    path = run(ReplayEngine(stored), make_request(tmp_path / "runs"))
    found = sorted(str(file.relative_to(path)) for file in path.rglob("*"))
    assert found == ["parts", "parts/spans-1.jsonl", "run.json", "samples.parquet", "spans.jsonl", "steps.jsonl"]


def test_a_run_id_cannot_leave_the_folder(tmp_path: Path) -> None:
    stored = write_run(tmp_path / "stored", run_id="../../elsewhere/x")
    path = run(ReplayEngine(stored), make_request(tmp_path / "runs"))
    assert path.parent == tmp_path / "runs"


def test_broken_neighbours_are_passed_over(tmp_path: Path) -> None:
    write_run(tmp_path / "stored")
    (tmp_path / "stored" / "broken").mkdir()
    (tmp_path / "stored" / "broken" / "run.json").write_text("{")
    assert ReplayEngine(tmp_path / "stored").hardware.key == "cpu"
    with pytest.raises(RecordError, match="truncated"):
        ReplayEngine(tmp_path / "stored" / "broken")


def test_missing_cell_names_those_there_are(tmp_path: Path) -> None:
    write_run(tmp_path / "stored")
    engine = ReplayEngine(tmp_path / "stored")
    with pytest.raises(EngineError, match=r"No stored run of 'cpu-tiny/fast-poll' .*it has cpu-tiny/untuned"):
        run(engine, make_request(tmp_path / "runs", tier="fast-poll"))


def test_no_runs_at_all(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"No run folder in .*grpo-perf run CELL"):
        ReplayEngine(tmp_path)


def test_a_target_that_cannot_be_written(tmp_path: Path) -> None:
    write_run(tmp_path / "stored")
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match=r"Cannot copy .*--perf-runs DIR"):
        run(ReplayEngine(tmp_path / "stored"), make_request(tmp_path / "file" / "runs"))


def test_status_is_kept(tmp_path: Path) -> None:
    stored = write_run(tmp_path / "stored", status="partial", reason="killed")
    save_meta(stored, load_meta(stored))
    meta = load_meta(run(ReplayEngine(stored), make_request(tmp_path / "runs")))
    assert (meta.status, meta.reason) == ("partial", "killed")
