"""Traces as torch's profiler writes them, brought to the monotonic clock."""

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_perf.errors import RecordError
from grpo_perf.timeline.trace import read_traces

BASE_NS = 1_700_000_000_000_000_000
WALL_NS, MONOTONIC_NS = BASE_NS + 5_000_000, 42_000_000
OFFSET_NS = MONOTONIC_NS - WALL_NS


def write_trace(folder: Path, pid: int, events: list[dict[str, Any]], *, t0_ns: int = 0, t1_ns: int = 10**9) -> None:
    window = {"pid": pid, "t0_ns": t0_ns, "t1_ns": t1_ns, "wall_ns": WALL_NS, "monotonic_ns": MONOTONIC_NS}
    (folder / f"trace-{pid}-{t1_ns}.window.json").write_text(json.dumps(window))
    trace = {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "traceEvents": events}
    (folder / f"trace-{pid}-{t1_ns}.trace.json").write_text(json.dumps(trace))


def event(category: str, ts_us: float, dur_us: float) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": "x", "pid": 0, "tid": 7, "ts": ts_us, "dur": dur_us, "args": {"a": 1}}


def test_kernels_and_copies_of_all_processes_on_one_clock(tmp_path: Path) -> None:
    write_trace(tmp_path, 1, [{"ph": "M", "name": "process_name"}, event("kernel", 1000.0, 2.5)], t0_ns=5)
    others = [event("kernel", 1001.0, 4.0), event("gpu_memcpy", 2000.0, 1.0), event("gpu_memset", 2001.0, 1.0)]
    write_trace(tmp_path, 2, [*others, event("cpu_op", 0.0, 9.0)], t0_ns=3, t1_ns=900)
    trace = read_traces(tmp_path)
    begin_ns = BASE_NS + 1_000_000 + OFFSET_NS
    assert (trace.kernels.starts_ns.tolist(), trace.kernels.ends_ns.tolist()) == ([begin_ns], [begin_ns + 5000])
    assert trace.copies.total_ns == 2000
    assert (trace.num_kernels, trace.num_copies, trace.num_processes) == (2, 2, 2)
    assert (trace.t0_ns, trace.t1_ns) == (5, 900)  # the time in which both were traced


def test_the_last_trace_of_a_process_counts(tmp_path: Path) -> None:
    write_trace(tmp_path, 1, [event("kernel", 0.0, 1.0)] * 3, t1_ns=100)
    write_trace(tmp_path, 1, [event("kernel", 0.0, 1.0)], t1_ns=200)
    assert read_traces(tmp_path).num_kernels == 1


def test_no_trace_is_an_error_with_the_next_command(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"holds no trace.*less .*log\.txt"):
        read_traces(tmp_path / "parts")
