"""Statistics and the gate: from a measurement, a baseline and limits to a verdict. Pure functions on plain data."""

from grpo_perf.verdict.claims import claim_names
from grpo_perf.verdict.explain import blame
from grpo_perf.verdict.gate import judge

__all__ = ["blame", "claim_names", "judge"]
