"""Samples against known intervals, worked out by hand."""

import numpy as np
import pytest

from grpo_perf.timeline import Sampled, make_intervals
from grpo_perf.timeline.truth import compare, measure_overlap

NS = 1_000_000_000


def sample(*values: float) -> Sampled:
    """Rows of one second each, from 0 s."""
    starts = np.arange(len(values), dtype=np.int64) * NS
    return Sampled(starts_ns=starts, ends_ns=starts + NS, values=np.array(values))


def test_agreement_over_whole_rows() -> None:
    known = make_intervals([0, int(1.5 * NS)], [int(0.5 * NS), 3 * NS])  # 0.5, 0.5, 1.0 of the rows
    found = compare(sample(0.5, 0.6, 0.8), known, starts_ns=np.array([0]), ends_ns=np.array([3 * NS]))
    assert found is not None
    assert (found.num_rows, found.seconds) == (3, 3.0)
    assert found.known == pytest.approx(2 / 3)
    assert found.error == pytest.approx((0.1 - 0.2) / 3)
    assert found.row_error == pytest.approx(np.sqrt((0.1**2 + 0.2**2) / 3))


def test_a_row_over_two_touching_windows_is_left_out() -> None:
    edges = np.array([0, int(1.5 * NS), 3 * NS])
    found = compare(sample(1.0, 0.3, 1.0), make_intervals([0], [3 * NS]), starts_ns=edges[:-1], ends_ns=edges[1:])
    assert found is not None
    assert (found.num_rows, found.measured) == (2, 1.0)


def test_no_row_inside_is_none() -> None:
    window = {"starts_ns": np.array([int(0.2 * NS)]), "ends_ns": np.array([int(0.9 * NS)])}
    assert compare(sample(1.0), make_intervals([0], [NS]), **window) is None


def test_overlap_of_windows_in_any_order() -> None:
    overlap = measure_overlap(make_intervals([10, 30], [20, 40]), np.array([25, 0]), np.array([35, 100]))
    assert overlap.tolist() == [5.0, 20.0]
