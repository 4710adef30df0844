"""Runs cells and judges them, each at most once a session.

result(cell) --> base cell, if its ratio is judged --> engine.run --> measure --> judge --> run.json, verdict.json
                 INVALID: once more                   INCONCLUSIVE: once more within the budget, runs pooled
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from grpo_perf.baseline import baseline_path, load_baseline
from grpo_perf.engine import Engine, Progress, RunRequest
from grpo_perf.errors import EngineError, PerfError, UsageError
from grpo_perf.record import RunMeta, load_meta
from grpo_perf.report import CellRow
from grpo_perf.runner.cells import CellSpec, find_reference, resolve, specify
from grpo_perf.runner.create import create_baseline
from grpo_perf.runner.faults import check_fault_cells, parse_faults, select_faults
from grpo_perf.runner.judging import conclude, judge_measurement, measure_folder, refuse, wall_s
from grpo_perf.runner.options import RunnerOptions, check_runs_dir
from grpo_perf.runner.results import CellResult, Run, choose_run, make_reference_row, make_result
from grpo_perf.types import Baseline, Cell, JudgeContext, Measurement, Verdict

MAX_INVALID = 2
"""An invalid run is repeated once."""


class PerfSession:
    """One session of runs: results by cell, each measured at most once however often it is asked for."""

    def __init__(self, options: RunnerOptions, engine: Engine, say: Progress) -> None:
        """Args: say: takes one line of progress."""
        self.options = options
        self.faults = parse_faults(options.faults)
        self.notes: list[str] = []
        """What the summary should add: created baselines, repeated runs."""
        self.num_created = 0
        self.num_experiments = 0
        self._engine = engine
        self._say = say
        self._runs: dict[str, list[Run]] = {}
        self._results: dict[str, CellResult] = {}
        self._spent_s = 0.0

    def check(self, selected: Sequence[CellSpec], known: Sequence[CellSpec]) -> dict[str, list[str]]:
        """Faults by cell, after everything that can be found wrong without starting a run.

        Raises:
            UsageError: a fault of no selected cell, or a fault where it may not be.
            BaselineError: a baseline that cannot be read.
        """
        running = self.list_running(selected)
        if self.options.stored and self.faults:
            raise UsageError("GRPO_PERF_FAULT has no effect on stored runs. Unset it: unset GRPO_PERF_FAULT")
        check_fault_cells(self.faults, running, [spec.name for spec in known])
        if self.options.baseline_mode == "create" and self.faults:
            raise UsageError("A run with faults never becomes a baseline. Unset them: unset GRPO_PERF_FAULT")
        for spec in selected:
            if spec.name not in self.options.stored:
                self._load_baseline(resolve(self.options, spec.name))
        return {name: specs for name in running if (specs := select_faults(self.faults, name))}

    def prepare(self) -> None:
        """Make sure that runs can be written.

        Raises:
            UsageError: read-only or full.
        """
        if not self.options.stored:
            check_runs_dir(self.options.runs_dir)

    @staticmethod
    def list_running(selected: Sequence[CellSpec]) -> list[str]:
        """Names of the selected cells and of those that run as their reference."""
        names = [name for spec in selected for name in (spec.reference, spec.name) if name]
        return list(dict.fromkeys(names))

    def result(self, name: str) -> CellResult:
        """The verdict on a cell, measured now if this session has not done so yet.

        Raises:
            UsageError: the cell can never run as it is (unknown cell or key).
        """
        if name not in self._results:
            self._results[name] = self._obtain_or_refuse(name)
        return self._results[name]

    def rows(self) -> list[CellRow]:
        """A row a cell for the summary, in the order they ran; references were run for others only."""
        references = [
            make_reference_row(runs) for name, runs in self._runs.items() if runs and name not in self._results
        ]
        return references + [result.row() for result in self._results.values()]

    def _obtain_or_refuse(self, name: str) -> CellResult:
        if name in self.options.stored:
            return self._judge_stored(self.options.stored[name])
        cell = resolve(self.options, name)
        try:
            return self._obtain(cell)
        except UsageError as error:
            self._results[name] = self._refuse(cell, str(error))  # not asked of the engine again
            raise
        except (PerfError, OSError) as error:  # nothing started, or the disk is full: the other cells go on
            return self._refuse(cell, str(error))

    def _obtain(self, cell: Cell) -> CellResult:
        base = find_reference(cell)
        if base is not None:
            self._measure(resolve(self.options, base))
        self._measure(cell)
        result = self._judge(cell)
        if self.options.baseline_mode == "create":
            self._create(cell)
            return self._judge(cell)  # by what was just written, as any later look at this run will
        if result.verdict.verdict is Verdict.INCONCLUSIVE and self._affords(cell.name):
            return self._judge_again(cell, result)
        return result

    def _judge_again(self, cell: Cell, before: CellResult) -> CellResult:
        self._say(f"{cell.name}: INCONCLUSIVE, one more run")
        start_s = time.monotonic()
        base = find_reference(cell)
        try:
            run = self._run(cell)
            if base is not None and run.is_valid:
                self._results[cell.name] = before  # an interruption of what follows loses nothing
                # The scatter of the base's loops widens a ratio's interval as much as that of the cell's own.
                self._run(resolve(self.options, base))
        except PerfError as error:
            self._note(f"{cell.name}: a further run could not be made: {error}")
            return before
        finally:
            self._spent_s += time.monotonic() - start_s
        if not run.is_valid:
            self._note(f"{cell.name}: the further run {run.path} is INVALID; the verdict is that of the first alone")
            return before
        return self._judge(cell)

    def _affords(self, name: str) -> bool:
        cells = [name, find_reference(resolve(self.options, name))]
        last_s = sum(wall_s(self._runs[cell][-1].meta) or 0.0 for cell in cells if cell in self._runs)
        return self._spent_s + last_s <= self.options.budget_min * 60

    def _find_references(self, cell: Cell) -> list[Measurement]:
        """Valid measurements of the cell that this one's ratios are taken to."""
        runs = self._runs.get(find_reference(cell) or "", [])
        return [run.measurement for run in runs if run.is_valid]

    def _measure(self, cell: Cell) -> None:
        """Run the cell until it has the valid runs that are wanted, or was invalid twice."""
        wanted = self.options.num_create_runs if self.options.baseline_mode == "create" else 1
        runs = self._runs.setdefault(cell.name, [])
        while sum(run.is_valid for run in runs) < wanted:
            if sum(not run.is_valid for run in runs) == MAX_INVALID:
                return
            run = self._run(cell)
            if not run.is_valid:
                self._note(f"{cell.name}: {run.path} is INVALID: {'; '.join(run.measurement.invalid_reasons)}")

    def run_experiment(self, name: str, experiment: str, num_steps: int) -> Path:
        """The folder of a run that tests the measurement: never judged, and no result of this session.

        Args:
            experiment: `alternate` or `trace:STEP`.
            num_steps: steady steps, instead of the workload's.

        Raises:
            EngineError: the run did not complete.
        """
        cell = resolve(self.options, name)
        cell = replace(cell, workload=replace(cell.workload, num_steady_steps=num_steps))
        path = self._engine.run(self._request(cell, experiment), lambda line: self._say(f"{name} {experiment}: {line}"))
        self.num_experiments += 1
        meta = load_meta(path)
        if meta.status != "complete":
            raise EngineError(f"{path} is {meta.status}: {meta.reason}. Look: {meta.next_command}")
        return path

    def _request(self, cell: Cell, experiment: str = "") -> RunRequest:
        options = self.options
        return RunRequest(
            cell=cell,
            runs_dir=options.runs_dir.absolute(),  # measured processes work in another folder
            hardware=options.hardware_for(cell.workload.device),
            python=options.python,
            rollout_engine=options.rollout_engine,
            faults=select_faults(self.faults, cell.name),
            experiment=experiment,
            warm_start=options.starts_warm(cell.workload.device),
            cache_dir=options.cache_dir,
        )

    def _run(self, cell: Cell) -> Run:
        options = self.options
        before = _list_folders(options.runs_dir)
        try:
            path = self._engine.run(self._request(cell), lambda line: self._say(f"{cell.name}: {line}"))
        except KeyboardInterrupt:
            self._keep_interrupted(cell, before)
            raise
        return self._add(cell.name, options.runs_dir / path.name)

    def _add(self, name: str, path: Path) -> Run:
        record, measurement = measure_folder(path)
        run = Run(path=path, meta=record.meta, measurement=measurement)
        self._runs.setdefault(name, []).append(run)
        return run

    def _keep_interrupted(self, cell: Cell, before: set[Path]) -> None:
        """Put the run that Ctrl-C or SIGTERM cut off into the summary: the engine kept its folder."""
        for path in sorted(_list_folders(self.options.runs_dir) - before):
            try:
                self._add(cell.name, path)
                self._results[cell.name] = self._judge(cell)
            except (PerfError, OSError) as error:
                self._note(f"{cell.name}: {path} was interrupted and cannot be read: {error}")

    def _judge(self, cell: Cell) -> CellResult:
        """Judge the last valid run, with the cell's other valid runs pooled; without one, the last run."""
        runs = self._runs[cell.name]
        chosen = choose_run(runs)
        hardware = self.options.hardware_for(cell.workload.device).key
        context = JudgeContext(
            baseline=self._load_baseline(cell),
            baseline_path=str(baseline_path(self.options.baselines_dir, hardware, cell.workload.name, cell.tier.name)),
            references=self._find_references(cell),
            siblings=[run.measurement for run in runs if run.is_valid and run is not chosen],
        )
        return make_result(chosen, conclude(chosen.path, context))

    def _judge_stored(self, path: Path) -> CellResult:
        """Judge a stored run as its folder says; by the present baseline only if it was never judged by one."""
        record, measurement = measure_folder(path)
        meta = record.meta
        context = meta.context
        if self.options.baseline_mode == "create":
            self._save_baseline(meta, [measurement, *context.siblings], context.references)
        if context.baseline is None:
            names = (meta.hardware.key, meta.workload.name, meta.tier.name)
            context = replace(
                context,
                baseline=load_baseline(self.options.baselines_dir, *names),
                baseline_path=str(baseline_path(self.options.baselines_dir, *names)),
            )
        verdict = judge_measurement(meta, measurement, context)
        return make_result(Run(path=path, meta=meta, measurement=measurement), verdict, is_stored=True)

    def _refuse(self, cell: Cell, message: str) -> CellResult:
        self._say(f"{cell.name}: {message}")
        verdict = refuse(
            cell=cell.name,
            hardware=self.options.hardware_for(cell.workload.device).key,
            claims=specify(self.options, cell.name).claims,
            message=message,
        )
        return CellResult(
            name=cell.name, role="measured", path=self.options.runs_dir, measurement=None, verdict=verdict
        )

    def _load_baseline(self, cell: Cell) -> Baseline | None:
        hardware = self.options.hardware_for(cell.workload.device).key
        return load_baseline(self.options.baselines_dir, hardware, cell.workload.name, cell.tier.name)

    def _create(self, cell: Cell) -> None:
        runs = [run for run in self._runs[cell.name] if run.is_valid]
        if runs:
            self._save_baseline(runs[-1].meta, [run.measurement for run in runs], self._find_references(cell))
        else:
            self._note(f"{cell.name}: no baseline written, every run is INVALID")

    def _save_baseline(self, meta: RunMeta, measurements: list[Measurement], references: list[Measurement]) -> None:
        line, is_written = create_baseline(self.options.baselines_dir, meta, measurements, references)
        self.num_created += is_written
        self._note(line)

    def _note(self, line: str) -> None:
        self.notes.append(line)
        self._say(line)


def _list_folders(folder: Path) -> set[Path]:
    return {path for path in folder.iterdir() if path.is_dir()} if folder.is_dir() else set()
