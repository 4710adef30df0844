"""`grpo-perf`: the same calls as the plugin, from a shell.

0 pass or improved    1 regressed or not applied    2 usage    3 no verdict
"""

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from grpo_perf import __version__
from grpo_perf.errors import PerfError, UsageError
from grpo_perf.options import OPTIONS, make_settings
from grpo_perf.report import CellRow, group_runs, plot_ladder, render_ladder, render_summary
from grpo_perf.runner import (
    CellSpec,
    PerfSession,
    Settings,
    Setup,
    describe_machine,
    judge_folder,
    list_specs,
    make_plan,
    measure_folder,
    render_plan,
    set_up,
    specify,
)
from grpo_perf.runner.judging import cell_name, wall_s
from grpo_perf.types import Device, Verdict

EXIT_OK, EXIT_REGRESSED, EXIT_USAGE, EXIT_NO_VERDICT = 0, 1, 2, 3

_RED = (Verdict.REGRESSED, Verdict.NOT_APPLIED)
_GREEN = (Verdict.PASS, Verdict.IMPROVED)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    options = make_parser().parse_args(argv)
    try:
        code: int = options.command(options)
    except PerfError as error:
        print(f"grpo-perf: {error}", file=sys.stderr)
        return EXIT_USAGE
    except BrokenPipeError:  # the reader of our output has seen enough
        sys.stdout = None
        return EXIT_OK
    return code


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="grpo-perf", description="Performance regression suite for GRPO on verl.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="measure a cell and judge it")
    run.add_argument("cell", metavar="CELL", help="WORKLOAD/TIER, such as cpu-tiny/untuned")
    _add_options(run)
    run.set_defaults(command=run_cell)
    judge = commands.add_parser("judge", help="judge stored runs, each from its folder alone")
    judge.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="a run folder")
    judge.add_argument(
        "--baselines",
        metavar="DIR",
        type=Path,
        help="judge by the baselines of this folder, instead of the one that each run was judged by",
    )
    judge.set_defaults(command=judge_runs)
    ladder = commands.add_parser("ladder", help="stored runs of several tiers side by side, as Markdown and as a plot")
    ladder.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="a run folder; those of the base tier first")
    ladder.add_argument("--plot", metavar="FILE", type=Path, help="write a plot there too (.svg, .png, .pdf)")
    ladder.set_defaults(command=show_ladder)
    cells = commands.add_parser("cells", help="list the cells that this machine can measure")
    _add_options(cells)
    cells.set_defaults(command=list_cells)
    doctor = commands.add_parser("doctor", help="what this machine can measure, what is missing, the next command")
    _add_options(doctor)
    doctor.set_defaults(command=check_machine)
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    for option in OPTIONS:
        if option.in_cli:
            parser.add_argument(f"--{option.name}", **option.arguments())


def run_cell(options: argparse.Namespace) -> int:
    """Measure the cell (and what its ratio needs), print the table, give the verdict as an exit code."""
    setup, spec = _find_cell(options)
    if setup.subject_problem:
        raise setup.subject_problem
    session = PerfSession(setup.options, setup.engine, _say)
    faults = session.check([spec], [spec, *list_specs(setup.options, setup.devices)])
    for line in render_plan(make_plan(setup.options, setup.subject, [spec], faults)):
        _say(line)
    session.prepare()
    try:
        session.result(spec.name)
    except KeyboardInterrupt:
        _say("interrupted: the run so far is kept")
    return _conclude(session.rows())


def _find_cell(options: argparse.Namespace) -> tuple[Setup, CellSpec]:
    setup = set_up(_read(options))
    spec = specify(setup.options, options.cell)
    if spec.device in setup.devices:
        return setup, spec
    if spec.device == "gpu":
        raise UsageError(f"{spec.name} needs a GPU. {setup.gpu_problem}")
    setup = set_up(_read(options, frozenset({"cpu"})))  # a CPU cell on a GPU machine
    return setup, specify(setup.options, options.cell)


def judge_runs(options: argparse.Namespace) -> int:
    """Judge each run folder and print the table."""
    rows = []
    for path in options.runs:
        verdict = judge_folder(path, options.baselines)
        record, measurement = measure_folder(path)
        row = CellRow(
            cell=cell_name(record.meta),
            role="replayed",
            measurement=measurement,
            verdict=verdict,
            path=path,
            wall_s=wall_s(record.meta),
        )
        rows.append(row)
    return _conclude(rows)


def show_ladder(options: argparse.Namespace) -> int:
    """Print the ladder of the given runs."""
    rungs = group_runs([measure_folder(path)[1] for path in options.runs])
    for line in render_ladder(rungs):
        _say(line)
    if options.plot is not None:
        plot_ladder(rungs, options.plot)
        _say(f"\nplot: {options.plot}")
    return EXIT_OK


def list_cells(options: argparse.Namespace) -> int:
    """Print the name of each cell that fits this machine."""
    setup = set_up(_read(options))
    for spec in list_specs(setup.options, setup.devices):
        _say(spec.name)
    return EXIT_OK


def check_machine(options: argparse.Namespace) -> int:
    """Print what can be measured here; a machine that can measure nothing is no success."""
    setup = set_up(_read(options))
    lines, can_measure = describe_machine(setup)
    for line in lines:
        _say(line)
    return EXIT_OK if can_measure else EXIT_NO_VERDICT


def _read(options: argparse.Namespace, asked: frozenset[Device] = frozenset()) -> Settings:
    return make_settings(vars(options), os.environ, asked)


def _conclude(rows: Sequence[CellRow]) -> int:
    for line in render_summary(rows):
        _say(line)
    return exit_code(row.verdict.verdict for row in rows if row.verdict is not None)


def exit_code(verdicts: Iterable[Verdict]) -> int:
    """The exit code of several verdicts: a regression outweighs a missing verdict, and that outweighs a pass."""
    found = set(verdicts)
    if found & set(_RED):
        return EXIT_REGRESSED
    return EXIT_OK if found and found <= set(_GREEN) else EXIT_NO_VERDICT


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
