"""The pytest plugin: cells as parameters, one run a cell, claims as tests. Inert until a test asks for a cell."""

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from grpo_perf.options import add_options, read_option

if TYPE_CHECKING:
    from grpo_perf.gate import PerfGate
    from grpo_perf.record import RunRecord
    from grpo_perf.suite import CellClaim, Suite
    from grpo_perf.truth import Truth

SUITE_KEY = pytest.StashKey["Suite"]()
PROBLEM_KEY = pytest.StashKey[str]()
"""Why there is no suite; raised once collection is over, because pytest takes errors within it for broken tests."""

XDIST_ID = ":one-process"
"""Ends the ids of cells under xdist, for the controller to know them by."""

MARKS = (
    "perf(*claims, without=(), cells='*'): the claims of a cell that the test makes, as names or patterns",
    "gpu: needs an NVIDIA GPU",
    "cpu: runs where there is no GPU",
    "truth: checks the measurement itself; runs only where -m asks for it",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--perf-*` and `perf_*`."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks."""
    for mark in MARKS:
        config.addinivalue_line("markers", mark)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Call a test that asks for a cell once for each cell that has what it claims."""
    if "grpo_cell" not in metafunc.fixturenames:
        return
    claims = _expand(metafunc)
    suffix = XDIST_ID if hasattr(metafunc.config, "workerinput") else ""
    # A test with nothing to claim here has one call with None, which pytest_pycollect_makeitem takes away again.
    calls = [
        pytest.param(claim, id=claim.id + suffix, marks=getattr(pytest.mark, claim.spec.device)) for claim in claims
    ] or [pytest.param(None, id="no-cell")]
    metafunc.parametrize("grpo_cell", calls, indirect=True)


def _expand(metafunc: pytest.Metafunc) -> "list[CellClaim]":
    suite = _ensure_suite(metafunc.config)
    if suite is None:
        return []
    from grpo_perf.suite import expand

    return expand(suite.specs, metafunc.definition.get_closest_marker("perf"))


def _ensure_suite(config: pytest.Config) -> "Suite | None":
    if SUITE_KEY not in config.stash and PROBLEM_KEY not in config.stash:
        from grpo_perf.errors import PerfError
        from grpo_perf.suite import Suite

        try:
            config.stash[SUITE_KEY] = Suite(config)
        except PerfError as error:
            config.stash[PROBLEM_KEY] = str(error)
    return config.stash.get(SUITE_KEY, None)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    """Leave out tests that claim what no cell here has."""
    made = yield
    if not isinstance(made, list):
        return made
    return [item for item in made if not (_is_perf(item) and item.callspec.params["grpo_cell"] is None)]


def _is_perf(item: Any) -> bool:
    return hasattr(item, "callspec") and "grpo_cell" in item.callspec.params


def _cell_name(item: Any) -> str:
    name: str = item.callspec.params["grpo_cell"].spec.name
    return name


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """All claims of a cell together, base tiers first; other tests stay where they are."""
    _deselect_truth(config, items)
    suite = config.stash.get(SUITE_KEY, None)
    if suite is None:
        return
    order = {spec.name: index for index, spec in enumerate(suite.specs)}
    places = [index for index, item in enumerate(items) if _is_perf(item)]
    ordered = sorted((items[index] for index in places), key=lambda item: order[_cell_name(item)])
    for index, item in zip(places, ordered, strict=True):
        items[index] = item


def _deselect_truth(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out checks of the measurement unless `-m` names them: they take minutes and say nothing of the cells."""
    if "truth" in config.option.markexpr:
        return
    unasked = [item for item in items if item.get_closest_marker("truth")]
    if unasked:
        items[:] = [item for item in items if item not in unasked]
        config.hook.pytest_deselected(items=unasked)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Find everything that is wrong before a cell is run."""
    config = session.config
    if hasattr(config, "workerinput"):
        return
    if PROBLEM_KEY in config.stash:
        raise pytest.UsageError(config.stash[PROBLEM_KEY])
    names = [_cell_name(item) for item in session.items if _is_perf(item)]
    suite = config.stash.get(SUITE_KEY, None)
    if suite is not None:
        _activate(suite, config, names)
    if read_option(config, "plan") and not names:
        raise pytest.UsageError("--perf-plan: no cell is selected. Select some: pytest perf_tests --perf-plan")


def _activate(suite: "Suite", config: pytest.Config, names: Sequence[str]) -> None:
    from grpo_perf.errors import PerfError
    from grpo_perf.suite import check_session

    try:
        if names:
            check_session(config)
        suite.activate(names)
    except PerfError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """verl under test, and the plan."""
    suite = config.stash.get(SUITE_KEY, None)
    if suite is None or suite.plan is None:
        return []
    from grpo_perf.runner import render_plan

    return render_plan(suite.plan)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(ids: Sequence[str]) -> None:
    """Refuse to measure several cells at once on one machine."""
    if any(name.endswith(f"{XDIST_ID}]") for name in ids):
        raise pytest.UsageError(
            "Cells cannot be measured under xdist (-n): runs beside each other slow each other down. Leave -n out, "
            "or take it from addopts: -o addopts=''"
        )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """With `--perf-plan`, run nothing; otherwise make sure that runs can be written."""
    suite = session.config.stash.get(SUITE_KEY, None)
    if read_option(session.config, "plan"):
        return True
    if suite is not None and suite.selected and not session.config.option.collectonly:
        from grpo_perf.errors import PerfError

        try:
            suite.session.prepare()
        except PerfError as error:
            raise pytest.UsageError(str(error)) from error
    return None


@pytest.fixture
def grpo_cell(request: pytest.FixtureRequest) -> "CellClaim":
    """What the test is about: a cell and the claim of its mark."""
    claim: CellClaim = request.param
    return claim


@pytest.fixture
def perf_claim(grpo_cell: "CellClaim") -> str | None:
    """The claim that the test's mark names, such as `phase_s/update_actor`."""
    return grpo_cell.claim


@pytest.fixture
def perf_gate(request: pytest.FixtureRequest, grpo_cell: "CellClaim") -> "PerfGate":
    """The cell's gate: `perf_gate.check("loop_time_s")` passes, skips or fails. The cell runs once a session."""
    from grpo_perf.gate import GateRules, PerfGate

    suite = request.config.stash[SUITE_KEY]
    rules = GateRules(strict=bool(read_option(request.config, "strict")), is_creating=suite.is_creating)

    def note(claim: Any) -> None:
        suite.note(claim)
        request.node.user_properties += [("verdict", str(claim.verdict)), ("value", claim.value)]

    return PerfGate(
        grpo_cell.spec, grpo_cell.claim, lambda: suite.result(grpo_cell.spec.name, request.session), rules, note
    )


@pytest.fixture
def grpo_run(request: pytest.FixtureRequest, grpo_cell: "CellClaim") -> "RunRecord":
    """The record of the cell's run, measured once a session; a failed run is a record too."""
    from grpo_perf.errors import PerfError

    result = request.config.stash[SUITE_KEY].result(grpo_cell.spec.name, request.session)
    try:
        return result.load_record()
    except PerfError:
        problem = result.verdict.claims[0].message
    pytest.fail(problem, pytrace=False)


@pytest.fixture(scope="session")
def perf_truth(request: pytest.FixtureRequest) -> "Truth":
    """Checks of the measurement itself, each made once a session."""
    from grpo_perf.suite import make_say
    from grpo_perf.truth import Truth

    suite = _ensure_suite(request.config)
    if suite is None:
        pytest.fail(request.config.stash[PROBLEM_KEY], pytrace=False)
    return Truth(suite.session, make_say(request.config))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A session that measured and gated nothing is no success."""
    suite = session.config.stash.get(SUITE_KEY, None)
    if suite is None or suite.plan is None or read_option(session.config, "plan") or session.config.option.collectonly:
        return
    if suite.usage_problem:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
    elif session.exitstatus == pytest.ExitCode.OK and suite.exit_problem():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """A row a cell, what was written, and why the session is no success where it is none."""
    suite = config.stash.get(SUITE_KEY, None)
    if suite is None or suite.plan is None or read_option(config, "plan") or config.option.collectonly:
        return
    from grpo_perf.report import render_summary

    terminalreporter.section("GRPO performance")
    rows = suite.session.rows()
    lines = [*(render_summary(rows) if rows else []), *suite.session.notes]
    for line in [*lines, suite.exit_problem()]:
        if line is not None:
            terminalreporter.write_line(line)
