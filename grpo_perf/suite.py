"""What one pytest session measures: built when the first test asks for a cell, active once cells are selected."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fnmatch import fnmatchcase

import pytest

from grpo_perf.errors import UsageError
from grpo_perf.options import read_option, read_settings
from grpo_perf.runner import CellResult, CellSpec, PerfSession, Plan, list_specs, make_plan, set_up
from grpo_perf.types import Claim, Verdict

NOT_JUDGED = "grpo-perf: cells were selected and none was judged, so this session proves nothing. See why: -rs"
NOT_GATED = "grpo-perf: baselines were written and nothing was gated. Judge by them: pytest perf_tests"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellClaim:
    """What one test is about."""

    spec: CellSpec
    claim: str | None
    """None: the test does not say, or names it itself."""
    id: str


class Suite:
    """The cells at hand, those selected, and the session that runs them."""

    def __init__(self, config: pytest.Config) -> None:
        """Read the options and find the cells.

        Raises:
            PerfError: an option, a tier, a workload or a stored run that cannot be followed.
        """
        self._config = config
        self.is_plan_only = bool(read_option(config, "plan"))
        self._settings = read_settings(config)
        self._setup = set_up(self._settings)
        self.specs = list_specs(self._setup.options, self._setup.devices)
        self.session = PerfSession(self._setup.options, self._setup.engine, make_say(config))
        self.selected: list[CellSpec] = []
        self.plan: Plan | None = None
        self.usage_problem: str | None = None
        self.num_judged = 0

    @property
    def is_creating(self) -> bool:
        """Whether baselines are written."""
        return self._settings.baseline_mode == "create"

    def activate(self, names: Iterable[str]) -> None:
        """Select cells, and find everything that is wrong before one is run.

        Raises:
            PerfError: with the message that the person should read.
        """
        wanted = set(names)
        self.selected = [spec for spec in self.specs if spec.name in wanted]
        self._check_gpu()
        problem = self._setup.subject_problem
        if self.selected and problem and not self.is_plan_only:
            raise problem
        faults = self.session.check(self.selected, self.specs)
        if self.selected:
            self.plan = make_plan(self._setup.options, self._setup.subject, self.selected, faults, self._list_remarks())

    def _list_remarks(self) -> list[str]:
        """What a person should know who did not ask for it."""
        remarks = []
        if self._setup.subject_problem:
            remarks.append(f"Nothing can be measured yet. {self._setup.subject_problem}")
        if self._setup.gpu_problem and "cpu" not in self._settings.asked:
            remarks.append(f"No GPU is usable. {self._setup.gpu_problem}")
        return remarks

    def _check_gpu(self) -> None:
        problem = self._setup.gpu_problem
        asked = "gpu" in self._settings.asked
        if problem is None or (self._settings.stored and not asked):
            return
        required = read_option(self._config, "require-gpu")
        if required is None:
            required = asked and self._settings.in_ci
        if required or (asked and not self.selected):
            raise UsageError(f"GPU cells cannot be measured here. {problem}")

    def result(self, name: str, session: pytest.Session) -> CellResult:
        """The verdict on a cell; the first request that can never run ends the session with exit code 4."""
        try:
            return self.session.result(name)
        except UsageError as error:
            problem = self.usage_problem = str(error)
        if all(row.measurement is None for row in self.session.rows()):
            session.shouldstop = "grpo-perf: nothing can be measured as it was asked for"
        pytest.fail(problem, pytrace=False)

    def note(self, claim: Claim) -> None:
        """Count what was judged."""
        self.num_judged += claim.verdict is not Verdict.INCONCLUSIVE

    def exit_problem(self) -> str | None:
        """Why a session without a failed test is no success."""
        if self.session.num_created:
            return NOT_GATED
        is_idle = self.selected and not self.num_judged and not self.session.num_experiments
        return NOT_JUDGED if is_idle else None


def expand(specs: Sequence[CellSpec], mark: pytest.Mark | None) -> list[CellClaim]:
    """What a test is called with: a cell each, and a claim each where its mark names several or a pattern.

    Args:
        mark: `perf(*patterns, without=(), cells="*")`.
    """
    patterns = mark.args if mark else ()
    without = tuple(mark.kwargs.get("without", ())) if mark else ()
    cells = mark.kwargs.get("cells", "*") if mark else "*"
    chosen = [spec for spec in specs if fnmatchcase(spec.name, cells)]
    if not patterns:
        return [CellClaim(spec=spec, claim=None, id=spec.name) for spec in chosen]
    is_family = len(patterns) > 1 or "*" in patterns[0]
    return [
        CellClaim(spec=spec, claim=claim, id=f"{spec.name}/{claim.rpartition('/')[2]}" if is_family else spec.name)
        for spec in chosen
        for claim in spec.claims
        if _matches(claim, patterns) and not _matches(claim, without)
    ]


def _matches(claim: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(claim, pattern) for pattern in patterns)


def check_session(config: pytest.Config) -> None:
    """Refuse what would measure something else than the cell alone.

    Raises:
        UsageError: pytest-benchmark would skip the claims.
    """
    for name in ("benchmark_only", "benchmark_skip"):
        if config.getoption(name, False):
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{flag} leaves out tests after the cell was run for them: a session that measures and gates nothing. "
                f"Leave it out; to have one kind only: -k test_benchmark, or -k 'not test_benchmark'"
            )


def make_say(config: pytest.Config) -> Callable[[str], None]:
    """A function that prints a line at once, whatever is captured."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")

    def say(line: str) -> None:
        if reporter is None:
            return
        if capture is None:
            reporter.write_line(line)
            return
        pause: AbstractContextManager[None] = capture.global_and_fixture_disabled()
        with pause:
            reporter.write_line(line)
            reporter.flush()

    return say
