"""Statistics against numbers worked by hand."""

import pytest

from grpo_perf.verdict.stats import (
    clip_outliers,
    compare_ratios,
    compare_runs,
    find_outliers,
    robust_spread,
    spread_of_ratio,
    summarize_runs,
)


def test_robust_spread_is_scaled_mad() -> None:
    # median 3, deviations 2 1 0 1 97 -> MAD 1
    assert robust_spread([1, 2, 3, 4, 100]) == pytest.approx(1.4826)


def test_robust_spread_of_one_value_is_zero() -> None:
    assert robust_spread([7.0]) == 0.0


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [("median", 2.0), ("max", 4.0), ("min", 1.0), ("mean", 7 / 3), ("none", 2.0)],
)
def test_summarize_one_run(aggregation: str, expected: float) -> None:
    assert summarize_runs([[1.0, 2.0, 4.0]], aggregation) == pytest.approx(expected)  # type: ignore[arg-type]


def test_summarize_takes_the_median_of_runs_not_of_loops() -> None:
    # runs' medians 10, 20, 12; all loops together would give 10
    assert summarize_runs([[10.0] * 9, [20.0], [12.0]], "median") == 12.0


def test_zero_variance_gives_an_interval_of_no_width() -> None:
    change = compare_runs([[13.0] * 5], [[10.0] * 5], "median")
    assert change is not None
    assert (change.point, change.low, change.high) == pytest.approx((0.3, 0.3, 0.3))
    assert change.half_width == pytest.approx(0.0)


def test_interval_of_one_run_reaches_from_extreme_to_extreme() -> None:
    # Five loops: the median of a redraw is the smallest loop in 5.8 % of the draws, more than half a percent.
    change = compare_runs([[9.0, 10.0, 10.0, 10.0, 12.0]], [[10.0] * 5], "median")
    assert change is not None
    assert change.point == 0.0
    assert (change.low, change.high) == pytest.approx((-0.1, 0.2))


def test_same_input_gives_the_same_interval() -> None:
    first = compare_runs([[9.1, 10.2, 10.4]], [[10.0, 9.7, 10.1]], "median")
    assert first == compare_runs([[9.1, 10.2, 10.4]], [[10.0, 9.7, 10.1]], "median")


def test_runs_are_drawn_before_loops() -> None:
    # Two runs of ten identical loops: loops thrown together would leave hardly any interval around 11.
    change = compare_runs([[10.0] * 10, [12.0] * 10], [[10.0] * 5], "median")
    assert change is not None
    assert (change.point, change.low, change.high) == pytest.approx((0.1, 0.0, 0.2))


def test_more_loops_narrow_the_interval() -> None:
    loops = [9.0, 9.5, 10.0, 10.5, 11.0]
    few, many = compare_runs([loops], [[10.0]], "median"), compare_runs([loops * 10], [[10.0]], "median")
    assert few is not None
    assert many is not None
    assert many.half_width < 0.6 * few.half_width


def test_baseline_scatter_counts_too() -> None:
    change = compare_runs([[10.0] * 5], [[8.0, 10.0, 10.0, 10.0, 12.5]], "median")
    assert change is not None
    assert (change.low, change.high) == pytest.approx((10 / 12.5 - 1, 10 / 8 - 1))


def test_baseline_of_zero_has_no_change() -> None:
    assert compare_runs([[1.0, 1.0]], [[0.0, 0.0]], "median") is None


def test_reversed_turns_the_interval_around() -> None:
    change = compare_runs([[9.0, 10.0, 10.0, 10.0, 12.0]], [[10.0] * 5], "median")
    assert change is not None
    assert (change.reversed().low, change.reversed().high) == pytest.approx((-0.2, 0.1))


def test_ratio_divides_by_base_and_baseline() -> None:
    # 6 / 10 is 0.6; the baseline says 0.5: 20 % worse.
    change = compare_ratios([[6.0] * 3], [[10.0] * 3], [[0.5]], 0.0, "median")
    assert change is not None
    assert (change.point, change.low, change.high) == pytest.approx((0.2, 0.2, 0.2))


def test_ratio_of_one_run_is_not_taken_as_exact() -> None:
    exact = compare_ratios([[6.0] * 3], [[10.0] * 3], [[0.5]], 0.0, "median")
    loose = compare_ratios([[6.0] * 3], [[10.0] * 3], [[0.5]], 0.05, "median")
    assert exact is not None
    assert loose is not None
    # A relative deviation of 10 %, 2.58 of them on each side of 1.2: roughly 1.2 x exp(-+ 0.258) - 1
    assert loose.point == exact.point
    assert (loose.low, loose.high) == pytest.approx((-0.073, 0.553), abs=0.05)


def test_ratio_draws_the_baselines_runs() -> None:
    change = compare_ratios([[6.0] * 3], [[10.0] * 3], [[0.5], [0.6], [0.75]], 9.9, "median")
    assert change is not None
    assert (change.point, change.low, change.high) == pytest.approx((0.0, 0.6 / 0.75 - 1, 0.6 / 0.5 - 1))


def test_base_of_zero_has_no_ratio() -> None:
    assert compare_ratios([[6.0] * 3], [[0.0] * 3], [[0.5]], 0.0, "median") is None


def test_spread_of_ratio() -> None:
    assert spread_of_ratio([[6.0] * 3], [[10.0] * 3], "median") == 0.0
    assert spread_of_ratio([[5.0, 6.0, 7.0]], [[10.0] * 3], "median") > 0.0


def test_one_outlier_is_found_and_clipped() -> None:
    loops = [10.0, 10.1, 9.9, 10.0, 1000.0]
    assert find_outliers(loops) == [4]
    assert clip_outliers(loops) == [10.0, 10.1, 9.9, 10.0, 10.1]
    assert clip_outliers([10.0, 10.1, 9.9, 10.0, 0.1]) == [10.0, 10.1, 9.9, 10.0, 9.9]


def test_one_outlier_does_not_stretch_the_interval() -> None:
    change = compare_runs([[10.0, 10.1, 9.9, 10.0, 1000.0]], [[10.0] * 5], "median")
    assert change is not None
    assert change.point == pytest.approx(0.0)
    assert (change.low, change.high) == pytest.approx((-0.01, 0.01))


def test_two_modes_are_no_outliers() -> None:
    # colocate_async alternates between 10 and 24 s (FINDINGS section 2)
    loops = [10.0, 24.0, 10.0, 24.0, 10.0]
    assert find_outliers(loops) == []
    assert clip_outliers(loops) == loops


def test_near_values_are_no_outliers_without_scatter() -> None:
    assert find_outliers([10.0, 10.0, 10.0, 10.0, 12.0]) == []


def test_peaks_are_never_clipped() -> None:
    change = compare_runs([[50.0] * 4 + [90.0]], [[50.0] * 5], "max")
    assert change is not None
    assert (change.point, change.high) == pytest.approx((0.8, 0.8))
