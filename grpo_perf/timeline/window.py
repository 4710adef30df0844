"""The steady window of a run: which loops count.

    step span        1        2        3        4        5
                ├──────┤ ├──────┤ ├──────┤ ├──────┤ ├──────┤
    steps.jsonl    ok       ok       ok       ok      (killed before verl logged it)
                 warm-up └────────────────┘         5 is not recorded
                         steady: steps 2, 3, 4 = N steps, N - 1 loops

A loop is start of step k to start of step k + 1, so that validation, logging and dataloader between two steps count.
The last recorded step only closes the last loop: nobody knows when the next one would have begun.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from grpo_perf.record import RunRecord, Span, Step
from grpo_perf.timeline.intervals import Times
from grpo_perf.timeline.lanes import STEP, TRAINER, nest
from grpo_perf.units import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """Every step of the run, and which of them are steady."""

    spans: tuple[Span, ...]
    """The trainer's outermost `step` spans in order."""
    numbers: tuple[int, ...]
    """verl's step number of each span; empty when verl logged no step."""
    steps: tuple[Step | None, ...]
    """The line verl logged for each span; None where there is none."""
    first: int
    """Index of the first steady step."""
    num_steps: int
    """Steady recorded steps."""

    @property
    def num_loops(self) -> int:
        """Steady loops: one less than steady steps."""
        return max(0, self.num_steps - 1)

    @property
    def edges_ns(self) -> Times:
        """Starts of the steady steps: num_loops + 1 times."""
        steady = self.spans[self.first : self.first + self.num_steps]
        return np.array([span.t0_ns for span in steady], dtype=np.int64)

    @property
    def length_s(self) -> float:
        """Length of the steady window in seconds; 0 without a loop."""
        edges = self.edges_ns
        return float(edges[-1] - edges[0]) / NS_PER_S if len(edges) else 0.0

    @property
    def steady_numbers(self) -> tuple[int, ...]:
        """verl's numbers of the steady steps."""
        return self.numbers[self.first : self.first + self.num_steps]

    @property
    def steady_steps(self) -> tuple[Step | None, ...]:
        """verl's lines of the steady steps, num_loops + 1 of them; step i starts loop i."""
        return self.steps[self.first : self.first + self.num_steps]


def find_window(record: RunRecord) -> Window:
    """The steady window: after the workload's warm-up, up to the last step that verl also logged."""
    spans = find_step_spans(record.spans)
    logged = collect_steps(record.steps)
    numbers = _number_spans(spans, logged)
    steps = tuple(logged.get(number) for number in numbers)
    num_recorded = max((index + 1 for index, step in enumerate(steps) if step), default=0)
    first = record.meta.workload.num_warmup_steps
    return Window(
        spans=tuple(spans),
        numbers=numbers,
        steps=steps,
        first=first,
        num_steps=max(0, num_recorded - first),
    )


def find_step_spans(spans: Iterable[Span]) -> list[Span]:
    """The trainer's `step` spans that lie in no other `step` span, in order."""
    found: list[Span] = []
    for span in nest(span for span in spans if span.lane == TRAINER and span.name == STEP):
        if not found or span.t0_ns >= found[-1].t1_ns:
            found.append(span)
    return found


def collect_steps(steps: Iterable[Step]) -> dict[int, Step]:
    """Training steps by number; lines of one number are merged, lines of validation alone are left out."""
    data: dict[int, dict[str, float | int | str | bool | None]] = {}
    for step in steps:
        if "training/global_step" in step.data or "timing_s/step" in step.data:
            global_step = step.number("training/global_step")
            number = step.step if global_step is None else int(global_step)
            data[number] = {**data.get(number, {}), **step.data}
    return {number: Step(step=number, data=data[number]) for number in sorted(data)}


def _number_spans(spans: list[Span], logged: dict[int, Step]) -> tuple[int, ...]:
    """verl's number of each span: consecutive, placed where verl's own step times fit best.

    Spans and lines usually start together (at 1, or after the step that training resumed from). Where lines are
    missing, for instance because a first line cannot be read, several placings are possible and the times decide.
    """
    if not spans or not logged:
        return ()
    first, last = min(logged), max(logged)
    num_spare = max(0, len(spans) - (last - first + 1))
    placings = [range(first - shift, first - shift + len(spans)) for shift in range(num_spare + 1)]
    best = min(range(len(placings)), key=lambda shift: _misfit_s(spans, placings[shift], logged))
    return tuple(placings[best])


def _misfit_s(spans: list[Span], numbers: range, logged: dict[int, Step]) -> float:
    """Sum of |span - verl's timing_s/step| in seconds; 0 where verl gives no time, so that the first placing wins."""
    misfit = 0.0
    for span, number in zip(spans, numbers, strict=True):
        time_s = logged[number].number("timing_s/step") if number in logged else None
        misfit += abs(span.duration_s - time_s) if time_s is not None else 0.0
    return misfit
