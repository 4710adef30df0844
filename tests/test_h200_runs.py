"""Real runs of one H200 (verl 0.9.1, vllm 0.24.0, the 1.5B shape), measured and judged again from their folders."""

from dataclasses import replace
from pathlib import Path

import pytest

from grpo_perf.baseline import load_baseline, make_baseline
from grpo_perf.record import load_run
from grpo_perf.timeline import find_crossings, measure
from grpo_perf.types import CellVerdict, JudgeContext, Measurement, Provenance, Verdict
from grpo_perf.verdict import judge

DATA = Path(__file__).parent / "data"
BASELINES = Path(__file__).parents[1] / "baselines"
HARDWARE = "1xNVIDIA-H200"
RECOMMENDED = ("h200_recommended", "h200_recommended_2", "h200_recommended_3")
"""The first on one host, the others on another one: 5.0, 5.7 and 5.6 s a loop."""


def measure_stored(name: str) -> Measurement:
    return measure(load_run(DATA / name))


def judge_stored(name: str, *, by: str, measurement: Measurement | None = None) -> CellVerdict:
    """The verdict on a stored run by the committed baseline of a tier."""
    record = load_run(DATA / name)
    baseline = load_baseline(BASELINES, HARDWARE, "qwen2.5-1.5b", by)
    assert baseline is not None
    return judge(
        measurement or measure(record),
        tier=record.meta.tier,
        targets=record.meta.targets,
        context=JudgeContext(baseline=baseline),
    )


@pytest.mark.parametrize(
    ("name", "loop_s", "busy", "nvml"),
    [
        ("h200_untuned_cut", 51.4, 0.125, 0.27),
        ("h200_dynamic_batch", 14.7, 0.242, 0.34),
        ("h200_recommended", 5.02, 0.545, 0.70),
    ],
)
def test_ladder(name: str, loop_s: float, busy: float, nvml: float) -> None:
    measurement = measure_stored(name)
    assert measurement.value("loop_time_s") == pytest.approx(loop_s, rel=0.005)
    assert measurement.value("busy_fraction") == pytest.approx(busy, abs=0.001)
    assert measurement.value("nvml_utilization") == pytest.approx(nvml, abs=0.01)  # overstates, most where idle


@pytest.mark.parametrize("name", ["h200_dynamic_batch", "h200_recommended"])
def test_spans_are_exact_and_cover_the_step(name: str) -> None:
    measurement = measure_stored(name)
    assert measurement.invalid_reasons == []
    assert measurement.value("timing_error_fraction") == 0.0
    unaccounted = measurement.value("unaccounted_fraction")
    assert unaccounted is not None
    assert unaccounted < 0.001
    assert find_crossings(load_run(DATA / name).spans) == []


def test_an_interrupted_run_is_measured_and_never_judged() -> None:
    verdict = judge_stored("h200_untuned_cut", by="dynamic-batch")
    assert verdict.verdict is Verdict.INVALID
    assert "partial" in verdict.claims[0].message


def test_a_run_does_not_regress_against_itself() -> None:
    verdict = judge_stored("h200_dynamic_batch", by="dynamic-batch")
    assert {claim.verdict for claim in verdict.claims} <= {Verdict.PASS, Verdict.INCONCLUSIVE}
    assert all(claim.change is None or abs(claim.change) < 1e-4 for claim in verdict.claims)


@pytest.mark.parametrize("left_out", RECOMMENDED)
def test_runs_of_two_hosts_do_not_regress_against_each_other(left_out: str) -> None:
    record = load_run(DATA / left_out)
    baseline = make_baseline(
        [measure_stored(name) for name in RECOMMENDED if name != left_out],
        tier=record.meta.tier,
        references=[],
        num_warmup_steps=1,
        provenance=Provenance(run_ids=[]),
    )
    verdict = judge(measure(record), tier=record.meta.tier, targets={}, context=JudgeContext(baseline=baseline))
    assert verdict.verdict in (Verdict.PASS, Verdict.INCONCLUSIVE)


def test_no_cuda_graphs_is_regressed_and_the_rollout_is_named() -> None:
    verdict = judge_stored("h200_recommended_eager", by="recommended")
    regressed = {claim.metric for claim in verdict.claims if claim.verdict is Verdict.REGRESSED}
    assert {"loop_time_s", "idle_s_per_step", "effective_tokens_per_hour", "phase_s/gen"} <= regressed
    assert not {"phase_s/update_actor", "phase_s/ref", "phase_s/old_log_prob"} & regressed
    assert verdict.blame == ["gen +10.1 s (99 % of the change)"]
    assert verdict.subject_changes == ["actor_rollout_ref.rollout.enforce_eager False -> True"]


def test_tuning_taken_back_is_regressed_with_its_phases_named() -> None:
    verdict = judge_stored("h200_dynamic_batch", by="recommended")
    assert verdict.verdict is Verdict.REGRESSED
    loop = next(claim for claim in verdict.claims if claim.metric == "loop_time_s")
    assert loop.change == pytest.approx(14.70 / 5.633 - 1, rel=0.01)
    assert verdict.blame[0].startswith("gen")
    assert any("enforce_eager" in change for change in verdict.subject_changes)


def test_another_workload_is_a_mismatch_and_says_which_field() -> None:
    measurement = measure_stored("h200_recommended")
    fingerprint = measurement.fingerprint
    other = replace(fingerprint, identity={**fingerprint.identity, "workload_hash": "000000000000"})
    verdict = judge_stored("h200_recommended", by="recommended", measurement=replace(measurement, fingerprint=other))
    assert verdict.verdict is Verdict.ENV_MISMATCH
    assert any("workload_hash" in claim.message for claim in verdict.claims)
