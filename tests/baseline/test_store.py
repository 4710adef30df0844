"""Baselines on disk: exact text, safe names, and every bad file with its message."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_perf.baseline import baseline_path, load_baseline, save_baseline
from grpo_perf.baseline.store import format_baseline
from grpo_perf.errors import BaselineError
from grpo_perf.types import Baseline, BaselineMetric, Fingerprint, Provenance

CELL = ("1xNVIDIA-H200", "qwen2.5-1.5b", "dynamic-batch")
SMALL = Baseline(
    schema_version=1,
    hardware=CELL[0],
    workload=CELL[1],
    tier=CELL[2],
    kind="absolute",
    base_tier=None,
    num_runs=1,
    num_warmup_steps=1,
    metrics={
        "memory_used_gib": BaselineMetric(median=89.0, spread=0.0, samples=[[89.0]]),
        "loop_time_s": BaselineMetric(median=17.712345, spread=0.1234567, samples=[[17.7, 17.712345, 17.8]]),
    },
    fingerprint=Fingerprint(identity={"num_devices": 1, "device_name": "NVIDIA H200"}),
    provenance=Provenance(run_ids=["run-1"], created_unix_s=1795996800.25),
)
TEXT = """\
{
 "base_tier": null,
 "fingerprint": {
  "host": {},
  "identity": {
   "device_name": "NVIDIA H200",
   "num_devices": 1
  },
  "subject": {}
 },
 "hardware": "1xNVIDIA-H200",
 "kind": "absolute",
 "metrics": {
  "loop_time_s": {"median": 17.712, "samples": [[17.7, 17.712, 17.8]], "spread": 0.12346},
  "memory_used_gib": {"median": 89.0, "samples": [[89.0]], "spread": 0.0}
 },
 "num_runs": 1,
 "num_warmup_steps": 1,
 "provenance": {
  "approved_by": null,
  "commit": null,
  "created_unix_s": 1795996800.25,
  "reason": null,
  "run_ids": [
   "run-1"
  ]
 },
 "schema_version": 1,
 "tier": "dynamic-batch",
 "workload": "qwen2.5-1.5b"
}
"""


def test_sorted_keys_one_metric_a_line_five_digits() -> None:
    assert format_baseline(SMALL) == TEXT


def test_save_and_load(tmp_path: Path) -> None:
    path = save_baseline(tmp_path, SMALL)
    assert path == tmp_path / "1xNVIDIA-H200" / "qwen2.5-1.5b" / "dynamic-batch.json"
    assert path.read_text() == TEXT
    loaded = load_baseline(tmp_path, *CELL)
    assert loaded is not None
    assert loaded.metrics["loop_time_s"].samples == [[17.7, 17.712, 17.8]]
    assert format_baseline(loaded) == TEXT


def test_saving_leaves_no_scratch_file(tmp_path: Path) -> None:
    path = save_baseline(tmp_path, SMALL)
    assert save_baseline(tmp_path, SMALL) == path
    assert [item.name for item in path.parent.iterdir()] == ["dynamic-batch.json"]


def test_no_file_is_no_baseline(tmp_path: Path) -> None:
    assert load_baseline(tmp_path / "nowhere", *CELL) is None


@pytest.mark.parametrize("name", ["..", ".hidden", "a/b", "../x", "", "a b", "a\n", "täglich", "a\\b", "C:x"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_odd_names_are_refused(tmp_path: Path, name: str, place: int) -> None:
    cell = list(CELL)
    cell[place] = name
    with pytest.raises(BaselineError, match="cannot name a baseline file"):
        baseline_path(tmp_path, *cell)


def test_names_that_the_suite_uses_are_fine(tmp_path: Path) -> None:
    path = baseline_path(tmp_path, "8xNVIDIA-H100-80GB-HBM3", "qwen2.5-1.5b+lora", "tp4_pp2")
    assert path == tmp_path / "8xNVIDIA-H100-80GB-HBM3" / "qwen2.5-1.5b+lora" / "tp4_pp2.json"


def change(**fields: object) -> str:
    return json.dumps(json.loads(TEXT) | fields)


def change_metric(**fields: object) -> str:
    data = json.loads(TEXT)
    data["metrics"]["loop_time_s"] |= fields
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("", "is no JSON"),
        ("[]", "has schema version None, this grpo-perf reads version 1"),
        (change(schema_version=99), "has schema version 99, this grpo-perf reads version 1"),
        (change(kind="relative"), "is no baseline: Invalid enum value 'relative'"),
        (change(metrics={"loop_time_s": {"median": 1.0}}), "is no baseline: .*missing required field"),
        (change(tier="memory"), "is the baseline of qwen2.5-1.5b/memory on 1xNVIDIA-H200, not of qwen2.5-1.5b/dyn"),
        (change_metric(samples=[]), "has no samples of loop_time_s"),
        (change_metric(samples=[[]]), "has no samples of loop_time_s"),
        (
            change_metric(median=20.0),
            r"the median of loop_time_s is 20.0, its samples give 17.712: it was edited by hand",
        ),
        (change_metric(median="fast"), "is no baseline: Expected `float`, got `str`"),
        (change(metrics={"speed": {"median": 1.0, "spread": 0.0, "samples": [[1.0]]}}), "has a metric 'speed'"),
        (TEXT.replace("89.0", "NaN"), "is no baseline"),
    ],
)
def test_a_bad_file_says_what_where_and_what_next(tmp_path: Path, text: str, message: str) -> None:
    path = baseline_path(tmp_path, *CELL)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(BaselineError, match=message) as caught:
        load_baseline(tmp_path, *CELL)
    assert str(path) in str(caught.value)
    assert "pytest perf_tests -m gpu -k dynamic-batch --perf-baseline=create" in str(caught.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = baseline_path(tmp_path, *CELL)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BaselineError, match="is no JSON"):
        load_baseline(tmp_path, *CELL)


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    baseline_path(tmp_path, *CELL).mkdir(parents=True)
    with pytest.raises(BaselineError, match="cannot be read: Is a directory"):
        load_baseline(tmp_path, *CELL)


def test_a_ratio_is_checked_by_its_own_samples(tmp_path: Path) -> None:
    ratio = BaselineMetric(median=0.55, spread=0.01, samples=[[0.5], [0.6]])
    save_baseline(tmp_path, replace(SMALL, kind="ratio", base_tier="untuned", metrics={"memory_used_gib": ratio}))
    loaded = load_baseline(tmp_path, *CELL)
    assert loaded is not None
    assert loaded.metrics["memory_used_gib"] == ratio


def fail_with(code: int):  # type: ignore[no-untyped-def]
    def fsync(_fd: int) -> None:
        raise OSError(code, "No space left on device" if code == errno.ENOSPC else "Read-only file system")

    return fsync


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_full_or_read_only_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    path = save_baseline(tmp_path, SMALL)
    monkeypatch.setattr(os, "fsync", fail_with(code))
    with pytest.raises(BaselineError, match=r"cannot be written: .*Nothing is lost") as caught:
        save_baseline(tmp_path, replace(SMALL, num_runs=2))
    assert "run-1 are kept" in str(caught.value)
    assert "--perf-baseline=create" in str(caught.value)
    assert path.read_text() == TEXT
    assert [item.name for item in path.parent.iterdir()] == ["dynamic-batch.json"]


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / CELL[0]).write_text("")
    with pytest.raises(BaselineError, match="cannot be written"):
        save_baseline(tmp_path, SMALL)


def test_saving_refuses_odd_names(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="cannot name a baseline file"):
        save_baseline(tmp_path, replace(SMALL, tier="../../etc"))
