"""Busy and idle by device, loop and phase."""

from pathlib import Path

import numpy as np
import pytest

from grpo_perf.timeline.idle import Attribution, attribute
from grpo_perf.timeline.intervals import integrate, make_sampled
from grpo_perf.timeline.lanes import Partition, cut_partition
from tests.builders import START_NS, make_span, to_ns

DATA = Path(__file__).parent.parent / "data"


def cut() -> Partition:
    """Two loops of 4 s: gen 2 s, ref 1 s, gap 1 s."""
    spans = [
        make_span(name, start + low, start + high)
        for start in (0, 4)
        for name, low, high in (("step", 0, 3), ("gen", 0, 2), ("ref", 2, 3))
    ]
    return cut_partition(spans, START_NS + np.array([0, to_ns(4), to_ns(8)]))


def attribute_rows(*rows: tuple[float, float, float], device: int = 0) -> Attribution:
    starts, ends, values = (np.array(column) for column in zip(*rows, strict=True))
    sampled = make_sampled(START_NS + (starts * 1e9).astype(np.int64), START_NS + (ends * 1e9).astype(np.int64), values)
    return attribute({device: sampled}, cut())


def test_a_row_is_shared_out_by_overlap() -> None:
    """One row across gen and ref: 1.5 s of it in gen, 0.5 s in ref."""
    found = attribute_rows((0.0, 0.5, 1.0), (0.5, 2.5, 0.5), (2.5, 4.0, 0.0), (4.0, 8.0, 1.0))
    assert found.partition.phases == ("gen", "ref", "gap")
    assert found.busy_s_GLP[0].tolist() == [[1.25, 0.25, 0.0], [2.0, 1.0, 1.0]]
    assert found.idle_s_GLP[0].tolist() == [[0.75, 0.75, 1.0], [0.0, 0.0, 0.0]]
    assert found.idle_s_GL[0].tolist() == [2.5, 0.0]
    assert found.busy_fraction_G.tolist() == [5.5 / 8]
    assert found.busy_fraction_GP[0].tolist() == [3.25 / 4, 1.25 / 2, 0.5]


def test_uncovered_time_is_neither_busy_nor_idle() -> None:
    """Half of gen has no row: the covered half is 50 % busy, so gen of 2 s is idle for 1 s, not for 1.5."""
    found = attribute_rows((1.0, 2.0, 0.5), (2.0, 8.0, 1.0))
    assert found.covered_s_GLP[0, 0].tolist() == [1.0, 1.0, 1.0]
    assert found.idle_s_GLP[0, 0].tolist() == [1.0, 0.0, 0.0]


def test_a_phase_without_any_sample_is_nan_and_not_idle() -> None:
    found = attribute_rows((0.0, 2.0, 0.5), (3.0, 8.0, 0.5))
    assert found.idle_s_GLP[0, 0, 0] == 1.0
    assert np.isnan(found.idle_s_GLP[0, 0, 1])


def test_a_phase_that_did_not_happen_is_not_idle() -> None:
    """`ref` in the first loop only: 0 s of it in the second is a true zero."""
    spans = [make_span("step", 0, 2), make_span("ref", 0, 2), make_span("step", 2, 4), make_span("gen", 2, 4)]
    partition = cut_partition(spans, START_NS + np.array([0, to_ns(2), to_ns(4)]))
    sampled = make_sampled(np.array([START_NS]), np.array([START_NS + to_ns(4)]), np.array([0.5]))
    assert attribute({0: sampled}, partition).idle_s_GLP[0].tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_phases_add_up_to_the_loop_when_all_is_covered() -> None:
    generator = np.random.default_rng(0)
    edges = np.linspace(0, 8, 81)
    found = attribute_rows(*zip(edges[:-1], edges[1:], generator.random(80), strict=True))
    assert found.idle_s_GLP.sum(axis=2) == pytest.approx(found.idle_s_GL, abs=1e-9)


def test_recorded_gpm_of_an_h200() -> None:
    """FINDINGS 2: the tuned run of one H200 is busy 46 % of its four steady loops (line to line of verl's log)."""
    starts, ends, busy = np.loadtxt(DATA / "h200_tuned_busy.csv", delimiter=",", skiprows=1, unpack=True)
    sampled = make_sampled(starts.astype(np.int64), ends.astype(np.int64), busy)
    lines_ns = np.array([0, 17818009377, 35436490536, 53256112576, 70875114441])
    covered, integral = integrate(sampled, lines_ns)
    assert covered.tolist() == np.diff(lines_ns).tolist()
    assert integral.sum() / covered.sum() == pytest.approx(0.46, abs=0.005)
