"""Claims that need no baseline, each with a case that must fail and one that must pass."""

import math

import pytest

from grpo_perf.types import MetricValue, Target, Verdict
from grpo_perf.verdict.checks import judge_health, judge_measurement, judge_target
from tests.verdict.measurements import make_measurement, series


def test_measurement_says_how_well_it_was_watched() -> None:
    claim = judge_measurement(make_measurement())
    assert claim.verdict is Verdict.PASS
    assert claim.message == "unaccounted 2.1 %, spans match verl within 0.1 %, coverage 100 %"


def test_measurement_prints_what_is_missing() -> None:
    claim = judge_measurement(make_measurement(metrics={"coverage_fraction": None, "unaccounted_fraction": None}))
    assert claim.message == "unaccounted n/a, spans match verl within 0.1 %, coverage n/a"


def test_healthy_training_passes() -> None:
    claim = judge_health(make_measurement(), {})
    assert claim.verdict is Verdict.PASS
    assert claim.message == ("loss -0.1, grad_norm 2, rollout_kl 0.001 <= 0.05, rollout_actor_correlation 0.999 >= 0.9")


@pytest.mark.parametrize(
    ("metric", "value", "message"),
    [
        ("rollout_kl", 0.2, "rollout_kl needs <= 0.05, is 0.2"),
        ("rollout_actor_correlation", 0.5, "rollout_actor_correlation needs >= 0.9, is 0.5"),
        ("grad_norm", math.nan, "grad_norm is nan"),
        ("loss", math.inf, "loss is inf"),
    ],
)
def test_sick_training_regresses(metric: str, value: float, message: str) -> None:
    claim = judge_health(make_measurement(metrics={metric: MetricValue(value=value)}), {})
    assert (claim.verdict, claim.message) == (Verdict.REGRESSED, message)


def test_one_nan_among_the_loops_regresses() -> None:
    sick = MetricValue(value=2.0, series=[2.0, math.nan, 2.0])
    assert judge_health(make_measurement(metrics={"grad_norm": sick}), {}).verdict is Verdict.REGRESSED


def test_targets_override_health_limits() -> None:
    run = make_measurement(metrics={"ppo_kl": series("ppo_kl", [0.3])})
    tight = judge_health(run, {"rollout_kl": Target(maximum=1e-4), "ppo_kl": Target(maximum=0.1)})
    assert tight.verdict is Verdict.REGRESSED
    assert tight.message == "rollout_kl needs <= 0.0001, is 0.001, ppo_kl needs <= 0.1, is 0.3"
    loose = judge_health(
        make_measurement(metrics={"rollout_kl": MetricValue(value=0.2)}), {"rollout_kl": Target(maximum=0.5)}
    )
    assert loose.verdict is Verdict.PASS


def test_missing_health_is_named_not_judged() -> None:
    absent = MetricValue(value=None, reason="step 2 has no rollout_corr/kl")
    claim = judge_health(make_measurement(metrics={"rollout_kl": absent, "loss": None}), {})
    assert claim.verdict is Verdict.PASS
    assert "loss n/a, " in claim.message
    assert "rollout_kl n/a (step 2 has no rollout_corr/kl)" in claim.message


def test_target_that_is_missed() -> None:
    run = make_measurement(metrics={"busy_fraction": MetricValue(value=0.312)})
    claim = judge_target("busy_fraction", Target(minimum=0.45), [run])
    assert claim.verdict is Verdict.REGRESSED
    assert claim.message == "busy_fraction needs >= 45.0 %, is 31.2 %"
    assert (claim.value, claim.reference, claim.limit) == (0.312, 0.45, 0.45)
    assert claim.next_command == "grpo-perf judge runs/run-1"


def test_target_that_is_met() -> None:
    claim = judge_target("busy_fraction", Target(minimum=0.45, maximum=0.9), [make_measurement()])
    assert (claim.verdict, claim.message) == (Verdict.PASS, "busy_fraction 60.0 %, needs >= 45.0 % and <= 90.0 %")


def test_maximum_that_is_broken() -> None:
    claim = judge_target("idle_fraction", Target(maximum=0.3), [make_measurement()])
    assert (claim.verdict, claim.message) == (Verdict.REGRESSED, "idle_fraction needs <= 30.0 %, is 40.0 %")


def test_target_on_the_limit_is_met() -> None:
    assert judge_target("idle_fraction", Target(maximum=0.4), [make_measurement()]).verdict is Verdict.PASS


def test_target_without_source_is_invalid() -> None:
    run = make_measurement(metrics={"busy_fraction": MetricValue(value=None, reason="this GPU has no GPM")})
    claim = judge_target("busy_fraction", Target(minimum=0.45), [run])
    assert (claim.verdict, claim.message) == (Verdict.INVALID, "no source: busy_fraction is n/a: this GPU has no GPM")


def test_target_of_nan_is_invalid() -> None:
    run = make_measurement(metrics={"busy_fraction": MetricValue(value=math.nan)})
    assert judge_target("busy_fraction", Target(minimum=0.45), [run]).verdict is Verdict.INVALID


def test_target_is_judged_on_the_median_of_runs() -> None:
    values = (0.3, 0.5, 0.6)
    runs = [make_measurement(metrics={"busy_fraction": MetricValue(value=value)}) for value in values]
    assert judge_target("busy_fraction", Target(minimum=0.45), runs).value == 0.5
