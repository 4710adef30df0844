"""Recorded loops through the real pytest-benchmark: its numbers are the record's, to the last bit."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from grpo_perf.report.benchmark import make_clock
from grpo_perf.types import Measurement
from tests.verdict.measurements import make_measurement

pytest_plugins = ["pytester"]

LOOPS = [17.700000000000003, 17.6, 0.1 + 0.2, 1000.123456789]
ROOT = Path(__file__).parents[2]
TEST = """
import msgspec
from pathlib import Path
from grpo_perf.report import play_into_benchmark
from grpo_perf.types import Measurement

def test_cell(benchmark):
    run = msgspec.json.decode(Path("run.json").read_bytes(), type=Measurement)
    play_into_benchmark(benchmark, run)
    {check}
"""


NO_MACHINE = """
def pytest_benchmark_generate_machine_info(config):
    return {"node": "test"}  # asking the real one takes a second

def pytest_benchmark_generate_commit_info(config):
    return {"id": "test", "time": None, "author_time": None, "dirty": False, "branch": "test"}
"""


def run_test(pytester: pytest.Pytester, run: Measurement, *options: str, check: str = "pass") -> pytest.RunResult:
    (pytester.path / "run.json").write_bytes(msgspec.json.encode(run))
    pytester.makeconftest(NO_MACHINE)
    pytester.makepyfile(TEST.format(check=check))
    pytester.syspathinsert(ROOT)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-W", "error", *options)


def test_the_clock_reads_each_round_exactly() -> None:
    clock = make_clock(LOOPS)
    assert [-clock() + clock() for _ in LOOPS] == LOOPS


def test_the_rounds_are_the_recorded_loops(pytester: pytest.Pytester) -> None:
    check = "assert benchmark.stats.stats.data == run.metrics['loop_time_s'].series"
    run_test(pytester, make_measurement(LOOPS), check=check).assert_outcomes(passed=1)


def test_json_holds_the_loops_and_everything_else(pytester: pytest.Pytester) -> None:
    run_test(pytester, make_measurement(LOOPS), "--benchmark-json=out.json").assert_outcomes(passed=1)
    (bench,) = json.loads((pytester.path / "out.json").read_text())["benchmarks"]
    assert bench["stats"]["data"] == LOOPS
    assert (bench["stats"]["rounds"], bench["stats"]["iterations"]) == (4, 1)
    assert bench["stats"]["min"] == 0.1 + 0.2
    assert bench["options"]["timer"] == "record_clock"
    assert bench["extra_info"]["cell"] == "qwen2.5-1.5b/dynamic-batch"
    assert bench["extra_info"]["metrics"]["busy_fraction"] == 0.6


def test_the_table_shows_the_loops(pytester: pytest.Pytester) -> None:
    result = run_test(pytester, make_measurement([17.5, 17.5]), "--benchmark-columns=min,median,max,rounds")
    result.stdout.fnmatch_lines(["test_cell * 17.5000 * 17.5000 * 17.5000 * 2*"])


def test_a_stored_run_is_compared(pytester: pytest.Pytester) -> None:
    run_test(pytester, make_measurement([10.0, 10.0]), "--benchmark-save=before").assert_outcomes(passed=1)
    options = ("--benchmark-compare", "--benchmark-compare-fail=median:5%")
    run_test(pytester, make_measurement([10.4, 10.4]), *options).assert_outcomes(passed=1)
    slow = run_test(pytester, make_measurement([13.0, 13.0]), *options)
    slow.stderr.fnmatch_lines(["*Performance has regressed*"])


def test_a_run_without_loops_has_no_round_and_no_warning(pytester: pytest.Pytester) -> None:
    failed = replace(make_measurement(invalid_reasons=["crashed"]), metrics={}, num_loops=0)
    check = "assert benchmark.stats is None and benchmark.extra_info['invalid_reasons'] == ['crashed']"
    run_test(pytester, failed, check=check).assert_outcomes(passed=1)


def test_disabled_benchmarks_still_pass(pytester: pytest.Pytester) -> None:
    run_test(pytester, make_measurement(LOOPS), "--benchmark-disable").assert_outcomes(passed=1)
