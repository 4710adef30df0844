"""From a claim's verdict to a test's outcome: DESIGN's verdict table."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from grpo_perf.runner import CellResult, CellSpec
from grpo_perf.types import CellVerdict, Claim, Measurement, Verdict

_PASSED = (Verdict.PASS, Verdict.IMPROVED)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRules:
    """What the session's options make of a verdict."""

    strict: bool = False
    """INCONCLUSIVE fails."""
    is_creating: bool = False
    """The session writes baselines: nothing can be compared with them."""


class PerfGate:
    """What a test holds to make claims about one cell; the cell runs when the first of them is made."""

    def __init__(
        self,
        spec: CellSpec,
        claim: str | None,
        obtain: Callable[[], CellResult],
        rules: GateRules,
        note: Callable[[Claim], None],
    ) -> None:
        """Args: claim: what the test's mark names. note: is told each claim before it decides the outcome."""
        self.spec = spec
        self._claim = claim
        self._obtain = obtain
        self._rules = rules
        self._note = note

    @property
    def result(self) -> CellResult:
        """Everything concluded about the cell."""
        return self._obtain()

    @property
    def verdict(self) -> CellVerdict:
        """The verdict on the cell."""
        return self.result.verdict

    @property
    def measurement(self) -> Measurement:
        """Every metric of the run; fails the test where nothing could be started."""
        measurement = self.result.measurement
        if measurement is None:
            pytest.fail(self.verdict.claims[0].message, pytrace=False)
        return measurement

    def check(self, claim: str | None = None) -> Claim:
        """Pass, skip or fail the test by the verdict on a claim; on that of the test's mark if none is named."""
        name = claim or self._claim
        if name is None:
            pytest.fail(
                "Which claim? perf_gate.check('loop_time_s'), or mark the test perf('loop_time_s')", pytrace=False
            )
        found = self._find(name)
        self._note(found)
        self._settle(found)
        return found

    def _find(self, name: str) -> Claim:
        claims = {claim.metric: claim for claim in self.verdict.claims}
        if name not in claims:
            pytest.fail(f"{self.spec.name} has no claim {name!r}. It has: {', '.join(claims)}", pytrace=False)
        return claims[name]

    def _settle(self, claim: Claim) -> None:
        if self._rules.is_creating and claim.metric in self.spec.relative and claim.verdict is not Verdict.INVALID:
            pytest.skip("not gated: this session writes the baseline")
        if claim.verdict in _PASSED:
            return
        if claim.verdict is Verdict.INCONCLUSIVE and not self._rules.strict:
            pytest.skip(self._explain(claim))
        pytest.fail(self._explain(claim), pytrace=False)

    def _explain(self, claim: Claim) -> str:
        """The verdict in the words of its claim, where it comes from, and what to do next."""
        lines = [f"{claim.verdict}: {self.spec.name} {claim.metric}: {claim.message}"]
        if claim.verdict is Verdict.REGRESSED:
            lines += [f"where: {blame}" for blame in self.verdict.blame]
            lines += [f"changed: {change}" for change in self.verdict.subject_changes]
        if claim.next_command and claim.next_command not in claim.message:
            lines.append(f"next: {claim.next_command}")
        lines.append(f"run: {self.result.path}")
        return "\n".join(lines)
