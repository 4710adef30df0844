"""May this run be judged at all? Reasons against it, and warnings beside it, each with its number.

reason  -> the run is INVALID: unfinished, too short, unseen, disturbed, or its clocks contradict each other
warning -> judged all the same, printed beside the verdict
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from grpo_perf.record import RunRecord
from grpo_perf.timeline.devices import measure_coverage
from grpo_perf.timeline.health import compare_timing, read_step_value
from grpo_perf.timeline.intervals import Sampled, find_peaks, integrate
from grpo_perf.timeline.lanes import TRAINER, Crossing
from grpo_perf.timeline.loops import TOKENS_KEY
from grpo_perf.timeline.samples import HOST, Rows, has_bits, read_gpu_column
from grpo_perf.timeline.window import Window
from grpo_perf.types import MetricValue
from grpo_perf.units import NS_PER_S, format_number, format_percent

MIN_LOOPS = 2
MIN_COVERAGE_FRACTION = 0.98
MAX_THROTTLED_FRACTION = 0.01
MAX_TIMING_ERROR_FRACTION = 0.01
MAX_UNACCOUNTED_FRACTION = 0.10
MAX_PERIODS_PER_ROW = 10
"""A sampler that comes this late was starved; shorter delays are ordinary scheduling."""

THROTTLE_REASONS = {
    0x08: "HW slowdown",
    0x20: "SW thermal slowdown",
    0x40: "HW thermal slowdown",
    0x80: "HW power brake",
}
"""Source: nvml.h, nvmlClocksEventReason*. Clocks fell below what the load would get: times are not comparable."""

POWER_CAP = 0x04
"""nvmlClocksEventReasonSwPowerCap: usual under full load on some boards, so only a warning."""

_VALIDATION_NAMES = frozenset({"validate", "testing", "save_checkpoint"})


def find_invalid_reasons(
    record: RunRecord,
    window: Window,
    rows: Rows,
    metrics: Mapping[str, MetricValue],
    crossings: Sequence[Crossing],
) -> list[str]:
    """Why the run cannot be judged; empty for one that can."""
    reasons = [*_check_status(record, window), *_check_crossings(crossings)]
    if window.num_loops:
        reasons += _check_coverage(record, window, rows)
        reasons += _check_disturbance(record, window, rows)
        reasons += _check_unaccounted(metrics)
    return [*reasons, *_check_numbers(window), *_check_timing(record, window, metrics)]


def find_warnings(record: RunRecord, window: Window, rows: Rows, crossings: Sequence[Crossing]) -> list[str]:
    """What a reader of the verdict should know beside it."""
    return [
        *_warn_record(record),
        *_warn_steps(record, window),
        *_warn_stalls(record, rows),
        *(_describe_crossing(crossing) for crossing in crossings if crossing.lane != TRAINER),
        *(_warn_gpus(window, rows) if record.meta.hardware.device == "gpu" and window.num_loops else ()),
    ]


def _check_status(record: RunRecord, window: Window) -> Iterator[str]:
    meta = record.meta
    if meta.experiment:
        yield f"the run is an experiment on the measurement ({meta.experiment}): it is never judged"
    if meta.status != "complete":
        yield f"the run is {meta.status}, not complete: {meta.reason or 'no reason was recorded'}"
    if window.num_loops < MIN_LOOPS:
        yield (
            f"{window.num_loops} steady loops, at least {MIN_LOOPS} are needed: {window.num_steps} steady steps were "
            f"recorded after {window.first} of warm-up"
        )


def _check_crossings(crossings: Sequence[Crossing]) -> Iterator[str]:
    of_trainer = [crossing for crossing in crossings if crossing.lane == TRAINER]
    if of_trainer:
        yield f"spans cross on the trainer lane ({len(of_trainer)} in all): {_describe_crossing(of_trainer[0])}"


def _describe_crossing(crossing: Crossing) -> str:
    return (
        f"on lane {crossing.lane} `{crossing.inner.name}` begins inside `{crossing.outer.name}` and ends after it "
        f"(they share {format_number(crossing.overlap_s, 's')})"
    )


def _check_coverage(record: RunRecord, window: Window, rows: Rows) -> Iterator[str]:
    for device, covered in measure_coverage(rows, window, record.meta).items():
        if covered < MIN_COVERAGE_FRACTION:
            yield (
                f"samples cover {format_percent(covered)} of the steady window on {_name(device)}; "
                f"at least {format_percent(MIN_COVERAGE_FRACTION, digits=0)} are needed"
            )


def _check_disturbance(record: RunRecord, window: Window, rows: Rows) -> Iterator[str]:
    """Throttled clocks and foreign processes, by GPU."""
    if record.meta.hardware.device != "gpu":
        return
    for device, sampled in read_gpu_column(rows, "throttle_reasons").items():
        share = _measure_share(has_bits(sampled, sum(THROTTLE_REASONS)), window)
        if share is not None and share > MAX_THROTTLED_FRACTION:
            names = [name for bit, name in THROTTLE_REASONS.items() if _measure_share(has_bits(sampled, bit), window)]
            yield f"{_name(device)} was throttled in {format_percent(share)} of the steady window: {', '.join(names)}"
    for device, sampled in read_gpu_column(rows, "num_foreign_processes").items():
        peaks = find_peaks(sampled, window.edges_ns)
        num_foreign = max((int(peak) for peak in peaks if math.isfinite(peak)), default=0)
        if num_foreign:
            yield f"{num_foreign} foreign compute process(es) on {_name(device)} in the steady window"


def _check_numbers(window: Window) -> Iterator[str]:
    """NaN or inf in what is judged or in what must be a number for the training to mean anything."""
    for number, step in zip(window.steady_numbers, window.steady_steps, strict=True):
        values = {name: read_step_value(name, step) for name in ("loss", "grad_norm")}
        values |= {TOKENS_KEY: step.number(TOKENS_KEY) if step else None}
        for name, value in values.items():
            if value is not None and not math.isfinite(value):
                yield f"{name} is {value} in step {number}"


def _check_timing(record: RunRecord, window: Window, metrics: Mapping[str, MetricValue]) -> Iterator[str]:
    error = metrics["timing_error_fraction"].value
    if error is not None and error > MAX_TIMING_ERROR_FRACTION:
        worst = max(compare_timing(record, window), key=lambda item: item.error_fraction)
        yield (
            f"spans and verl disagree by {format_percent(worst.error_fraction)} on {worst.phase} of step {worst.step} "
            f"(spans {worst.span_s:.3f} s, verl {worst.verl_s:.3f} s); "
            f"at most {format_percent(MAX_TIMING_ERROR_FRACTION, digits=0)} or 5 ms is allowed"
        )


def _check_unaccounted(metrics: Mapping[str, MetricValue]) -> Iterator[str]:
    share = metrics["unaccounted_fraction"].value
    if share is not None and share > MAX_UNACCOUNTED_FRACTION:
        yield (
            f"{format_percent(share)} of a step is in no phase; "
            f"at most {format_percent(MAX_UNACCOUNTED_FRACTION, digits=0)} is allowed"
        )


def _warn_record(record: RunRecord) -> Iterator[str]:
    if record.num_unreadable_lines:
        yield f"{record.num_unreadable_lines} line(s) of the run folder could not be read and were left out"
    if problem := record.meta.telemetry.get("problem"):
        yield f"the sampler reported: {problem}"
    clocks = {(stamp.boot_id, stamp.time_namespace) for stamp in record.meta.clocks}
    if len(clocks) > 1:
        yield f"the processes of this run lived on {len(clocks)} clocks (boot or time namespace): lanes may be shifted"


def _warn_steps(record: RunRecord, window: Window) -> Iterator[str]:
    wanted = record.meta.workload.num_steady_steps
    if window.num_steps < wanted:
        yield f"{window.num_steps} of {wanted} steady steps were recorded"
    if not window.num_loops:
        return
    edges = window.edges_ns
    inside = [
        span
        for span in record.spans
        if span.lane == TRAINER and span.name in _VALIDATION_NAMES and edges[0] <= span.t0_ns < edges[-1]
    ]
    if inside:
        names = ", ".join(sorted({span.name for span in inside}))
        length_s = sum(span.t1_ns - span.t0_ns for span in inside if span.name != "testing") / NS_PER_S
        yield f"steady loops hold {names} ({format_number(length_s, 's')} in all), which count as loop time"


def _warn_gpus(window: Window, rows: Rows) -> Iterator[str]:
    for device, sampled in read_gpu_column(rows, "throttle_reasons").items():
        capped = _measure_share(has_bits(sampled, POWER_CAP), window)
        if capped is None:
            yield f"whether {_name(device)} was throttled is not known: no throttle_reasons in the samples"
        elif capped:
            yield f"{_name(device)} was power-capped in {format_percent(capped)} of the steady window"


def _warn_stalls(record: RunRecord, rows: Rows) -> Iterator[str]:
    """A long row is still a true mean, but nobody knows which phase within it was the idle one."""
    period_s = record.meta.telemetry.get("period_s")
    if not len(rows.starts_ns) or not isinstance(period_s, int | float):
        return
    longest_s = float((rows.ends_ns - rows.starts_ns).max()) / NS_PER_S
    if longest_s > MAX_PERIODS_PER_ROW * period_s:
        yield (
            f"the sampler stalled: one row spans {format_number(longest_s, 's')} "
            f"(period {format_number(period_s, 's')}), idle by phase is blurred there"
        )


def _measure_share(sampled: Sampled, window: Window) -> float | None:
    """Overlap-weighted mean of a 0/1 value over the steady window; None where nothing covers it."""
    covered_ns, integral_ns = integrate(sampled, window.edges_ns)
    return float(integral_ns.sum() / covered_ns.sum()) if covered_ns.sum() else None


def _name(device: int) -> str:
    return "the host" if device == HOST else f"GPU {device}"
