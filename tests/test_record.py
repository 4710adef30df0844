"""The run folder: what a kill leaves is readable, what is foreign is refused with a message."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from grpo_perf.errors import RecordError
from grpo_perf.record import (
    SAMPLE_SCHEMA,
    assign_lanes,
    close_run,
    load_run,
    read_samples,
    save_meta,
    write_json,
)
from tests.builders import make_meta


def write_parts(folder: Path) -> None:
    (folder / "parts").mkdir(parents=True)
    clock = {"pid": 7, "boot_id": "b", "time_namespace": "t", "monotonic_ns": 1, "wall_ns": 2}
    rows = [
        {"clock": clock},
        {"name": "gen", "t0_ns": 10, "t1_ns": 20, "pid": 7, "tid": 7, "rank": None},
        {"name": "step", "t0_ns": 5, "t1_ns": 30, "pid": 7, "tid": 7, "rank": None},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "parts" / "spans-7.jsonl").write_text(text + '{"name": "ref", "t0')


def append_samples(path: Path, num_batches: int) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, SAMPLE_SCHEMA) as writer:
        for index in range(num_batches):
            row = dict.fromkeys(SAMPLE_SCHEMA.names) | {"t0_ns": index, "t1_ns": index + 1, "device": -1}
            writer.write_batch(pa.RecordBatch.from_pylist([row], schema=SAMPLE_SCHEMA))


def test_a_run_that_was_killed_is_readable_and_its_cut_line_is_counted(tmp_path: Path) -> None:
    save_meta(tmp_path, make_meta())
    write_parts(tmp_path)
    append_samples(tmp_path / "samples.arrow", 3)
    run = load_run(tmp_path)
    assert [span.name for span in run.spans] == ["step", "gen"]
    assert run.num_unreadable_lines == 1
    assert run.samples.num_rows == 3


def test_a_stream_cut_in_its_last_batch_keeps_those_before(tmp_path: Path) -> None:
    append_samples(tmp_path / "samples.arrow", 3)
    data = (tmp_path / "samples.arrow").read_bytes()
    (tmp_path / "samples.arrow").write_bytes(data[: len(data) - 200])
    assert read_samples(tmp_path).num_rows == 2


def test_closing_merges_once_and_can_be_repeated(tmp_path: Path) -> None:
    write_parts(tmp_path)
    append_samples(tmp_path / "samples.arrow", 2)
    close_run(tmp_path, make_meta())
    close_run(tmp_path, make_meta())
    run = load_run(tmp_path)
    assert [span.lane for span in run.spans] == ["trainer", "trainer"]
    assert run.samples.num_rows == 2
    assert not list((tmp_path / "parts").iterdir())
    assert not (tmp_path / "samples.arrow").exists()


def test_lanes_come_from_who_times_the_step() -> None:
    def row(name: str, pid: int, tid: int, rank: int | None = None) -> dict[str, object]:
        return {"name": name, "t0_ns": 0, "t1_ns": 1, "pid": pid, "tid": tid, "rank": rank}

    rows = [row("step", 1, 1), row("gen", 1, 1), row("save", 1, 2), row("train_batch", 2, 2, 0)]
    rows += [row("generate_sequences", 3, 3), row("compute_score", 4, 4), row("else", 5, 5)]
    lanes = [span.lane for span in assign_lanes(rows)]
    assert lanes == ["trainer", "trainer", "trainer-side", "rank0", "rollout", "reward", "other"]


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="is not a run folder"):
        load_run(tmp_path)


def test_a_truncated_record_says_so(tmp_path: Path) -> None:
    save_meta(tmp_path, make_meta())
    text = (tmp_path / "run.json").read_text()
    (tmp_path / "run.json").write_text(text[: len(text) // 2])
    with pytest.raises(RecordError, match="truncated or was not written by grpo-perf"):
        load_run(tmp_path)


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", {"schema_version": 99})
    with pytest.raises(RecordError, match="schema version 99"):
        load_run(tmp_path)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    write_json(target, {"a": 1})
    with pytest.raises(TypeError):
        write_json(target, {"a": object()})
    assert json.loads(target.read_text()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
