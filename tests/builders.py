"""Small records worked out by hand, for the tests of every room.

    make_record()           4 steady loops of 4 s on one GPU that is busy 75 % of the time
    step 1 (warm-up) ... 6  each: gen 1.0, old_log_prob 0.5, ref 0.5, adv 0.25, update_actor 1.0, update_weights 0.25,
                            unaccounted 0.25  = step 3.75 s;  gap 0.25  = loop 4.0 s
    samples                 rows of at most `period_s`, cut where the phase changes: every integral is exact

Every argument has a default that makes a valid, healthy, boring run; a test names only what it is about.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from grpo_perf.metrics import MARKED
from grpo_perf.record import SAMPLE_SCHEMA, RunMeta, RunRecord, Span, Step, save_meta
from grpo_perf.types import Device, Fingerprint, Hardware, Model, Tier, Workload

PHASES_S: dict[str, float] = {
    "gen": 1.0,
    "old_log_prob": 0.5,
    "ref": 0.5,
    "adv": 0.25,
    "update_actor": 1.0,
    "update_weights": 0.25,
}
"""3.5 s; with 0.25 s unaccounted and a gap of 0.25 s a loop takes 4 s."""

OUTSIDE_STEP = ("testing", "validate", "compute_metrics", "logging")
"""Phases that come after `step` has ended."""

HEALTHY: dict[str, float] = {
    "actor/grad_norm": 2.0,
    "actor/loss": -0.1,
    "actor/pg_loss": -0.1,
    "actor/ppo_kl": 0.0,
    "rollout_corr/kl": 1e-7,
    "training/rollout_actor_probs_pearson_corr": 1.0,
    "perf/mfu/actor": 0.2,
}

START_NS = 5_000_000_000_000
"""Start of the first step on the monotonic clock."""

TRAINER_PID = 100

Busy = float | None | Mapping[str, float | None]
"""A busy fraction, or one by phase (`gap` and `unaccounted` are phases here; those not named are 0)."""


def make_workload(*, device: Device = "gpu", **changes: Any) -> Workload:
    """A workload of 8 prompts x 4 responses, 1 warm-up step, 5 steady steps."""
    base = Workload(
        name="cpu-tiny" if device == "cpu" else "qwen2.5-1.5b",
        description="made by a test",
        device=device,
        model=Model(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4),
        train_batch_size=8,
        rollout_n=4,
        ppo_mini_batch_size=8,
        max_prompt_length=64,
        max_response_length=32,
        dataset_size=100,
        num_warmup_steps=1,
        num_steady_steps=5,
        tiers=["untuned", "dynamic-batch"],
    )
    return replace(base, **changes)


def make_tier(**changes: Any) -> Tier:
    """The `dynamic-batch` tier on top of `untuned`."""
    base = Tier(name="dynamic-batch", description="made by a test", builds_on="untuned")
    return replace(base, **changes)


def make_hardware(*, device: Device = "gpu", num_gpus: int = 1, **changes: Any) -> Hardware:
    """H200s with GPM telemetry, or a host without a GPU."""
    if device == "cpu":
        return replace(Hardware(key="cpu", device="cpu", device_name="cpu", num_devices=1), **changes)
    base = Hardware(
        key=f"{num_gpus}xNVIDIA-H200",
        device="gpu",
        device_name="NVIDIA H200",
        num_devices=num_gpus,
        memory_gib=140.0,
        power_limit_w=700.0,
        mig=False,
        telemetry="gpm",
    )
    return replace(base, **changes)


def make_meta(*, device: Device = "gpu", num_gpus: int = 1, **changes: Any) -> RunMeta:
    """run.json of a complete run that was launched 30 s before its first step."""
    base = RunMeta(
        run_id="run-1",
        status="complete",
        workload=make_workload(device=device, num_gpus=num_gpus),
        tier=make_tier(),
        hardware=make_hardware(device=device, num_gpus=num_gpus),
        fingerprint=Fingerprint(identity={"gpu": "NVIDIA H200"}, subject={"verl": "0.9.1"}, host={"driver": "580"}),
        created_unix_s=1_796_000_000.0,
        launched_ns=START_NS - to_ns(30.0),
        exit_code=0,
        telemetry={"source": "gpm", "period_s": 0.1, "problem": None},
    )
    return replace(base, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of the trainer's time with one owner."""

    phase: str
    t0_ns: int
    t1_ns: int


def make_record(
    *,
    loops: int = 4,
    phases: Mapping[str, float | Sequence[float]] = PHASES_S,
    unaccounted_s: float = 0.25,
    gap_s: float = 0.25,
    busy: Busy | Sequence[Busy] = 0.75,
    host_busy: Busy = 0.5,
    tokens: float | Sequence[float] = 1000,
    device: Device = "gpu",
    num_gpus: int = 1,
    period_s: float = 0.1,
    columns: Mapping[str, float | int | None] | None = None,
    step_data: Mapping[str, float | int | str | bool | None] | None = None,
    workload: Workload | None = None,
    **meta_changes: Any,
) -> RunRecord:
    """A record whose spans, steps and samples agree with each other.

    Args:
        loops: steady loops; warm-up steps come before them and one step closes the last.
        phases: seconds by phase in the order of a step, or one number for each step.
        unaccounted_s: at the end of each step, inside no phase.
        gap_s: after each step, inside no span.
        busy: GPM activity of the GPUs, or a list with one entry for each GPU.
        host_busy: load of the host.
        tokens: verl's perf/total_num_tokens, or one number for each step.
        period_s: the longest row of samples.
        columns: constant values of other sample columns on the GPUs' rows (`{"power_w": 500.0}`).
        step_data: further keys of every step's line, or replacements.
        **meta_changes: fields of RunMeta.
    """
    chosen = workload or make_workload(device=device, num_gpus=num_gpus, num_steady_steps=loops + 1)
    num_steps = chosen.num_warmup_steps + loops + 1
    spans: list[Span] = []
    steps: list[Step] = []
    segments: list[Segment] = []
    for index in range(num_steps):
        lengths = {name: _pick(length, index) for name, length in phases.items()}
        laid = _lay_step(lengths, unaccounted_s, gap_s, start_ns=segments[-1].t1_ns if segments else START_NS)
        segments += laid
        spans += _make_spans(laid)
        steps.append(_make_step(index + 1, laid, _pick(tokens, index), step_data or {}))
    meta = make_meta(device=device, num_gpus=num_gpus, **{"workload": chosen, **meta_changes})
    by_device: dict[int, Busy] = {-1: host_busy}
    if device == "gpu":
        by_device |= dict(enumerate(busy if isinstance(busy, Sequence) else [busy] * num_gpus))
    rows = [row for number, load in by_device.items() for row in _make_rows(segments, number, load, period_s, columns)]
    rows.sort(key=lambda row: (row["t1_ns"], row["device"]))
    return RunRecord(path=Path("runs/run-1"), meta=meta, steps=steps, spans=spans, samples=make_samples(rows))


def make_samples(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """A samples table; columns that a row does not name are null."""
    return pa.Table.from_pylist([dict(row) for row in rows], schema=SAMPLE_SCHEMA)


def make_span(name: str, t0_s: float, t1_s: float, **changes: Any) -> Span:
    """A span of the trainer's main thread, in seconds after START_NS."""
    base = Span(name=name, t0_ns=START_NS + to_ns(t0_s), t1_ns=START_NS + to_ns(t1_s), pid=TRAINER_PID, lane="trainer")
    return replace(base, **changes)


def change_samples(record: RunRecord, **columns: Any) -> RunRecord:
    """The record with sample columns replaced by a function of each row (`busy_fraction=lambda row: None`)."""
    rows = [{**row, **{name: make(row) for name, make in columns.items()}} for row in record.samples.to_pylist()]
    return replace(record, samples=make_samples(rows))


def write_record(path: Path, record: RunRecord) -> Path:
    """The record as a closed run folder."""
    path.mkdir(parents=True, exist_ok=True)
    steps = [json.dumps({"step": step.step, "data": step.data}) for step in record.steps]
    (path / "steps.jsonl").write_text("".join(f"{line}\n" for line in steps))
    spans = [json.dumps(msgspec.to_builtins(span)) for span in record.spans]
    (path / "spans.jsonl").write_text("".join(f"{line}\n" for line in spans))
    pq.write_table(record.samples, path / "samples.parquet", compression="zstd")
    save_meta(path, record.meta)
    return path


def to_ns(seconds: float) -> int:
    """Seconds as whole nanoseconds."""
    return round(seconds * 1_000_000_000)


def _pick(value: float | Sequence[float], index: int) -> float:
    return value[index] if isinstance(value, Sequence) else value


def _lay_step(lengths: Mapping[str, float], unaccounted_s: float, gap_s: float, *, start_ns: int) -> list[Segment]:
    """The segments of one loop in order: phases, `unaccounted`, marks outside `step`, `gap`."""
    inside = {name: length for name, length in lengths.items() if name not in OUTSIDE_STEP}
    outside = {name: length for name, length in lengths.items() if name in OUTSIDE_STEP}
    laid = []
    for phase, length_s in {**inside, "unaccounted": unaccounted_s, **outside, "gap": gap_s}.items():
        laid.append(Segment(phase=phase, t0_ns=start_ns, t1_ns=start_ns + to_ns(length_s)))
        start_ns = laid[-1].t1_ns
    return laid


def _make_spans(laid: Sequence[Segment]) -> list[Span]:
    inside_ns = [segment.t1_ns for segment in laid if segment.phase == "unaccounted"]
    step = Span(name="step", t0_ns=laid[0].t0_ns, t1_ns=inside_ns[0], pid=TRAINER_PID, lane="trainer")
    named = [segment for segment in laid if segment.phase not in ("unaccounted", "gap")]
    return [step] + [
        Span(name=segment.phase, t0_ns=segment.t0_ns, t1_ns=segment.t1_ns, pid=TRAINER_PID, lane="trainer")
        for segment in named
        if segment.t1_ns > segment.t0_ns
    ]


def _make_step(number: int, laid: Sequence[Segment], tokens: float, extra: Mapping[str, Any]) -> Step:
    timed = {span.name: span.duration_s for span in _make_spans(laid) if span.name not in MARKED}
    data: dict[str, Any] = {
        "training/global_step": number,
        "perf/total_num_tokens": tokens,
        **{f"timing_s/{name}": length_s for name, length_s in timed.items()},
        **HEALTHY,
        **extra,
    }
    return Step(step=number, data=data)


def _make_rows(
    segments: Sequence[Segment],
    device: int,
    busy: Busy,
    period_s: float,
    columns: Mapping[str, float | int | None] | None,
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for segment in segments:
        load = busy.get(segment.phase, 0.0) if isinstance(busy, Mapping) else busy
        for t0_ns in range(segment.t0_ns, segment.t1_ns, to_ns(period_s)):
            row = {"t0_ns": t0_ns, "t1_ns": min(t0_ns + to_ns(period_s), segment.t1_ns), "device": device}
            rows.append(row | (_host_values(row, load) if device < 0 else _gpu_values(load, columns or {})))
    return rows


def _host_values(row: Mapping[str, int], load: float | None) -> dict[str, float | None]:
    """The sampler takes 1 % of a core; the run's processes hold 6 GiB."""
    sampler_cpu_s = (row["t1_ns"] - START_NS) * 1e-9 * 0.01
    return {"host_busy_fraction": load, "memory_used_gib": 6.0, "sampler_cpu_s": sampler_cpu_s}


def _gpu_values(load: float | None, columns: Mapping[str, float | int | None]) -> dict[str, float | int | None]:
    return {
        "busy_fraction": load,
        "sm_active_fraction": 0.5,
        "tensor_active_fraction": 0.25,
        "dram_active_fraction": 0.125,
        "nvml_utilization": 0.875,
        "power_w": 400.0,
        "memory_used_gib": 70.0,
        "throttle_reasons": 0,
        "num_foreign_processes": 0,
        **columns,
    }
