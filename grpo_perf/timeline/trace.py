"""Traces of torch's profiler (Chrome format): when kernels, copies and memory sets ran, on the monotonic clock."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from grpo_perf.errors import RecordError
from grpo_perf.record import read_json
from grpo_perf.timeline.intervals import Intervals, make_intervals

_KERNEL = "kernel"
_COPIES = ("gpu_memcpy", "gpu_memset")


class _Event(msgspec.Struct):
    cat: str = ""
    ts: float = 0.0
    """Microseconds since the trace's base time."""
    dur: float = 0.0


class _Trace(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815  (the format's name)
    baseTimeNanoseconds: int = 0  # noqa: N815


class _Window(msgspec.Struct):
    """What the tracing process wrote beside its trace: all ns, and both clocks read together."""

    pid: int
    t0_ns: int
    t1_ns: int
    wall_ns: int
    monotonic_ns: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """The GPU work of all traced processes in the time that every one of them was traced."""

    kernels: Intervals
    copies: Intervals
    """Copies and memory sets."""
    num_kernels: int
    num_copies: int
    num_processes: int
    t0_ns: int
    t1_ns: int


def read_traces(folder: Path) -> Trace:
    """The last trace of each process in a folder of `trace-<pid>-<time>.{trace,window}.json`.

    Raises:
        RecordError: there is none, or one cannot be read.
    """
    windows = [read_json(path, _Window) for path in sorted(folder.glob("trace-*.window.json"))]
    if not windows:
        raise RecordError(f"{folder} holds no trace. Was a process traced? Look: less {folder.parent / 'log.txt'}")
    last = {window.pid: window for window in sorted(windows, key=lambda window: window.t1_ns)}.values()
    return join_traces([(window, read_json(_trace_path(folder, window), _Trace)) for window in last])


def join_traces(traces: Sequence[tuple[_Window, _Trace]]) -> Trace:
    """The union over processes; each trace with the window of its process."""
    kernels, copies = [], []
    for window, trace in traces:
        # ts is wall time: CUPTI's stamps are brought to it by the profiler.
        offset_ns = trace.baseTimeNanoseconds + window.monotonic_ns - window.wall_ns
        kernels += _collect(trace.traceEvents, (_KERNEL,), offset_ns)
        copies += _collect(trace.traceEvents, _COPIES, offset_ns)
    return Trace(
        kernels=_unite(kernels),
        copies=_unite(copies),
        num_kernels=len(kernels),
        num_copies=len(copies),
        num_processes=len(traces),
        t0_ns=max(window.t0_ns for window, _ in traces),
        t1_ns=min(window.t1_ns for window, _ in traces),
    )


def _collect(events: Iterable[_Event], categories: Sequence[str], offset_ns: int) -> list[tuple[int, int]]:
    return [
        (round(event.ts * 1000) + offset_ns, round((event.ts + event.dur) * 1000) + offset_ns)
        for event in events
        if event.cat in categories
    ]


def _unite(pairs: Sequence[tuple[int, int]]) -> Intervals:
    times = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return make_intervals(times[:, 0], times[:, 1])


def _trace_path(folder: Path, window: _Window) -> Path:
    return folder / f"trace-{window.pid}-{window.t1_ns}.trace.json"
