"""The algebra against a brute-force oracle that paints every nanosecond of a short line."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_perf.timeline.intervals import (
    Intervals,
    Sampled,
    cumulate,
    find_peaks,
    integrate,
    intersect,
    make_intervals,
    make_sampled,
    overlap_ns,
    subtract,
    union,
)

LINE_NS = 40
Pairs = Sequence[tuple[int, int]]

pairs = st.lists(st.tuples(st.integers(0, LINE_NS), st.integers(0, LINE_NS)), max_size=8)
values = st.sampled_from([0.0, 0.25, 1.0, float("nan"), float("inf")])
rows = st.lists(st.tuples(st.integers(0, LINE_NS), st.integers(0, 9), values), max_size=8)
edges = st.lists(st.integers(-5, LINE_NS + 5), min_size=2, max_size=6).map(sorted)


def build(raw: Pairs) -> Intervals:
    return make_intervals([start for start, _ in raw], [end for _, end in raw])


def paint(raw: Pairs) -> set[int]:
    return {ns for start, end in raw for ns in range(start, end)}


def paint_intervals(found: Intervals) -> set[int]:
    return paint(list(zip(found.starts_ns.tolist(), found.ends_ns.tolist(), strict=True)))


def assert_canonical(found: Intervals) -> None:
    """Sorted, none empty, none touching the next."""
    assert np.all(found.ends_ns > found.starts_ns)
    assert np.all(found.starts_ns[1:] > found.ends_ns[:-1])


@given(pairs)
def test_make_intervals_merges_and_sorts(raw: Pairs) -> None:
    found = build(raw)
    assert_canonical(found)
    assert paint_intervals(found) == paint(raw)
    assert found.total_ns == len(paint(raw))


@pytest.mark.parametrize(
    ("combine", "expect"),
    [(union, set.union), (intersect, set.intersection), (subtract, set.difference)],
)
@given(a=pairs, b=pairs)
def test_algebra_matches_painting(
    combine: Callable[[Intervals, Intervals], Intervals],
    expect: Callable[[set[int], set[int]], set[int]],
    a: Pairs,
    b: Pairs,
) -> None:
    found = combine(build(a), build(b))
    assert_canonical(found)
    assert paint_intervals(found) == expect(paint(a), paint(b))


@given(raw=pairs, windows=edges)
def test_overlap_matches_painting(raw: Pairs, windows: list[int]) -> None:
    painted = paint(raw)
    expected = [len(painted & set(range(low, high))) for low, high in pairwise(windows)]
    assert overlap_ns(build(raw), np.array(windows)).tolist() == expected


def build_rows(raw: Sequence[tuple[int, int, float]]) -> Sampled:
    starts = np.array([start for start, _, _ in raw], dtype=np.int64)
    lengths = np.array([length for _, length, _ in raw], dtype=np.int64)
    return make_sampled(starts, starts + lengths, np.array([value for _, _, value in raw], dtype=np.float64))


def paint_rows(raw: Sequence[tuple[int, int, float]]) -> dict[int, float]:
    """Value by nanosecond: the earlier row keeps the time, a row without a finite value covers nothing."""
    painted: dict[int, float] = {}
    for start, length, value in sorted(raw, key=lambda row: row[0]):
        if np.isfinite(value):
            for ns in range(start, start + length):
                painted.setdefault(ns, value)
    return painted


@given(raw=rows, windows=edges)
def test_integrals_match_painting(raw: list[tuple[int, int, float]], windows: list[int]) -> None:
    painted = paint_rows(raw)
    covered, integral = integrate(build_rows(raw), np.array(windows))
    for index, (low, high) in enumerate(pairwise(windows)):
        inside = [painted[ns] for ns in range(low, high) if ns in painted]
        assert covered[index] == len(inside)
        assert integral[index] == pytest.approx(sum(inside))


@given(raw=rows, windows=edges)
def test_peaks_match_painting(raw: list[tuple[int, int, float]], windows: list[int]) -> None:
    painted = paint_rows(raw)
    peaks = find_peaks(build_rows(raw), np.array(windows))
    for index, (low, high) in enumerate(pairwise(windows)):
        inside = [painted[ns] for ns in range(low, high) if ns in painted]
        if low < high:  # an empty window inside a row sees that row; nobody asks for one
            assert peaks[index] == max(inside) if inside else np.isnan(peaks[index])


def test_null_and_gap_are_uncovered_not_zero() -> None:
    """The picture of the module: 5 rows of time, 3 of them with a value."""
    sampled = make_sampled(
        np.array([0, 10, 30, 40, 50]), np.array([10, 20, 40, 50, 60]), np.array([0.5, 0.5, 1.0, np.nan, 1.0])
    )
    covered, integral = integrate(sampled, np.array([5, 55]))
    assert covered.tolist() == [30]  # 5 + 10 + 10 + 5
    assert integral.tolist() == [22.5]  # 2.5 + 5 + 10 + 5: mean 0.75, where zeros would have made it 0.45


def test_no_rows_cover_nothing() -> None:
    none = np.array([], dtype=np.int64)
    covered, integral = cumulate(make_sampled(none, none, none.astype(float)), np.array([0, 10]))
    assert covered.tolist() == [0, 0]
    assert integral.tolist() == [0.0, 0.0]


def test_times_beyond_float_precision_stay_exact() -> None:
    """A host up for 200 days: 2**53 ns are 104 days, and a float could not tell these two ends apart."""
    start = 200 * 86_400 * 1_000_000_000 + 1
    sampled = make_sampled(np.array([start]), np.array([start + 3]), np.array([1.0]))
    covered, _ = integrate(sampled, np.array([start + 1, start + 2, start + 9]))
    assert covered.tolist() == [1, 1]
