"""The gate: every verdict has a case that must give it and one that must not."""

import math
from dataclasses import replace

import pytest

from grpo_perf.types import (
    Claim,
    JudgeContext,
    Measurement,
    MetricValue,
    Target,
    Tier,
    Tolerance,
    Verdict,
)
from grpo_perf.verdict import claim_names, judge
from grpo_perf.verdict.gate import judge_cell
from tests.verdict.measurements import (
    BASE_TIER,
    GPU,
    TIER,
    find_claim,
    make_baseline,
    make_measurement,
    make_ratio_baseline,
    series,
)

PATH = "baselines/1xNVIDIA-H200/qwen2.5-1.5b/dynamic-batch.json"


def judge_gpu(run: Measurement, *, tier: Tier = TIER, targets: dict[str, Target] | None = None, **context: object):  # type: ignore[no-untyped-def]
    """A verdict against the default baseline."""
    settings = {"baseline": make_baseline(), "baseline_path": PATH} | context
    return judge(run, tier=tier, targets=targets or {}, context=JudgeContext(**settings))  # type: ignore[arg-type]


def judge_cpu(run: Measurement, *, references: list[Measurement] | None = None, tier: Tier = TIER, **context: object):  # type: ignore[no-untyped-def]
    """A verdict against a ratio of 0.5 to a base of 20 s a loop, so that the default run is as expected."""
    base = [make_measurement([20.0] * 5, hardware="cpu", tier="untuned", run_id="base")]
    settings = {"baseline": make_ratio_baseline(0.5), "references": base if references is None else references}
    return judge(run, tier=tier, targets={}, context=JudgeContext(**(settings | context)))  # type: ignore[arg-type]


# PASS, REGRESSED, IMPROVED


def test_an_unchanged_run_passes() -> None:
    verdict = judge_gpu(make_measurement())
    assert verdict.verdict is Verdict.PASS
    assert (verdict.cell, verdict.hardware, verdict.run_ids) == ("qwen2.5-1.5b/dynamic-batch", GPU, ["run-1"])
    assert verdict.blame == []
    assert (
        find_claim(verdict, "loop_time_s").message
        == "loop_time_s +0.0 % [+0.0, +0.0], allowed 5.0 %: 10 s, baseline 10 s"
    )


def test_a_slow_phase_regresses_and_is_named() -> None:
    # loop 10 -> 13, all of it in update_actor
    run = make_measurement([13.0] * 5, phases={"gen": 5.0, "ref": 1.0, "update_actor": 7.0})
    verdict = judge_gpu(run)
    assert verdict.verdict is Verdict.REGRESSED
    claim = find_claim(verdict, "loop_time_s")
    assert claim.message == (
        "loop_time_s +30.0 % [+30.0, +30.0], allowed 5.0 %: update_actor +3 s (100 % of it); 13 s, baseline 10 s"
    )
    assert (claim.value, claim.reference, claim.limit) == (13.0, 10.0, 0.05)
    assert claim.change == pytest.approx(0.3)
    assert claim.interval == pytest.approx((0.3, 0.3))
    assert claim.next_command == "grpo-perf judge runs/run-1"
    assert find_claim(verdict, "phase_s/update_actor").verdict is Verdict.REGRESSED
    assert verdict.blame == ["update_actor +3 s (100 % of the change)"]


def test_the_epoch_follows_the_loop() -> None:
    claim = find_claim(judge_gpu(make_measurement([13.0] * 5)), "epoch_time_s")
    assert claim.verdict is Verdict.REGRESSED
    assert (claim.value, claim.reference, claim.change) == (1664.0, 1280.0, pytest.approx(0.3))


def test_fewer_tokens_an_hour_regress_although_the_number_falls() -> None:
    claim = find_claim(judge_gpu(make_measurement([12.5] * 5)), "effective_tokens_per_hour")
    assert claim.verdict is Verdict.REGRESSED
    assert claim.change == pytest.approx(-0.2)
    assert claim.message.startswith("effective_tokens_per_hour -20.0 % [-20.0, -20.0], allowed 5.0 %: ")


def test_more_memory_regresses() -> None:
    run = make_measurement(metrics={"memory_used_gib": series("memory_used_gib", [60.0] * 5)})
    verdict = judge_gpu(run)
    assert verdict.verdict is Verdict.REGRESSED
    assert find_claim(verdict, "memory_used_gib").message == (
        "memory_used_gib +20.0 % [+20.0, +20.0], allowed 5.0 %: 60 GiB, baseline 50 GiB"
    )


def test_a_change_within_the_tolerance_passes() -> None:
    assert judge_gpu(make_measurement([10.4] * 5)).verdict is Verdict.PASS


def test_the_tiers_tolerance_counts() -> None:
    tolerances = {name: Tolerance(relative=0.4) for name in ("loop_time_s", "phase_s", "idle_s_per_step")}
    assert judge_gpu(make_measurement([13.0] * 5), tier=replace(TIER, tolerances=tolerances)).verdict is Verdict.PASS


def test_an_absolute_tolerance_counts() -> None:
    tolerances = {"loop_time_s": Tolerance(absolute=4.0)}
    claim = find_claim(
        judge_gpu(make_measurement([13.0] * 5), tier=replace(TIER, tolerances=tolerances)), "loop_time_s"
    )
    assert claim.verdict is Verdict.PASS
    assert "allowed 40.0 % (absolute tolerance)" in claim.message


def test_a_faster_run_is_improved_and_hints_at_a_refresh() -> None:
    verdict = judge_gpu(make_measurement([8.0] * 5))
    assert verdict.verdict is Verdict.IMPROVED
    claim = find_claim(verdict, "loop_time_s")
    assert claim.message == (
        "loop_time_s -20.0 % [-20.0, -20.0], allowed 5.0 %: better than the baseline, refresh it to keep the gain; "
        "8 s, baseline 10 s"
    )
    assert claim.next_command == "pytest perf_tests -m gpu -k dynamic-batch --perf-baseline=create"


def test_an_improvement_never_offsets_a_regression() -> None:
    run = make_measurement([8.0] * 5, metrics={"memory_used_gib": series("memory_used_gib", [60.0] * 5)})
    verdict = judge_gpu(run)
    assert find_claim(verdict, "loop_time_s").verdict is Verdict.IMPROVED
    assert verdict.verdict is Verdict.REGRESSED


def test_idle_that_comes_back_regresses_though_the_loop_is_as_fast() -> None:
    idle = {"idle_s_per_step": series("idle_s_per_step", [6.0] * 5)}
    idle |= {"idle_s_per_step/gen": series("idle_s_per_step", [5.0] * 5)}
    verdict = judge_gpu(make_measurement(metrics=idle))
    assert verdict.verdict is Verdict.REGRESSED
    assert find_claim(verdict, "idle_s_per_step").message == (
        "idle_s_per_step +50.0 % [+50.0, +50.0], allowed 5.0 %: gen +2 GPU-s (100 % of it); 6 GPU-s, baseline 4 GPU-s"
    )


def test_a_phase_that_the_tier_does_not_gate_only_explains() -> None:
    run = make_measurement([10.0] * 5, phases={"gen": 3.0, "ref": 3.0, "update_actor": 4.0})
    assert judge_gpu(run).verdict is Verdict.PASS
    gated = judge_gpu(run, tier=replace(TIER, gated_phases=["ref"]))
    assert gated.verdict is Verdict.REGRESSED
    assert find_claim(gated, "phase_s/ref").change == pytest.approx(2.0)


# INCONCLUSIVE and noise


def test_a_noisy_run_is_inconclusive_and_says_what_it_could_have_seen() -> None:
    # Interval [-10 %, +20 %] from extreme to extreme, half width 15 %; the limit is 5 %.
    verdict = judge_gpu(make_measurement([9.0, 10.0, 10.0, 10.0, 12.0]))
    claim = find_claim(verdict, "loop_time_s")
    assert verdict.verdict is Verdict.INCONCLUSIVE
    assert claim.message == (
        "loop_time_s +0.0 % [-10.0, +20.0], allowed 5.0 %: the interval spans the limit, the smallest effect that "
        "5 loops can show is 20.0 %; 10 s, baseline 10 s"
    )
    assert claim.next_command == "pytest perf_tests -m gpu -k dynamic-batch --perf-budget-min 60"


def test_noise_does_not_hide_a_large_change() -> None:
    claim = find_claim(judge_gpu(make_measurement([14.0, 15.0, 15.0, 15.0, 17.0])), "loop_time_s")
    assert claim.verdict is Verdict.REGRESSED


def test_too_few_loops_are_inconclusive() -> None:
    claim = find_claim(judge_gpu(make_measurement([13.0])), "loop_time_s")
    assert claim.verdict is Verdict.INCONCLUSIVE
    assert claim.message == "loop_time_s needs at least 2 steady loops, the cell has 1"


def test_two_loops_are_enough_to_regress() -> None:
    assert find_claim(judge_gpu(make_measurement([13.0, 13.1])), "loop_time_s").verdict is Verdict.REGRESSED


def test_earlier_runs_of_the_cell_are_pooled() -> None:
    earlier = make_measurement([10.0] * 5, run_id="run-0")
    verdict = judge_gpu(make_measurement([13.0]), siblings=[earlier])
    claim = find_claim(verdict, "loop_time_s")
    assert verdict.run_ids == ["run-0", "run-1"]
    assert claim.value == 11.5  # median of the runs' 10 and 13
    assert claim.interval == pytest.approx((0.0, 0.3))


def test_an_invalid_earlier_run_is_not_pooled() -> None:
    crashed = make_measurement([99.0] * 5, run_id="run-0", invalid_reasons=["crashed"])
    verdict = judge_gpu(make_measurement(), siblings=[crashed])
    assert (verdict.verdict, verdict.run_ids) == (Verdict.PASS, ["run-1"])


def test_the_run_itself_is_pooled_once() -> None:
    run = make_measurement()
    assert judge_gpu(run, siblings=[run]).run_ids == ["run-1"]


@pytest.mark.parametrize("index", range(5))
def test_one_outlier_neither_fails_nor_hides(index: int) -> None:
    stalled = [10.0, 10.1, 9.9, 10.0, 10.1]
    stalled[index] *= 100
    verdict = judge_gpu(make_measurement(stalled))
    assert find_claim(verdict, "loop_time_s").verdict is Verdict.PASS
    (warning,) = verdict.warnings
    assert warning.startswith(f"loop {index + 1} of run run-1 took {stalled[index]:,.0f} s, far from the others")


def test_an_outlier_in_the_baseline_does_not_hide_a_regression() -> None:
    stored = make_baseline(make_measurement([10.0, 10.1, 9.9, 10.0, 1000.0]))
    verdict = judge_gpu(make_measurement([13.0, 13.1, 12.9, 13.0, 13.0]), baseline=stored)
    assert find_claim(verdict, "loop_time_s").verdict is Verdict.REGRESSED


def test_the_scatter_of_the_baselines_runs_is_allowed_for() -> None:
    runs = [make_measurement([loop] * 5, run_id=f"run-{loop}") for loop in (9.8, 10.0, 10.2)]
    claim = find_claim(judge_gpu(make_measurement([10.6] * 5), baseline=make_baseline(*runs)), "loop_time_s")
    assert claim.limit == pytest.approx(0.088956)  # 3 x 1.4826 x 0.2 / 10
    assert "allowed 8.9 % (noise floor)" in claim.message
    assert find_claim(judge_gpu(make_measurement([10.6] * 5)), "loop_time_s").verdict is Verdict.REGRESSED
    assert claim.verdict is not Verdict.REGRESSED


def test_a_noisy_baseline_cannot_widen_the_gate_beyond_its_cap() -> None:
    runs = [make_measurement([loop] * 5, run_id=f"run-{loop}") for loop in (7.0, 10.0, 13.0)]
    claim = find_claim(judge_gpu(make_measurement([15.0] * 5), baseline=make_baseline(*runs)), "loop_time_s")
    assert claim.limit == 0.10
    capped = replace(TIER, tolerances={"loop_time_s": Tolerance(floor_cap=0.02)})
    assert (
        find_claim(judge_gpu(make_measurement(), tier=capped, baseline=make_baseline(*runs)), "loop_time_s").limit
        == 0.05
    )


# NO_BASELINE, ENV_MISMATCH, subject


def test_no_baseline_names_the_command() -> None:
    verdict = judge_gpu(make_measurement(), baseline=None)
    claim = find_claim(verdict, "loop_time_s")
    assert verdict.verdict is Verdict.NO_BASELINE
    assert claim.message == (
        f"No baseline for 'dynamic-batch' on '1xNVIDIA-H200' ({PATH}). "
        "Create it: pytest perf_tests -m gpu -k dynamic-batch --perf-baseline=create"
    )
    assert claim.next_command == "pytest perf_tests -m gpu -k dynamic-batch --perf-baseline=create"


def test_no_baseline_on_cpu_names_the_script() -> None:
    verdict = judge_cpu(make_measurement(hardware="cpu"), baseline=None)
    assert find_claim(verdict, "loop_time_s").next_command == "bash ci/perf.sh -k dynamic-batch --perf-baseline=create"


def test_absolute_targets_are_judged_without_a_baseline() -> None:
    verdict = judge_gpu(make_measurement(), baseline=None, targets={"busy_fraction": Target(minimum=0.7)})
    assert find_claim(verdict, "busy_fraction").verdict is Verdict.REGRESSED
    assert find_claim(verdict, "measurement").verdict is Verdict.PASS
    assert verdict.verdict is Verdict.REGRESSED


def test_a_metric_that_the_baseline_lacks_is_the_only_one_without_baseline() -> None:
    stored = make_baseline()
    older = replace(stored, metrics={name: m for name, m in stored.metrics.items() if name != "memory_used_gib"})
    verdict = judge_gpu(make_measurement(), baseline=older)
    assert find_claim(verdict, "memory_used_gib").verdict is Verdict.NO_BASELINE
    assert "has no memory_used_gib. Create it: " in find_claim(verdict, "memory_used_gib").message
    assert find_claim(verdict, "loop_time_s").verdict is Verdict.PASS


def test_other_hardware_is_a_mismatch_that_names_the_field() -> None:
    verdict = judge_gpu(make_measurement([13.0] * 5, identity={"device_name": "NVIDIA H100"}))
    claim = find_claim(verdict, "loop_time_s")
    assert verdict.verdict is Verdict.ENV_MISMATCH
    assert claim.message == "not comparable with the baseline: device_name NVIDIA H200 -> NVIDIA H100"
    assert find_claim(verdict, "training_health").verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("subject", "printed"),
    [
        ({"verl": "0.9.1"}, "verl 0.9.0 -> 0.9.1"),
        ({"override:actor.use_dynamic_bsz": False}, "actor.use_dynamic_bsz True -> False"),
        ({"override:actor.lr": 1e-6}, "actor.lr (not set) -> 1e-06"),
    ],
)
def test_a_changed_subject_can_regress_and_is_never_a_mismatch(subject: dict[str, object], printed: str) -> None:
    slow = judge_gpu(make_measurement([13.0] * 5, subject=subject))  # type: ignore[arg-type]
    assert slow.verdict is Verdict.REGRESSED
    assert slow.subject_changes == [printed]
    same = judge_gpu(make_measurement(subject=subject))  # type: ignore[arg-type]
    assert same.verdict is Verdict.PASS
    assert same.subject_changes == [printed]
    assert Verdict.ENV_MISMATCH not in {claim.verdict for claim in [*slow.claims, *same.claims]}


def test_another_driver_only_warns() -> None:
    verdict = judge_gpu(make_measurement(host={"driver": "590"}))
    assert verdict.verdict is Verdict.PASS
    assert verdict.warnings == ["host differs from the baseline: driver 580 -> 590"]


# INVALID


def test_an_invalid_run_makes_every_claim_invalid() -> None:
    run = make_measurement([99.0] * 5, invalid_reasons=["GPU 0 was throttled", "samples cover 80 %"])
    verdict = judge_gpu(run, targets={"busy_fraction": Target(minimum=0.4)})
    assert verdict.verdict is Verdict.INVALID
    assert {claim.verdict for claim in verdict.claims} == {Verdict.INVALID}
    assert verdict.claims[0].message == "run run-1 is invalid: GPU 0 was throttled; samples cover 80 %"
    assert verdict.blame == []


def test_an_empty_run_is_invalid_not_an_exception() -> None:
    run = replace(make_measurement([10.0, 10.0], invalid_reasons=["the run is failed"]), metrics={}, num_loops=0)
    assert judge_gpu(run).verdict is Verdict.INVALID


def test_nan_is_invalid() -> None:
    sick = MetricValue(value=10.0, series=[10.0, math.nan, 10.0])
    claim = find_claim(judge_gpu(make_measurement(metrics={"loop_time_s": sick})), "loop_time_s")
    assert (claim.verdict, claim.message) == (Verdict.INVALID, "loop_time_s is nan")


def test_idle_without_a_source_is_invalid_on_a_gpu() -> None:
    blind = MetricValue(value=None, reason="this GPU has no GPM")
    claim = find_claim(judge_gpu(make_measurement(metrics={"idle_s_per_step": blind})), "idle_s_per_step")
    assert (claim.verdict, claim.message) == (Verdict.INVALID, "idle_s_per_step is n/a: this GPU has no GPM")


def test_sick_training_fails_a_fast_cell() -> None:
    run = make_measurement([8.0] * 5, metrics={"rollout_actor_correlation": MetricValue(value=0.2)})
    verdict = judge_gpu(run)
    assert verdict.verdict is Verdict.REGRESSED
    assert find_claim(verdict, "training_health").verdict is Verdict.REGRESSED


# Ratios on CPU


def test_a_run_at_its_ratio_passes() -> None:
    verdict = judge_cpu(
        make_measurement(hardware="cpu", metrics={"memory_used_gib": series("memory_used_gib", [50.0])})
    )
    claim = find_claim(verdict, "loop_time_s")
    assert verdict.verdict is Verdict.PASS
    assert claim.message == "loop_time_s +0.0 % [+0.0, +0.0], allowed 5.0 %: 0.5 of untuned, baseline 0.5"


def test_a_run_beyond_its_ratio_regresses_and_the_phase_is_named() -> None:
    run = make_measurement([13.0] * 5, hardware="cpu", phases={"gen": 5.0, "ref": 1.0, "update_actor": 7.0})
    claim = find_claim(judge_cpu(run), "loop_time_s")
    assert claim.verdict is Verdict.REGRESSED
    assert (claim.value, claim.reference, claim.change) == (0.65, 0.5, pytest.approx(0.3))
    assert claim.message == (
        "loop_time_s +30.0 % [+30.0, +30.0], allowed 5.0 %: update_actor +3 s (100 % of it); "
        "0.65 of untuned, baseline 0.5"
    )


def test_a_slow_machine_is_no_regression() -> None:
    slow_base = make_measurement([40.0] * 5, hardware="cpu", tier="untuned", run_id="base")
    verdict = judge_cpu(make_measurement([20.0] * 5, hardware="cpu"), references=[slow_base])
    assert find_claim(verdict, "loop_time_s").verdict is Verdict.PASS


def test_the_scatter_of_the_base_counts() -> None:
    noisy = make_measurement([17.0, 20.0, 20.0, 20.0, 24.0], hardware="cpu", tier="untuned", run_id="base")
    claim = find_claim(judge_cpu(make_measurement(hardware="cpu"), references=[noisy]), "loop_time_s")
    assert claim.verdict is Verdict.INCONCLUSIVE
    assert claim.interval == pytest.approx((20 / 24 - 1, 20 / 17 - 1))


def test_a_ratio_without_a_valid_base_run_is_invalid() -> None:
    assert find_claim(judge_cpu(make_measurement(hardware="cpu"), references=[]), "loop_time_s").message == (
        "base cell has no valid run: loop_time_s is judged as a ratio to tier 'untuned'"
    )
    crashed = make_measurement(hardware="cpu", tier="untuned", run_id="base", invalid_reasons=["crashed"])
    verdict = judge_cpu(make_measurement(hardware="cpu"), references=[crashed])
    assert verdict.verdict is Verdict.INVALID
    assert find_claim(verdict, "loop_time_s").message.startswith("base cell has no valid run (crashed): ")
    assert find_claim(verdict, "measurement").verdict is Verdict.PASS


def test_a_base_of_one_loop_is_inconclusive() -> None:
    short = make_measurement([20.0], hardware="cpu", tier="untuned", run_id="base")
    claim = find_claim(judge_cpu(make_measurement(hardware="cpu"), references=[short]), "loop_time_s")
    assert claim.verdict is Verdict.INCONCLUSIVE
    assert claim.message == "loop_time_s needs at least 2 steady loops, the base cell has 1"


def test_a_baseline_of_one_ratio_is_not_taken_as_exact() -> None:
    stored = make_ratio_baseline(0.5, spread=0.04)
    claim = find_claim(judge_cpu(make_measurement([10.9] * 5, hardware="cpu"), baseline=stored), "loop_time_s")
    assert claim.limit == 0.10  # 3 x 8 % capped
    assert claim.interval is not None
    assert claim.interval[0] < 0 < claim.interval[1]


def test_a_ladder_that_changed_needs_a_new_baseline() -> None:
    rebased = replace(TIER, builds_on="fast-poll")
    claim = find_claim(judge_cpu(make_measurement(hardware="cpu"), tier=rebased), "loop_time_s")
    assert claim.verdict is Verdict.NO_BASELINE
    assert "compares with tier 'untuned', 'dynamic-batch' now builds on 'fast-poll'" in claim.message


def test_the_cpu_base_tier_is_never_compared() -> None:
    run = make_measurement([99.0] * 5, hardware="cpu", tier="untuned")
    verdict = judge_cpu(run, tier=BASE_TIER)
    assert [claim.metric for claim in verdict.claims] == ["measurement", "training_health"]
    assert verdict.verdict is Verdict.PASS


# Zero, merging, severity, warnings


def test_a_baseline_of_zero_is_judged_by_an_absolute_tolerance() -> None:
    stored = make_baseline(make_measurement(metrics={"idle_s_per_step": series("idle_s_per_step", [0.0] * 5)}))
    allowed = replace(TIER, tolerances={"idle_s_per_step": Tolerance(absolute=0.5)})
    quiet = make_measurement(metrics={"idle_s_per_step": series("idle_s_per_step", [0.4] * 5)})
    claims = {
        "without": find_claim(judge_gpu(quiet, baseline=stored), "idle_s_per_step"),
        "within": find_claim(judge_gpu(quiet, baseline=stored, tier=allowed), "idle_s_per_step"),
        "beyond": find_claim(judge_gpu(make_measurement(), baseline=stored, tier=allowed), "idle_s_per_step"),
    }
    assert claims["without"].verdict is Verdict.INCONCLUSIVE
    assert "a change from 0 has no percentage" in claims["without"].message
    assert claims["within"].verdict is Verdict.PASS
    assert claims["beyond"].verdict is Verdict.REGRESSED
    assert claims["beyond"].message == "idle_s_per_step 4 GPU-s, baseline 0, allowed 0.5 GPU-s"


def test_a_baseline_that_was_sometimes_zero_has_no_interval() -> None:
    part = series("idle_s_per_step", [0.0, 0.0, 0.1, 0.1, 0.1])
    stored = make_baseline(make_measurement(metrics={"idle_s_per_step": part}))
    claim = find_claim(judge_gpu(make_measurement(), baseline=stored), "idle_s_per_step")
    assert (claim.verdict, claim.interval) == (Verdict.INCONCLUSIVE, None)


def test_a_metric_with_target_and_baseline_has_the_severer_verdict() -> None:
    targets = {"idle_s_per_step": Target(maximum=3.0)}
    claim = find_claim(judge_gpu(make_measurement(), targets=targets), "idle_s_per_step")
    assert claim.verdict is Verdict.REGRESSED
    assert claim.message.startswith("idle_s_per_step needs <= 3 GPU-s, is 4 GPU-s; idle_s_per_step +0.0 %")


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([Verdict.PASS, Verdict.IMPROVED], Verdict.IMPROVED),
        ([Verdict.PASS, Verdict.PASS], Verdict.PASS),
        ([Verdict.IMPROVED, Verdict.INCONCLUSIVE], Verdict.INCONCLUSIVE),
        ([Verdict.INCONCLUSIVE, Verdict.NO_BASELINE], Verdict.NO_BASELINE),
        ([Verdict.NOT_APPLIED, Verdict.REGRESSED, Verdict.IMPROVED], Verdict.REGRESSED),
        ([Verdict.REGRESSED, Verdict.ENV_MISMATCH], Verdict.ENV_MISMATCH),
        ([Verdict.ENV_MISMATCH, Verdict.INVALID], Verdict.INVALID),
    ],
)
def test_a_cell_is_as_severe_as_its_severest_claim(verdicts: list[Verdict], expected: Verdict) -> None:
    assert judge_cell([Claim(metric="m", verdict=verdict, message="") for verdict in verdicts]) is expected


@pytest.mark.parametrize("invalid_reasons", [[], ["crashed"]])
@pytest.mark.parametrize("hardware", ["cpu", "cpu-hf", GPU])
@pytest.mark.parametrize("tier", [BASE_TIER, TIER])
def test_every_name_has_exactly_one_claim(hardware: str, tier: Tier, invalid_reasons: list[str]) -> None:
    targets = {"busy_fraction": Target(minimum=0.4), "loop_time_s": Target(maximum=20.0)}
    run = make_measurement(hardware=hardware, invalid_reasons=invalid_reasons)
    verdict = judge(run, tier=tier, targets=targets, context=JudgeContext())
    device = "gpu" if hardware == GPU else "cpu"
    assert [claim.metric for claim in verdict.claims] == claim_names(device=device, tier=tier, targets=targets)  # type: ignore[arg-type]


def test_warnings_of_the_run_and_its_faults_are_passed_on() -> None:
    verdict = judge_gpu(make_measurement(warnings=["GPU 0 was power-capped"], faults=["gen:+50%"]))
    assert verdict.warnings == ["GPU 0 was power-capped", "faults were injected into this run: gen:+50%"]


def test_several_gpus_without_a_trace_are_told_what_is_not_judged() -> None:
    many = make_measurement(identity={"num_devices": 8})
    (warning,) = judge_gpu(many, baseline=make_baseline(many)).warnings
    assert warning == "multi-GPU wait is not judged: wait_s_per_step is n/a (no source)"


def test_the_verdict_is_the_same_each_time() -> None:
    run = make_measurement([9.0, 10.0, 10.3, 10.6, 12.0])
    assert judge_gpu(run) == judge_gpu(run)


def test_a_phase_of_a_slow_machine_is_judged_within_its_own_loop() -> None:
    # Twice as slow as the base's session in everything: the loop time moves, the phase beside the rest does not.
    slow = make_measurement([20.0] * 5, hardware="cpu")
    assert find_claim(judge_cpu(slow), "phase_to_rest/update_actor").verdict is Verdict.PASS
    # update_actor 4 s beside 6 s -> 6 s beside 6 s: +50 %
    faulty = make_measurement([12.0] * 5, hardware="cpu", phases={"gen": 5.0, "ref": 1.0, "update_actor": 6.0})
    claim = find_claim(judge_cpu(faulty), "phase_to_rest/update_actor")
    assert claim.verdict is Verdict.REGRESSED
    assert claim.change == pytest.approx(0.5)
