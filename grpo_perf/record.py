"""The run folder: written once while the run goes, read by everything else.

    run.json        who ran what, how it ended, and what it was judged by (replaced atomically)
    steps.jsonl     verl's own metrics, one line a step, appended by verl's file logger
    parts/          spans as each measured process appends them, until the run is closed
    spans.jsonl     the same spans, merged and given lanes
    samples.arrow   device samples as an Arrow IPC stream, appended; samples.parquet after close
    log.txt         output of every process of the run
    verdict.json    what was concluded

A killed run keeps all that was appended: every reader here accepts a folder that was never closed.
"""

import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from grpo_perf.errors import RecordError
from grpo_perf.types import CellVerdict, Fingerprint, Hardware, JudgeContext, Overrides, Scalar, Target, Tier, Workload

SCHEMA_VERSION = 1

Status = Literal["running", "complete", "failed", "partial"]

SAMPLE_SCHEMA = pa.schema(
    [
        ("t0_ns", pa.int64()),  # monotonic; the row covers [t0, t1]
        ("t1_ns", pa.int64()),
        ("device", pa.int16()),  # GPU index; -1 is the host
        ("busy_fraction", pa.float32()),  # GPM graphics activity; null where there is no such source
        ("sm_active_fraction", pa.float32()),
        ("tensor_active_fraction", pa.float32()),
        ("dram_active_fraction", pa.float32()),
        ("pcie_tx_bytes_per_s", pa.float64()),
        ("pcie_rx_bytes_per_s", pa.float64()),
        ("nvml_utilization", pa.float32()),
        ("power_w", pa.float32()),
        ("memory_used_gib", pa.float32()),  # device memory; on the host row: memory of the run's processes
        ("sm_clock_mhz", pa.float32()),
        ("temperature_c", pa.float32()),
        ("throttle_reasons", pa.int64()),  # NVML clocks-event bit mask
        ("num_foreign_processes", pa.int16()),  # compute processes on the GPU that are not of the run
        ("host_busy_fraction", pa.float32()),  # CPU time of the run's processes over all cores
        ("sampler_cpu_s", pa.float64()),  # CPU time of the sampler process so far
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """An interval of one process, on its monotonic clock."""

    name: str
    t0_ns: int
    t1_ns: int
    pid: int
    tid: int = 0
    lane: str = "other"
    """`trainer`, `trainer-side` (its other threads), `rank<k>`, `rollout`, `reward` or `other`."""
    rank: int | None = None

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return (self.t1_ns - self.t0_ns) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One training step as verl logged it."""

    step: int
    data: dict[str, float | int | str | bool | None]

    def number(self, key: str) -> float | None:
        """The metric as a float, None where it is missing or no number."""
        value = self.data.get(key)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockStamp:
    """Two clocks of one process read together; monotonic clocks join only where boot and time namespace match."""

    pid: int
    boot_id: str
    time_namespace: str
    monotonic_ns: int
    wall_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMeta:
    """run.json."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    status: Status
    reason: str | None = None
    """Why the run is not complete."""
    next_command: str | None = None
    engine: str = "verl"
    workload: Workload
    tier: Tier
    hardware: Hardware
    targets: dict[str, Target] = field(default_factory=dict)
    cell_overrides: Overrides = field(default_factory=dict)
    hydra_overrides: list[str] = field(default_factory=list)
    """The exact command line given to verl."""
    not_translated: dict[str, str] = field(default_factory=dict)
    resolved_config: dict[str, Scalar] = field(default_factory=dict)
    """verl's configuration after Hydra, flattened to dotted keys."""
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    faults: list[str] = field(default_factory=list)
    warm_start: bool = False
    """Its processes were forked from one that had imported verl's stack, where that was possible."""
    experiment: str = ""
    """Not empty: a run that tests the measurement (what is watched changes in mid-run) and is never judged."""
    clocks: list[ClockStamp] = field(default_factory=list)
    created_unix_s: float
    launched_ns: int | None = None
    """Monotonic time at which verl was started."""
    ended_ns: int | None = None
    exit_code: int | None = None
    telemetry: dict[str, Scalar] = field(default_factory=dict)
    """Source, period, own cost, and what could not be measured."""
    context: JudgeContext = field(default_factory=JudgeContext)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run folder in memory."""

    path: Path
    meta: RunMeta
    steps: list[Step]
    spans: list[Span]
    samples: pa.Table
    num_unreadable_lines: int = 0
    """Lines cut off by a kill; counted, never guessed."""


T = TypeVar("T")


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically."""
    replace_file(path, json.dumps(msgspec.to_builtins(value), indent=1, sort_keys=True) + "\n")


def replace_file(path: Path, text: str) -> None:
    """Write beside the file, then move over it: a reader, a crash or a full disk never leaves half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_json(path: Path, type_: type[T]) -> T:
    """Decode and validate a JSON file.

    Raises:
        RecordError: the file is missing, truncated or has other fields than `type_`.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=type_)
    except FileNotFoundError as error:
        raise RecordError(
            f"{path.parent} is not a run folder: it has no {path.name}. List the runs there are: ls runs/"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(
            f"{path} cannot be read: {error}. It is truncated or was not written by grpo-perf; "
            "measure again: grpo-perf run CELL"
        ) from error


def load_meta(path: Path) -> RunMeta:
    """run.json of a run folder.

    Raises:
        RecordError: no run folder, truncated, or written by another schema version.
    """
    file = path / "run.json"
    try:
        version = json.loads(file.read_bytes()).get("schema_version")
    except (FileNotFoundError, NotADirectoryError, ValueError, AttributeError):
        version = SCHEMA_VERSION  # read_json says what is wrong
    if version != SCHEMA_VERSION:
        raise RecordError(
            f"{file} has schema version {version!r}; this grpo-perf reads version {SCHEMA_VERSION}. "
            "Judge it with the grpo-perf that wrote it: pip install 'grpo-perf==<its version>'"
        )
    return read_json(file, RunMeta)


def save_meta(path: Path, meta: RunMeta) -> None:
    """Replace run.json."""
    write_json(path / "run.json", meta)


def load_run(path: Path) -> RunRecord:
    """A run folder, closed or not.

    Raises:
        RecordError: run.json is missing, truncated or foreign.
    """
    meta = load_meta(path)
    steps, bad_steps = read_steps(path / "steps.jsonl")
    spans, bad_spans = read_spans(path)
    return RunRecord(
        path=path,
        meta=meta,
        steps=steps,
        spans=spans,
        samples=read_samples(path),
        num_unreadable_lines=bad_steps + bad_spans,
    )


def close_run(path: Path, meta: RunMeta) -> None:
    """Merge the spans, turn the samples into Parquet and write run.json; safe to repeat."""
    spans, _ = read_spans(path)
    clocks = meta.clocks or read_clocks(path)
    if not (path / "spans.jsonl").exists() and spans:
        lines = [json.dumps(msgspec.to_builtins(span)) for span in spans]
        scratch = path / ".spans.jsonl"
        scratch.write_text("\n".join(lines) + "\n")
        scratch.replace(path / "spans.jsonl")
    samples = read_samples(path)
    if samples.num_rows and not (path / "samples.parquet").exists():
        scratch = path / ".samples.parquet"
        pq.write_table(samples, scratch, compression="zstd")
        scratch.replace(path / "samples.parquet")
    save_meta(path, replace(meta, clocks=clocks))
    _remove_parts(path)


def _remove_parts(path: Path) -> None:
    if (path / "spans.jsonl").exists():
        for part in (path / "parts").glob("spans-*.jsonl"):
            part.unlink()
    if (path / "samples.parquet").exists():
        (path / "samples.arrow").unlink(missing_ok=True)


def read_steps(path: Path) -> tuple[list[Step], int]:
    """Steps as verl's file logger wrote them, and the number of lines that could not be read."""
    rows, bad = read_lines(path)
    steps = []
    for row in rows:
        if isinstance(row.get("step"), int) and isinstance(row.get("data"), dict):
            steps.append(Step(step=row["step"], data=row["data"]))
        else:
            bad += 1
    return steps, bad


def read_spans(path: Path) -> tuple[list[Span], int]:
    """Spans sorted by start, from spans.jsonl or else from the parts, and the number of unreadable lines."""
    merged = path / "spans.jsonl"
    if merged.exists():
        rows, bad = read_lines(merged)
        spans = [Span(**row) for row in rows]
    else:
        spans, bad = _merge_parts(path)
    return sorted(spans, key=lambda span: (span.t0_ns, -span.t1_ns)), bad


def read_clocks(path: Path) -> list[ClockStamp]:
    """Clock stamps that the measured processes wrote into their parts."""
    stamps = []
    for part in sorted((path / "parts").glob("spans-*.jsonl")):
        rows, _ = read_lines(part)
        stamps += [ClockStamp(**row["clock"]) for row in rows if "clock" in row]
    return stamps


def read_samples(path: Path) -> pa.Table:
    """Device samples (SAMPLE_SCHEMA), from Parquet or from the stream that a killed run left."""
    if (path / "samples.parquet").exists():
        return pq.read_table(path / "samples.parquet", schema=SAMPLE_SCHEMA)
    batches: list[pa.RecordBatch] = []
    stream = path / "samples.arrow"
    if stream.exists():
        try:
            with pa.ipc.open_stream(pa.memory_map(str(stream))) as reader:
                batches.extend(reader)
        except (pa.ArrowInvalid, OSError):
            # The last batch was cut off by a kill (Arrow raises OSError where its body is short): what came before it
            # counts, coverage tells the rest.
            pass
    return pa.Table.from_batches(batches, schema=SAMPLE_SCHEMA)


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """JSON objects of a .jsonl file, and how many lines were none (a kill cuts the last one)."""
    rows: list[dict[str, Any]] = []
    bad = 0
    if not path.exists():
        return rows, bad
    with path.open("rb") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                bad += 1
                continue
            if isinstance(row, dict):
                rows.append(row)
            else:
                bad += 1
    return rows, bad


def save_verdict(path: Path, verdict: CellVerdict) -> None:
    """Write verdict.json."""
    write_json(path / "verdict.json", verdict)


def _merge_parts(path: Path) -> tuple[list[Span], int]:
    raw: list[dict[str, Any]] = []
    bad = 0
    for part in sorted((path / "parts").glob("spans-*.jsonl")):
        rows, unreadable = read_lines(part)
        raw += [row for row in rows if "name" in row]
        bad += unreadable
    return assign_lanes(raw), bad


_ROLLOUT_NAMES = frozenset({"generate_sequences", "tool_calls", "agent_loop"})
_REWARD_NAMES = frozenset({"compute_score"})


def assign_lanes(raw: Iterable[dict[str, Any]]) -> list[Span]:
    """Spans with lanes: the process that times `step` is the trainer, the thread that does so its lane."""
    rows = list(raw)
    trainers = {(row["pid"], row.get("tid", 0)) for row in rows if row["name"] == "step"}
    trainer_pids = {pid for pid, _ in trainers}
    spans = []
    for row in rows:
        pid, tid, rank = row["pid"], row.get("tid", 0), row.get("rank")
        if (pid, tid) in trainers:
            lane = "trainer"
        elif pid in trainer_pids:
            lane = "trainer-side"
        elif row["name"] in _ROLLOUT_NAMES:
            lane = "rollout"
        elif row["name"] in _REWARD_NAMES:
            lane = "reward"
        elif rank is not None:
            lane = f"rank{rank}"
        else:
            lane = "other"
        spans.append(
            Span(name=row["name"], t0_ns=row["t0_ns"], t1_ns=row["t1_ns"], pid=pid, tid=tid, lane=lane, rank=rank)
        )
    return spans
