"""Which loops count: warm-up, recorded steps, and the join of spans with verl's lines."""

from dataclasses import replace

from grpo_perf.record import RunRecord, Step
from grpo_perf.timeline.window import find_step_spans, find_window
from tests.builders import make_record, make_span, make_workload


def test_n_steady_steps_give_n_minus_one_loops() -> None:
    window = find_window(make_record(loops=4))
    assert (window.num_steps, window.num_loops) == (5, 4)
    assert window.steady_numbers == (2, 3, 4, 5, 6)
    assert window.length_s == 16.0


def test_warm_up_comes_from_the_workload() -> None:
    workload = make_workload(num_warmup_steps=3, num_steady_steps=3)
    window = find_window(make_record(loops=2, workload=workload))
    assert window.steady_numbers == (4, 5, 6)


def test_a_step_that_verl_did_not_log_is_not_recorded() -> None:
    record = make_record(loops=4)
    window = find_window(replace(record, steps=record.steps[:-1]))
    assert window.steady_numbers == (2, 3, 4, 5)


def test_a_logged_step_without_its_span_is_not_recorded() -> None:
    """Killed before the probe wrote its last spans."""
    record = make_record(loops=4)
    spans = [span for span in record.spans if span.t0_ns < find_window(record).edges_ns[-1]]
    assert find_window(replace(record, spans=spans)).steady_numbers == (2, 3, 4, 5)


def test_an_unreadable_line_in_the_middle_keeps_the_loops() -> None:
    record = make_record(loops=4)
    window = find_window(replace(record, steps=[step for step in record.steps if step.step != 3]))
    assert window.num_loops == 4
    assert [step.step if step else None for step in window.steady_steps] == [2, None, 4, 5, 6]


def test_an_unreadable_first_line_is_noticed_by_the_times() -> None:
    """By order alone, step 2 would be taken for step 1; gen differs in each step, so verl's own times tell."""
    record = make_record(loops=4, phases={"gen": [1.0, 2.0, 1.5, 3.0, 2.5, 1.25]})
    window = find_window(replace(record, steps=record.steps[1:]))
    assert window.numbers == (1, 2, 3, 4, 5, 6)
    assert window.steady_numbers == (2, 3, 4, 5, 6)


def test_a_resumed_run_keeps_its_numbers() -> None:
    record = make_record(loops=2)
    steps = [
        Step(step=step.step + 10, data={**step.data, "training/global_step": step.step + 10}) for step in record.steps
    ]
    assert find_window(replace(record, steps=steps)).steady_numbers == (12, 13, 14)


def test_a_line_of_validation_alone_is_no_step() -> None:
    """verl logs the validation before training as step 0."""
    record = make_record(loops=2)
    before = Step(step=0, data={"val-core/reward/mean": 0.5})
    assert find_window(replace(record, steps=[before, *record.steps])).steady_numbers == (2, 3, 4)


def test_a_step_inside_a_step_does_not_start_a_loop() -> None:
    spans = [
        make_span("step", 0, 4),
        make_span("step", 1, 2),
        make_span("step", 5, 9),
        make_span("step", 6, 7, lane="rank0"),
    ]
    assert [span.duration_s for span in find_step_spans(spans)] == [4.0, 4.0]


def count(record: RunRecord) -> tuple[int, int, float]:
    window = find_window(record)
    return window.num_steps, window.num_loops, window.length_s


def test_runs_that_never_became_steady() -> None:
    record = make_record(loops=0)
    assert count(record) == (1, 0, 0.0)
    assert count(replace(record, steps=record.steps[:1])) == (0, 0, 0.0)
    assert count(replace(record, steps=[])) == (0, 0, 0.0)
    assert count(replace(record, spans=[])) == (0, 0, 0.0)
