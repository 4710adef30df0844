"""What is allowed, and what an interval means."""

import pytest

from grpo_perf.types import BaselineMetric, Tier, Tolerance, Verdict
from grpo_perf.verdict.limits import decide, find_limit, find_relative_spread, find_tolerance
from grpo_perf.verdict.stats import Change


@pytest.mark.parametrize(
    ("low", "point", "high", "verdict"),
    [
        (0.06, 0.08, 0.10, Verdict.REGRESSED),  # wholly beyond
        (0.03, 0.07, 0.11, Verdict.REGRESSED),  # point beyond, half the limit excluded
        (0.02, 0.07, 0.12, Verdict.INCONCLUSIVE),  # point beyond, half the limit not excluded
        (0.03, 0.04, 0.06, Verdict.INCONCLUSIVE),  # point within, end beyond
        (-0.20, 0.00, 0.20, Verdict.INCONCLUSIVE),  # nothing can be said
        (-0.02, 0.01, 0.05, Verdict.PASS),  # up to the limit
        (-0.12, -0.06, -0.04, Verdict.PASS),  # better, but not surely beyond
        (-0.09, -0.08, -0.06, Verdict.IMPROVED),
        (0.0, 0.0, 0.0, Verdict.PASS),
    ],
)
def test_decide(low: float, point: float, high: float, verdict: Verdict) -> None:
    assert decide(Change(point=point, low=low, high=high), 0.05) is verdict


def make_stored(*runs: list[float], spread: float = 0.0, median: float = 10.0) -> BaselineMetric:
    return BaselineMetric(median=median, spread=spread, samples=list(runs))


def test_relative_tolerance_rules_a_quiet_baseline() -> None:
    assert find_limit(make_stored([10.0] * 3), Tolerance(relative=0.05, floor_cap=0.1), 10.0) == (0.05, "")


def test_absolute_tolerance_counts_in_the_unit_of_the_metric() -> None:
    tolerance = Tolerance(relative=0.05, absolute=0.8, floor_cap=0.1)
    assert find_limit(make_stored([10.0] * 3), tolerance, 10.0) == (pytest.approx(0.08), " (absolute tolerance)")
    assert find_limit(make_stored([10.0] * 3), tolerance, 100.0) == (0.05, "")


def test_noise_floor_is_three_spreads_of_the_runs() -> None:
    # medians 9.8 10 10.2: MAD 0.2, spread 0.29652, 3 of them over 10 = 8.9 %
    stored = make_stored([9.8, 9.8], [10.0, 10.0], [10.2, 10.2])
    limit, source = find_limit(stored, Tolerance(relative=0.05, floor_cap=0.1), 10.0)
    assert (limit, source) == (pytest.approx(0.088956), " (noise floor)")


def test_noise_floor_is_capped() -> None:
    stored = make_stored([8.0], [10.0], [12.0])
    assert find_limit(stored, Tolerance(relative=0.05, floor_cap=0.1), 10.0) == (0.1, " (noise floor)")


def test_one_run_is_judged_by_its_loops() -> None:
    assert find_relative_spread(make_stored([9.8, 10.0, 10.2])) == pytest.approx(0.029652)


def test_one_outlier_in_the_baseline_does_not_widen_the_gate() -> None:
    assert find_relative_spread(make_stored([9.8, 10.0, 10.0, 10.2, 1000.0])) == pytest.approx(0.029652)


def test_one_ratio_is_judged_by_its_stored_spread() -> None:
    assert find_relative_spread(make_stored([0.5], spread=0.02, median=0.5)) == pytest.approx(0.04)


def test_spread_of_a_zero_baseline_is_zero() -> None:
    assert find_relative_spread(make_stored([0.0, 0.0], median=0.0)) == 0.0


def test_defaults() -> None:
    tier = Tier(name="t", description="")
    assert find_tolerance(tier, "loop_time_s") == Tolerance(relative=0.05, absolute=None, floor_cap=0.1)


def test_own_tolerance_wins_over_family_and_loop_time() -> None:
    tolerances = {
        "loop_time_s": Tolerance(relative=0.2, absolute=1.0),
        "phase_s": Tolerance(relative=0.3, absolute=0.5),
        "phase_s/gen": Tolerance(relative=0.4, floor_cap=0.02),
    }
    tier = Tier(name="t", description="", tolerances=tolerances)
    assert find_tolerance(tier, "phase_s/gen") == Tolerance(relative=0.4, absolute=None, floor_cap=0.02)
    assert find_tolerance(tier, "phase_s/ref") == Tolerance(relative=0.3, absolute=0.5, floor_cap=0.1)
    # Seconds of a loop are no seconds of an epoch: only the relative tolerance follows.
    assert find_tolerance(tier, "epoch_time_s") == Tolerance(relative=0.2, absolute=None, floor_cap=0.1)
    assert find_tolerance(tier, "effective_tokens_per_hour").relative == 0.2
    assert find_tolerance(tier, "memory_used_gib").relative == 0.05
