"""Each gate on the run itself: a case that must fail, one that must pass, and the message."""

from dataclasses import replace
from pathlib import Path

import pytest

from grpo_perf.record import ClockStamp, RunRecord, load_run
from grpo_perf.timeline.measure import measure
from tests.builders import PHASES_S, START_NS, change_samples, make_record, make_samples, make_span, to_ns

DATA = Path(__file__).parent.parent / "data"

WINDOW_NS = START_NS + to_ns(4)
"""Start of the steady window of make_record(); it lasts 16 s."""


def reasons(record: RunRecord) -> list[str]:
    return measure(record).invalid_reasons


def warnings(record: RunRecord) -> list[str]:
    return measure(record).warnings


def flag(record: RunRecord, column: str, value: int, seconds: float) -> RunRecord:
    """The record with a value in a column during the first seconds of the steady window."""
    return change_samples(
        record,
        **{column: lambda row: value if 0 <= row["t0_ns"] - WINDOW_NS < to_ns(seconds) else 0},
    )


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_healthy_run_has_no_reason_and_no_warning(device: str) -> None:
    record = make_record(device="cpu") if device == "cpu" else make_record(num_gpus=2)
    assert (reasons(record), warnings(record)) == ([], [])


def test_status() -> None:
    failed = make_record(status="failed", reason="rank 0 ran out of memory")
    assert reasons(failed) == ["the run is failed, not complete: rank 0 ran out of memory"]
    assert reasons(make_record(status="partial")) == ["the run is partial, not complete: no reason was recorded"]


def test_number_of_loops() -> None:
    assert reasons(make_record(loops=2)) == []
    assert reasons(make_record(loops=1)) == [
        "1 steady loops, at least 2 are needed: 2 steady steps were recorded after 1 of warm-up"
    ]


def test_a_run_that_never_began_is_measured_as_nothing() -> None:
    record = replace(make_record(status="failed", reason="verl exited with 1"), spans=[], steps=[])
    assert reasons(record) == [
        "the run is failed, not complete: verl exited with 1",
        "0 steady loops, at least 2 are needed: 0 steady steps were recorded after 1 of warm-up",
    ]


@pytest.mark.parametrize(
    ("lost_s", "expected"),
    [
        (0.3, []),  # 98.1 %
        (0.4, ["samples cover 97.5 % of the steady window on GPU 1; at least 98 % are needed"]),
    ],
)
def test_coverage(lost_s: float, expected: list[str]) -> None:
    record = change_samples(
        make_record(num_gpus=2),
        busy_fraction=lambda row: (
            None if row["device"] == 1 and 0 <= row["t0_ns"] - WINDOW_NS < to_ns(lost_s) else row["busy_fraction"]
        ),
    )
    assert reasons(record) == expected


def test_coverage_of_a_cpu_run_is_the_hosts() -> None:
    record = replace(make_record(device="cpu"), samples=make_samples([]))
    assert reasons(record) == ["samples cover 0.0 % of the steady window on the host; at least 98 % are needed"]


@pytest.mark.parametrize("key", ["actor/grad_norm", "actor/loss", "perf/total_num_tokens"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_not_a_number(key: str, value: float) -> None:
    record = make_record(loops=2)
    last = replace(record.steps[-1], data={**record.steps[-1].data, key: value})
    name = {"actor/grad_norm": "grad_norm", "actor/loss": "loss"}.get(key, key)
    assert reasons(replace(record, steps=[*record.steps[:-1], last])) == [f"{name} is {value} in step 4"]


def test_not_a_number_in_warm_up_does_not_count() -> None:
    record = make_record()
    first = replace(record.steps[0], data={**record.steps[0].data, "actor/grad_norm": float("nan")})
    assert reasons(replace(record, steps=[first, *record.steps[1:]])) == []


@pytest.mark.parametrize("mask", [0x08, 0x20, 0x40, 0x80])
def test_throttled(mask: int) -> None:
    names = {0x08: "HW slowdown", 0x20: "SW thermal slowdown", 0x40: "HW thermal slowdown", 0x80: "HW power brake"}
    assert reasons(flag(make_record(), "throttle_reasons", mask, 0.1)) == []  # 0.6 %
    assert reasons(flag(make_record(), "throttle_reasons", mask | 0x1, 0.2)) == [
        f"GPU 0 was throttled in 1.2 % of the steady window: {names[mask]}"
    ]


def test_power_cap_and_idle_clocks_are_no_throttling() -> None:
    record = flag(make_record(), "throttle_reasons", 0x4 | 0x1, 4.0)
    assert reasons(record) == []
    assert warnings(record) == ["GPU 0 was power-capped in 25.0 % of the steady window"]


def test_throttling_that_nobody_looked_at() -> None:
    record = make_record(columns={"throttle_reasons": None})
    assert reasons(record) == []
    assert warnings(record) == ["whether GPU 0 was throttled is not known: no throttle_reasons in the samples"]


def test_foreign_process() -> None:
    assert reasons(flag(make_record(), "num_foreign_processes", 2, 0.1)) == [
        "2 foreign compute process(es) on GPU 0 in the steady window"
    ]
    before = change_samples(make_record(), num_foreign_processes=lambda row: int(row["t0_ns"] < WINDOW_NS))
    assert reasons(before) == []


def test_clocks_that_disagree() -> None:
    assert reasons(make_record(step_data={"timing_s/gen": 1.009})) == []
    assert reasons(make_record(step_data={"timing_s/gen": 1.25})) == [
        "spans and verl disagree by 20.0 % on gen of step 2 (spans 1.000 s, verl 1.250 s); "
        "at most 1 % or 5 ms is allowed"
    ]


def test_unaccounted() -> None:
    assert reasons(make_record(unaccounted_s=0.375)) == []  # of 3.875 s: 9.7 %
    assert reasons(make_record(unaccounted_s=0.5)) == ["12.5 % of a step is in no phase; at most 10 % is allowed"]


def test_crossing_spans() -> None:
    record = make_record(phases={**PHASES_S, "ref": 0.0})
    crossing = make_span("ref", 4.25, 4.75)  # loops of 3.5 s: gen of step 2 lies in 3.5 to 4.5 s
    assert reasons(replace(record, spans=[*record.spans, crossing])) == [
        "spans cross on the trainer lane (1 in all): on lane trainer `ref` begins inside `gen` and ends after it "
        "(they share 0.25 s)"
    ]
    inside = make_span("ref", 4.25, 4.5)
    assert reasons(replace(record, spans=[*record.spans, inside])) == []


def test_crossing_on_a_rank_is_a_warning() -> None:
    ranks = [make_span("train_batch", 0, 2, lane="rank3", pid=9), make_span("eval_batch", 1, 3, lane="rank3", pid=9)]
    record = make_record()
    record = replace(record, spans=[*record.spans, *ranks])
    assert reasons(record) == []
    assert warnings(record) == [
        "on lane rank3 `eval_batch` begins inside `train_batch` and ends after it (they share 1 s)"
    ]


def test_warnings_of_the_record() -> None:
    assert warnings(replace(make_record(), num_unreadable_lines=3)) == [
        "3 line(s) of the run folder could not be read and were left out"
    ]
    assert warnings(make_record(telemetry={"problem": "NVML lost GPU 0 for 2 s"})) == [
        "the sampler reported: NVML lost GPU 0 for 2 s"
    ]
    clocks = [
        ClockStamp(pid=pid, boot_id=boot, time_namespace="1", monotonic_ns=0, wall_ns=0)
        for pid, boot in ((1, "a"), (2, "a"), (3, "b"))
    ]
    assert warnings(make_record(clocks=clocks[:2])) == []
    assert warnings(make_record(clocks=clocks)) == [
        "the processes of this run lived on 2 clocks (boot or time namespace): lanes may be shifted"
    ]


def test_a_stalled_sampler_blurs_phases() -> None:
    assert warnings(make_record(period_s=0.5)) == []
    assert warnings(make_record(period_s=0.5, telemetry={"period_s": 0.04})) == [
        "the sampler stalled: one row spans 0.5 s (period 0.04 s), idle by phase is blurred there"
    ]


def test_validation_inside_the_window_is_said() -> None:
    record = make_record(loops=2, phases={**PHASES_S, "validate": [0, 0, 1.5, 0]})
    assert warnings(record) == ["steady loops hold validate (1.5 s in all), which count as loop time"]
    assert reasons(record) == []


def test_fewer_steps_than_the_workload_asked_for() -> None:
    record = make_record(loops=4)
    assert warnings(replace(record, steps=record.steps[:-1])) == ["4 of 5 steady steps were recorded"]


def test_the_recorded_cpu_run_lacks_only_samples() -> None:
    """It was recorded before there was a sampler; its clocks, nesting and numbers are sound."""
    assert reasons(load_run(DATA / "cpu_first")) == [
        "samples cover 0.0 % of the steady window on the host; at least 98 % are needed"
    ]
