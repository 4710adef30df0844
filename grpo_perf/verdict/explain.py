"""Which phases explain a change, by their own time.

    baseline   gen 5.0 │ ref 1.0 │ update_actor 4.0 │ gap 0.1      loop 10.1
    now        gen 5.1 │ ref 1.0 │ update_actor 5.4 │ gap 0.1      loop 11.6, +1.5

    update_actor +1.4 s (93 % of the change)
    gen +0.1 s (7 % of the change)

Phases, `unaccounted` and `gap` fill the loop, so what is listed adds up to the change but for medians of loops.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpo_perf.metrics import get_metric, phase_of
from grpo_perf.types import Baseline, Measurement
from grpo_perf.units import format_number, format_percent
from grpo_perf.verdict.samples import collect_runs, select_valid
from grpo_perf.verdict.stats import summarize_runs

_FAMILY_OF = {
    "loop_time_s": "phase_s",
    "epoch_time_s": "phase_s",
    "effective_tokens_per_hour": "phase_s",
    "idle_s_per_step": "idle_s_per_step",
}
_MIN_SHARE = 0.05
_MIN_MOVE = 0.01
"""Of the whole: below it no phase has moved, and naming one would be noise."""
_NAMED_SHARE = 0.25
_MAX_PHASES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChange:
    """What one phase adds to a change."""

    phase: str
    amount: float
    """In `unit` per loop."""
    unit: str
    share: float | None
    """Of the whole change; None where phases offset each other, so that a share would say nothing."""

    def show(self, whole: str) -> str:
        """`update_actor +1.4 s (92 % of the change)`."""
        text = f"{self.phase} {'+' if self.amount >= 0 else '-'}{format_number(abs(self.amount), self.unit)}"
        return text if self.share is None else f"{text} ({format_percent(self.share, digits=0)} of {whole})"


def blame(candidates: Sequence[Measurement], baseline: Baseline, references: Sequence[Measurement]) -> list[str]:
    """Phases that explain the change of the loop time, the largest share first; empty where none can be named."""
    return [change.show("the change") for change in explain("loop_time_s", candidates, baseline, references)]


def name_culprits(changes: Sequence[PhaseChange]) -> str:
    """The phase to blame, and a second one where it has a quarter of the change: for one line of a message."""
    worth = [change for change in changes[1:2] if (change.share or 0) >= _NAMED_SHARE]
    return ", ".join(change.show("it") for change in [*changes[:1], *worth])


def explain(
    metric: str, candidates: Sequence[Measurement], baseline: Baseline, references: Sequence[Measurement]
) -> list[PhaseChange]:
    """Phases that explain the change of a metric of the whole loop, the largest share of it first.

    Empty for metrics that no phases add up to (memory), and where the baseline has no phases.
    """
    family = _FAMILY_OF.get(metric)
    if family is None:
        return []
    whole = "loop_time_s" if family == "phase_s" else metric
    base = _measure(family, whole, select_valid(references)) if baseline.kind == "ratio" else {}
    before = _expect(family, whole, baseline, base)
    after = _measure(family, whole, candidates)
    # Without a baseline ratio nobody knows what a phase that the base cell has too should have taken.
    known = {name: value for name, value in after.items() if name in before or name not in base}
    if whole not in before or whole not in after or len(before) == 1:
        return []
    return _rank(before, known, whole)


def _measure(family: str, whole: str, runs: Sequence[Measurement]) -> dict[str, float]:
    """Values of the whole and of each phase, by metric name."""
    names = {name for run in runs for name in run.metrics if name == whole or name.startswith(f"{family}/")}
    collected = {name: collect_runs(runs, name) for name in names}
    return {name: summarize_runs(rows, get_metric(name).aggregation) for name, rows in collected.items() if rows}


def _expect(family: str, whole: str, baseline: Baseline, base: Mapping[str, float]) -> dict[str, float]:
    """What the baseline says that the candidate's values should be; for ratios by the base cell's values."""
    medians = {
        name: metric.median
        for name, metric in baseline.metrics.items()
        if name == whole or name.startswith(f"{family}/")
    }
    if baseline.kind == "absolute":
        return medians
    return {name: base[name] * ratio for name, ratio in medians.items() if name in base}


def _rank(before: Mapping[str, float], after: Mapping[str, float], whole: str) -> list[PhaseChange]:
    total = after[whole] - before[whole]
    # A phase that only one side has took no time on the other one.
    amounts = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in {*before, *after} - {whole}}
    largest = max((abs(amount) for amount in amounts.values()), default=0.0)
    if largest < _MIN_MOVE * before[whole]:
        return []
    has_share = abs(total) >= largest / 2
    sign = -1 if has_share and total < 0 else 1
    ranked = sorted(amounts.items(), key=lambda item: (-sign * item[1], item[0]))
    return [
        PhaseChange(
            phase=phase_of(name) or name,
            amount=amount,
            unit=get_metric(name).unit,
            share=amount / total if has_share else None,
        )
        for name, amount in ranked
        if abs(amount) >= _MIN_SHARE * max(abs(total), largest)
    ][:_MAX_PHASES]
