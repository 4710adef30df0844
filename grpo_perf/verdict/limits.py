"""How much a metric may change, and what an interval of its change means.

worse ──►         0            limit / 2       limit
──────────────────┼────────────────┼─────────────┼──────────────►
[···x···]         │                │             │               IMPROVED   wholly beyond -limit
           [······x·······]        │             │               PASS       wholly within the worse side
                  │             [··│·······x·····│··]            INCONCLUSIVE  spans the limit
                  │                │     [·······│·x········]    REGRESSED  point beyond, half the limit excluded
                  │                │             │   [···x···]   REGRESSED  wholly beyond

limit = max(the tier's relative tolerance, its absolute one / expected value,
            min(NOISE_SPREADS x the baseline's relative spread, floor cap))
"""

from grpo_perf.types import BaselineMetric, Tier, Tolerance, Verdict
from grpo_perf.verdict.stats import Change, robust_spread, summarize_runs

NOISE_SPREADS = 3.0
"""The difference of two runs scatters by sqrt(2) x the spread of runs; 3 spreads are about 2.1 of its deviations."""
DEFAULT_RELATIVE = 0.05
"""Source: TensorRT-LLM gates at 5 % after a merge (FINDINGS section 6)."""
DEFAULT_FLOOR_CAP = 0.10

# Computed from the loop time and nothing else that changes: without a tolerance of their own they have its one.
_FOLLOWS = {"epoch_time_s": "loop_time_s", "effective_tokens_per_hour": "loop_time_s", "phase_s": "loop_time_s"}


def decide(worse: Change, limit: float) -> Verdict:
    """The verdict on a change whose positive side is the worse one, as drawn above."""
    if worse.low > limit or (worse.point > limit and worse.low > limit / 2):
        return Verdict.REGRESSED
    if worse.high < -limit:
        return Verdict.IMPROVED
    return Verdict.PASS if worse.high <= limit else Verdict.INCONCLUSIVE


def find_limit(stored: BaselineMetric, tolerance: Tolerance, expected: float) -> tuple[float, str]:
    """The change that is allowed, as a fraction, and where it comes from if not from the relative tolerance.

    Args:
        expected: the value that the baseline leads to expect, in the metric's unit.
    """
    floor = min(NOISE_SPREADS * find_relative_spread(stored), tolerance.floor_cap or 0.0)
    choices = [
        (tolerance.relative or 0.0, ""),
        ((tolerance.absolute or 0.0) / expected, " (absolute tolerance)"),
        (floor, " (noise floor)"),
    ]
    return max(choices, key=lambda choice: choice[0])


def find_relative_spread(stored: BaselineMetric) -> float:
    """Robust spread of the baseline's run medians over their median; of its loops where it has one run.

    A ratio baseline of one run has one sample, so its stored spread (of the ratio inside the session) counts.
    """
    if stored.median <= 0:
        return 0.0
    first, *others = stored.samples
    if others:
        spread = robust_spread([summarize_runs([loops], "none") for loops in stored.samples])
    else:
        spread = robust_spread(first) if len(first) > 1 else stored.spread
    return spread / stored.median


def find_tolerance(tier: Tier, metric: str) -> Tolerance:
    """The tier's tolerance of a metric: its own, its family's, that of the metric it follows, or the defaults."""
    family = metric.partition("/")[0]
    names = (metric, family, _FOLLOWS.get(family, metric))
    given = next((tier.tolerances[name] for name in names if name in tier.tolerances), Tolerance())
    return Tolerance(
        relative=DEFAULT_RELATIVE if given.relative is None else given.relative,
        absolute=given.absolute if _has_own(tier, metric, family) else None,
        floor_cap=DEFAULT_FLOOR_CAP if given.floor_cap is None else given.floor_cap,
    )


def _has_own(tier: Tier, metric: str, family: str) -> bool:
    """Whether the tolerance is in this metric's unit: seconds of a loop mean nothing for an epoch or for tokens."""
    return metric in tier.tolerances or family in tier.tolerances
