"""The measurement checked against what is known from elsewhere.

known loads     kernels that stamp their own begin and end    ── busy fraction of the samples, NVML beside it
traced step     every kernel of a verl step, from a profiler  ── busy fraction of the same samples, by phase
alternation     spans and sampler off in every other step     ── what watching costs
"""

import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from grpo_perf.engine.environment import INSIDE
from grpo_perf.errors import EngineError, RecordError
from grpo_perf.metrics import PHASES
from grpo_perf.record import RunRecord, Span, read_json, read_samples
from grpo_perf.telemetry import start_sampler
from grpo_perf.timeline import (
    STEP,
    TRAINER,
    Intervals,
    Sampled,
    cut_partition,
    find_window,
    make_intervals,
    read_gpu_column,
    select_rows,
    union,
)
from grpo_perf.timeline.intervals import Times
from grpo_perf.timeline.trace import Trace, read_traces
from grpo_perf.timeline.truth import Agreement, compare
from grpo_perf.types import Hardware
from grpo_perf.units import NS_PER_S
from grpo_perf.verdict.stats import Change, compare_runs

TRUTH_LOADS = (
    *(f"duty:{percent}:{period_ms}" for period_ms in (1, 10, 100) for percent in (5, 25, 50, 75, 95)),
    "graph:50:10",
    "h2d:50:100",
    "d2d:50:10",
    "memset:50:10",
)
"""KIND:PERCENT:PERIOD_MS. Copies are issued for that share of the time, by a host that has timed them before."""

SHARED_LOADS = ("duty:30:100", "duty:30:10")
"""Each in two processes at once; the GPU is busy for the union. Every change of process counts as busy for some 0.1 ms:
not to be seen at 100 ms, two points at 10 ms."""

SETTLE_NS = 150_000_000
"""Left out at the begin of each load. GPM answers from a snapshot that the driver renews every 102 ms, 15 ms or more in
the past, so that the first row of a load still tells of the pause before it (H200, driver 580)."""

LOAD_TIMEOUT_S = 240.0
_READY_TIMEOUT_S = 120.0


class _Load(msgspec.Struct):
    """One load as `inside/grpo_perf_loads.py` writes it, all in monotonic ns."""

    load: str
    t0_ns: int
    t1_ns: int
    round_trip_ns: int
    drift_ns: int
    kernels: list[tuple[int, int]]
    copies: list[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """One known load and what the samples said of it."""

    load: str
    kernels: Agreement
    """Samples against kernels alone."""
    both: Agreement
    """Samples against kernels and copies."""
    nvml: float | None
    """NVML's utilisation over the same rows, as a fraction."""
    clock_error_s: float
    """Bound on the error of bringing the GPU's clock to the host's."""


def measure_known_loads(
    python: Path, folder: Path, hardware: Hardware, *, seconds: float = 4.0, loads: Sequence[str] = TRUTH_LOADS
) -> list[LoadResult]:
    """Run each load for `seconds`, then one load in two processes at once, with the sampler beside them.

    Args:
        python: an interpreter with torch and CUDA; verl is not needed.
        folder: an existing folder without samples; samples and the kernels' stamps are written there.

    Raises:
        EngineError: a load failed, with the end of what it said.
    """
    sampler = start_sampler(folder, run_id=folder.name, root_pid=os.getpid(), hardware=hardware)
    try:
        _run_loads(python, folder, 0, [list(loads)], seconds)
        for number, load in enumerate(SHARED_LOADS, 1):
            _run_loads(python, folder, number, [[load]] * 2, seconds)
    finally:
        sampler.stop()
    return compare_known_loads(folder)


def compare_known_loads(folder: Path) -> list[LoadResult]:
    """What the samples of a folder say of the loads that were run beside them.

    Args:
        folder: with samples and a file `loads-<round>-<process>.json` a process; loads of one round ran at once.

    Raises:
        RecordError: a file that cannot be read, or a load without samples.
    """
    table = read_samples(folder)
    rounds: dict[str, list[list[_Load]]] = {}
    for path in sorted(folder.glob("loads-*.json")):
        rounds.setdefault(path.stem.split("-")[1], []).append(read_json(path, list[_Load]))
    groups = [list(group) for processes in rounds.values() for group in zip(*processes, strict=True)]
    return [_compare_load(group, table) for group in groups]


def _run_loads(python: Path, folder: Path, number: int, loads: Sequence[Sequence[str]], seconds: float) -> None:
    """Run the loads of each process, all processes beginning together."""
    go = folder / f"go-{number}"
    outs = [folder / f"loads-{number}-{process}.json" for process in range(len(loads))]
    environment = os.environ | {"GRPO_PERF_GO": str(go), "PYTHONPATH": _python_path()}
    processes = [
        subprocess.Popen(
            [str(python), "-m", "grpo_perf_loads", str(out), f"{seconds:g}", *names],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        for out, names in zip(outs, loads, strict=True)
    ]
    try:
        _wait_until(lambda: all(out.with_suffix(".ready").exists() for out in outs), processes, _READY_TIMEOUT_S)
        go.touch()
        for process, names in zip(processes, loads, strict=True):
            said = process.communicate(timeout=LOAD_TIMEOUT_S)[1].decode(errors="replace").strip().splitlines()
            if process.returncode:
                raise EngineError(
                    f"The loads {' '.join(names)} failed on the GPU: {said[-1] if said else 'no message'}"
                )
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"A known load did not end within {LOAD_TIMEOUT_S:.0f} s. Look: nvidia-smi") from error
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_until(is_done: Callable[[], bool], processes: Sequence[subprocess.Popen[bytes]], limit_s: float) -> None:
    deadline_s = time.monotonic() + limit_s
    while not is_done():
        if any(process.poll() for process in processes):
            return  # communicate() has the message
        if time.monotonic() > deadline_s:
            raise EngineError(f"A known load was not ready within {limit_s:.0f} s. Look: nvidia-smi")
        time.sleep(0.05)


def _python_path() -> str:
    return os.pathsep.join([str(INSIDE), *filter(None, [os.environ.get("PYTHONPATH")])])


def _compare_load(group: Sequence[_Load], table: pa.Table) -> LoadResult:
    """One load, in one process or in several at once: the GPU is busy for the union of their kernels."""
    t0_ns, t1_ns = max(load.t0_ns for load in group), min(load.t1_ns for load in group)
    name = group[0].load if len(group) == 1 else name_shared(group[0].load)
    t0_ns += SETTLE_NS
    rows = select_rows(table, np.array([t0_ns, t1_ns]), num_gpus=1)
    kernels = _unite(pair for load in group for pair in load.kernels)
    copies = _unite(pair for load in group for pair in load.copies)
    busy = _only_gpu(read_gpu_column(rows, "busy_fraction"), name)
    window = (np.array([t0_ns]), np.array([t1_ns]))
    against_kernels = compare(busy, kernels, starts_ns=window[0], ends_ns=window[1])
    against_both = compare(busy, union(kernels, copies), starts_ns=window[0], ends_ns=window[1])
    nvml = compare(
        _only_gpu(read_gpu_column(rows, "nvml_utilization"), name), kernels, starts_ns=window[0], ends_ns=window[1]
    )
    if against_kernels is None or against_both is None:
        raise RecordError(f"No sample lies within the load {name}. Is the GPU one with GPM (Hopper or later)?")
    return LoadResult(
        load=name,
        kernels=against_kernels,
        both=against_both,
        nvml=nvml.measured if nvml else None,
        clock_error_s=max(load.round_trip_ns / 2 + abs(load.drift_ns) for load in group) / NS_PER_S,
    )


def name_shared(load: str) -> str:
    """The name of a load that two processes ran at once."""
    return f"{load} in 2 processes"


def _unite(pairs: Iterable[tuple[int, int]]) -> Intervals:
    times = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    return make_intervals(times[:, 0], times[:, 1])


def _only_gpu(sampled: Mapping[int, Sampled], name: str) -> Sampled:
    """The first visible GPU, which is the one that a load runs on."""
    if not sampled:
        raise RecordError(f"There are no samples of a GPU for {name}. Look: grpo-perf doctor")
    return sampled[min(sampled)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """One step of verl whose every kernel is known."""

    step: int
    num_processes: int
    num_kernels: int
    num_copies: int
    kernels: dict[str, Agreement]
    """By phase, and `all` for every row that lies wholly inside some phase: samples against kernels alone."""
    both: dict[str, Agreement]
    """The same against kernels and copies."""
    slowdown: float | None
    """Traced step over the median of the steps that were not traced, minus 1."""


def compare_trace(record: RunRecord) -> TracedStep:
    """Samples of a run with the experiment `trace:STEP` against the kernels of that step.

    Raises:
        RecordError: nothing was traced, or no step of the run was traced as a whole.
    """
    trace = read_traces(record.path / "parts")
    spans = find_window(record).spans
    middle_ns = (trace.t0_ns + trace.t1_ns) // 2
    number = next((index for index, span in enumerate(spans) if span.t0_ns <= middle_ns < span.t1_ns), None)
    if number is None:
        raise RecordError(f"{record.path}: the trace lies in no step. Look: less {record.path / 'log.txt'}")
    starts_ns, ends_ns, phases = _cut_phases(record, spans[number], trace)
    edges_ns = np.array([spans[number].t0_ns, spans[number].t1_ns])
    busy = _only_gpu(read_gpu_column(select_rows(record.samples, edges_ns, num_gpus=1), "busy_fraction"), "the trace")
    others = [span.duration_s for index, span in enumerate(spans) if index > 0 and abs(index - number) not in (0, 1, 2)]
    found = {}
    for name, known in (("kernels", trace.kernels), ("both", union(trace.kernels, trace.copies))):
        groups = {"all": np.ones(len(phases), dtype=bool)} | {phase: phases == phase for phase in PHASES}
        compared = {
            phase: compare(busy, known, starts_ns=starts_ns[chosen], ends_ns=ends_ns[chosen])
            for phase, chosen in groups.items()
            if chosen.any()
        }
        found[name] = {phase: agreement for phase, agreement in compared.items() if agreement is not None}
    return TracedStep(
        step=number + 1,
        num_processes=trace.num_processes,
        num_kernels=trace.num_kernels,
        num_copies=trace.num_copies,
        slowdown=spans[number].duration_s / statistics.median(others) - 1 if others else None,
        **found,
    )


def _cut_phases(record: RunRecord, step: Span, trace: Trace) -> tuple[Times, Times, NDArray[np.str_]]:
    """Start, end and phase of each stretch of the step that one of verl's phases owns and that was traced."""
    partition = cut_partition(
        (span for span in record.spans if span.lane == TRAINER), np.array([step.t0_ns, step.t1_ns], dtype=np.int64)
    )
    starts_ns = np.maximum(partition.edges_ns[:-1], trace.t0_ns)
    ends_ns = np.minimum(partition.edges_ns[1:], trace.t1_ns)
    phases = np.array(partition.phases)[partition.phase_of_segment]
    kept = np.isin(phases, PHASES) & (ends_ns > starts_ns)
    return starts_ns[kept], ends_ns[kept], phases[kept]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What spans and sampler cost, from one run in which they were off in every other step."""

    watched_s: list[float]
    """Loop times with spans and sampler on."""
    unwatched_s: list[float]
    change: Change
    """Mean of the watched loops over that of the others, minus 1, with its 99 % interval."""


def measure_overhead(record: RunRecord) -> Overhead:
    """The cost of watching, from a run with the experiment `alternate`.

    Raises:
        RecordError: fewer than two loops of either kind.
    """
    window = find_window(record)
    edges_ns = window.edges_ns
    marks_ns = np.array([span.t0_ns for span in record.spans if span.lane == TRAINER and span.name != STEP])
    loops: dict[bool, list[float]] = {True: [], False: []}
    for t0_ns, t1_ns in pairwise(edges_ns.tolist()):
        # Unwatched loops have no span but `step` itself: the record says which they are.
        is_watched = bool(((marks_ns >= t0_ns) & (marks_ns < t1_ns)).any())
        loops[is_watched].append((t1_ns - t0_ns) / NS_PER_S)
    if min(map(len, loops.values())) < 2:
        raise RecordError(
            f"{record.path} has {len(loops[True])} watched and {len(loops[False])} unwatched steady loops, "
            "at least 2 of each are needed. Was the experiment `alternate` on? Take more steps: --perf-steps 24"
        )
    change = compare_runs([loops[True]], [loops[False]], "mean")
    assert change is not None  # loop times are positive
    return Overhead(watched_s=loops[True], unwatched_s=loops[False], change=change)
