"""Each instant to its innermost span; broken nesting is found."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from grpo_perf.record import Span
from grpo_perf.timeline.lanes import Partition, cut_partition, find_crossings, order_phases
from tests.builders import START_NS, make_record, make_span, to_ns


def at(*seconds: float) -> np.ndarray:
    return np.array([START_NS + to_ns(second) for second in seconds], dtype=np.int64)


def read_seconds(partition: Partition) -> list[dict[str, float]]:
    return [
        {phase: ns / 1e9 for phase, ns in zip(partition.phases, row, strict=True) if ns}
        for row in partition.length_ns_LP.tolist()
    ]


def test_innermost_span_owns_the_time() -> None:
    """The picture of the module, with one loop of 10 s."""
    spans = [
        make_span("step", 0, 8),
        make_span("gen", 0.5, 3),
        make_span("ref", 3.5, 6),
        make_span("offload", 4, 5),
        make_span("update_actor", 6, 8),
        make_span("logging", 8.5, 9),
        make_span("step", 10, 12),
    ]
    assert read_seconds(cut_partition(spans, at(0, 10))) == [
        {"gen": 2.5, "ref": 1.5, "update_actor": 2.0, "logging": 0.5, "offload": 1.0, "unaccounted": 1.0, "gap": 1.5}
    ]


def test_mark_inside_a_mark() -> None:
    """`dataloader` lies inside `on_step_begin`: the outer mark keeps only the rest."""
    spans = [make_span("step", 0, 4), make_span("on_step_begin", 0, 2), make_span("dataloader", 0.5, 1.75)]
    assert read_seconds(cut_partition(spans, at(0, 4))) == [
        {"on_step_begin": 0.75, "dataloader": 1.25, "unaccounted": 2.0}
    ]


def test_back_to_back_spans_leave_nothing_between() -> None:
    spans = [make_span("step", 0, 2), make_span("gen", 0, 1), make_span("ref", 1, 2), make_span("step", 2, 3)]
    assert read_seconds(cut_partition(spans, at(0, 2))) == [{"gen": 1.0, "ref": 1.0}]


def test_a_span_around_all_steps_takes_only_what_is_left() -> None:
    """An unknown outer timer (`fit`) owns the time between steps, under its own name."""
    spans = [make_span("fit", -5, 50), make_span("step", 0, 3), make_span("gen", 0, 3), make_span("step", 4, 7)]
    assert read_seconds(cut_partition(spans, at(0, 4))) == [{"gen": 3.0, "fit": 1.0}]


def test_only_the_loops_are_cut() -> None:
    """Warm-up before and the step that closes the window are left out."""
    record = make_record(loops=2)
    starts = [span.t0_ns for span in record.spans if span.name == "step"]
    partition = cut_partition(record.spans, np.array(starts[1:]))
    expected = {"gen": 1.0, "old_log_prob": 0.5, "ref": 0.5, "adv": 0.25, "update_actor": 1.0, "update_weights": 0.25}
    assert read_seconds(partition) == [expected | {"unaccounted": 0.25, "gap": 0.25}] * 2


def test_no_loop_gives_an_empty_partition() -> None:
    partition = cut_partition([make_span("step", 0, 1)], at(0))
    assert partition.num_loops == 0
    assert partition.length_ns_LP.shape == (0, 0)


def test_order_of_phases() -> None:
    names = {"gap", "zeta", "logging", "unaccounted", "update_actor", "alpha", "gen"}
    assert order_phases(names) == ("gen", "update_actor", "logging", "alpha", "zeta", "unaccounted", "gap")


@st.composite
def nested_spans(draw: st.DrawFn) -> list[Span]:
    """A forest of properly nested spans on a line of 60 ns."""
    spans: list[Span] = []

    def fill(low: int, high: int, depth: int) -> None:
        cuts = sorted(draw(st.lists(st.integers(low, high), max_size=4)))
        for start, end in zip(cuts[::2], cuts[1::2], strict=False):
            name = draw(st.sampled_from(["step", "gen", "ref", "other"]))
            spans.append(Span(name=name, t0_ns=start, t1_ns=end, pid=1, lane="trainer"))
            if depth:
                fill(start, end, depth - 1)

    fill(0, 60, 3)
    return spans


@given(nested_spans(), st.lists(st.integers(0, 60), min_size=2, max_size=4, unique=True).map(sorted))
def test_partition_matches_painting(spans: list[Span], edges: list[int]) -> None:
    """Parts add up to the loop, and each is what painting outer spans first and inner ones over them gives."""
    painted = ["gap"] * 61
    for span in spans:  # parents are drawn before their children
        painted[span.t0_ns : span.t1_ns] = ["unaccounted" if span.name == "step" else span.name] * (
            span.t1_ns - span.t0_ns
        )
    partition = cut_partition(spans, np.array(edges, dtype=np.int64))
    assert partition.length_ns_LP.sum(axis=1).tolist() == np.diff(edges).tolist()
    for loop, (low, high) in enumerate(pairwise(edges)):
        for column, phase in enumerate(partition.phases):
            assert partition.length_ns_LP[loop, column] == painted[low:high].count(phase)


def test_nested_and_touching_spans_do_not_cross() -> None:
    assert find_crossings(make_record().spans) == []


def test_partial_overlap_on_the_trainer_lane_is_found() -> None:
    crossings = find_crossings([make_span("step", 0, 4), make_span("gen", 1, 2.5), make_span("ref", 2, 3)])
    assert [(crossing.outer.name, crossing.inner.name) for crossing in crossings] == [("gen", "ref")]
    assert crossings[0].overlap_s == 0.5


def test_a_crossing_span_is_cut_where_its_parent_ends() -> None:
    """So that loops stay a partition even in a run that is invalid."""
    spans = [make_span("step", 0, 4), make_span("gen", 1, 2.5), make_span("ref", 2, 3)]
    assert read_seconds(cut_partition(spans, at(0, 4))) == [{"gen": 1.0, "ref": 0.5, "unaccounted": 2.5}]


def test_rank_lanes_are_checked_by_thread() -> None:
    rank0 = {"lane": "rank0", "pid": 7}
    crossing = [make_span("train_batch", 0, 2, **rank0), make_span("eval_batch", 1, 3, **rank0)]
    other_thread = [make_span("train_batch", 0, 2, **rank0), make_span("eval_batch", 1, 3, **rank0, tid=9)]
    assert len(find_crossings(crossing)) == 1
    assert find_crossings(other_thread) == []


def test_concurrent_requests_may_overlap() -> None:
    requests = [make_span("generate_sequences", 0, 2, lane="rollout"), make_span("x", 1, 3, lane="rollout")]
    assert find_crossings(requests) == []
