"""From what a person asked for to something that can run: checked once, here, for pytest and the command line alike."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from grpo_perf.catalog import load_catalog
from grpo_perf.engine import Engine, ReplayEngine, VerlEngine
from grpo_perf.errors import UsageError
from grpo_perf.runner.cells import find_stored
from grpo_perf.runner.options import BaselineMode, RunnerOptions, WarmStart
from grpo_perf.runner.subject import RolloutChoice, Subject, inspect_subject
from grpo_perf.telemetry import detect_hardware, explain_missing_gpu
from grpo_perf.telemetry.hardware import CPU_ONLY
from grpo_perf.types import Device, Hardware, Overrides, OverrideValue

_WORDS: dict[str, OverrideValue] = {"true": True, "false": False, "null": None, "none": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What was asked for, not yet checked."""

    python: Path
    runs_dir: Path = Path("runs")
    baselines_dir: Path = Path("baselines")
    catalog_dir: Path = Path("perf_tests")
    cache_dir: Path
    engine: str = "verl"
    """`verl`, or `replay:DIR`."""
    rollout: RolloutChoice = "auto"
    warm_start: WarmStart = "auto"
    budget_min: float = 10.0
    baseline_mode: BaselineMode = "check"
    num_create_runs: int = 3
    model: Path | None = None
    train_files: Path | None = None
    val_files: Path | None = None
    num_steps: int | None = None
    """Steady steps of every cell, instead of the workload's."""
    overrides: tuple[str, ...] = ()
    stored: tuple[Path, ...] = ()
    """Run folders that are judged instead of running."""
    faults: str = ""
    in_ci: bool = False
    asked: frozenset[Device] = frozenset()
    """Devices asked for by name (`-m gpu`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a session starts from."""

    options: RunnerOptions
    engine: Engine
    devices: tuple[Device, ...]
    """Of the cells that can be selected."""
    subject: Subject
    gpu_problem: str | None = None
    """Why there is no usable GPU, with the next command."""
    subject_problem: UsageError | None = None
    """Why nothing can be measured; no error until a cell is really selected."""


def set_up(settings: Settings) -> Setup:
    """Everything that a PerfSession needs.

    Raises:
        UsageError: an option that cannot be followed.
        RecordError: a stored run that cannot be read.
    """
    _check(settings)
    if settings.stored:
        return _set_up_stored(settings)
    if settings.engine != "verl":
        return _set_up_replay(settings)
    hardware = detect_hardware()
    gpu_problem = explain_missing_gpu() if hardware.device == "cpu" else None
    devices: list[Device] = [hardware.device]
    if hardware.device == "gpu" and "cpu" in settings.asked:
        devices = ["gpu", "cpu"] if "gpu" in settings.asked else ["cpu"]
    subject, problem = _inspect(settings, devices[0])
    options = _make_options(settings, hardware, subject)
    return Setup(
        options=options,
        engine=VerlEngine(),
        devices=tuple(devices),
        subject=subject,
        gpu_problem=gpu_problem,
        subject_problem=problem,
    )


def _inspect(settings: Settings, device: Device) -> tuple[Subject, UsageError | None]:
    try:
        return inspect_subject(settings.python, device, settings.rollout), None
    except UsageError as error:
        return Subject(title=f"none ({settings.python})"), error


def _set_up_stored(settings: Settings) -> Setup:
    subject = Subject(title="none, stored runs are judged")
    options = _make_options(settings, CPU_ONLY, subject)
    return Setup(options=options, engine=VerlEngine(), devices=("gpu", "cpu"), subject=subject)


def _set_up_replay(settings: Settings) -> Setup:
    kind, _, folder = settings.engine.partition(":")
    if kind != "replay" or not folder:
        raise UsageError(f"--perf-engine={settings.engine!r} is neither 'verl' nor 'replay:DIR', such as replay:runs")
    engine = ReplayEngine(Path(folder))
    hardware = engine.hardware
    subject = Subject(
        title=f"none, stored runs of {folder} are replayed", rollout_engine="hf" if hardware.key == "cpu-hf" else "vllm"
    )
    options = _make_options(settings, hardware, subject)
    return Setup(options=options, engine=engine, devices=(hardware.device,), subject=subject)


def _make_options(settings: Settings, hardware: Hardware, subject: Subject) -> RunnerOptions:
    return RunnerOptions(
        python=settings.python,
        runs_dir=settings.runs_dir,
        baselines_dir=settings.baselines_dir,
        cache_dir=settings.cache_dir,
        catalog=None if settings.stored else load_catalog(settings.catalog_dir),
        hardware=hardware,
        rollout_engine=subject.rollout_engine,
        warm_start=settings.warm_start,
        faults=settings.faults,
        budget_min=settings.budget_min,
        baseline_mode=settings.baseline_mode,
        num_create_runs=settings.num_create_runs,
        workload_changes=_change_workload(settings),
        extra_overrides=parse_overrides(settings.overrides),
        stored=find_stored(settings.stored),
    )


def _check(settings: Settings) -> None:
    if settings.baseline_mode == "create" and settings.in_ci:
        raise UsageError(
            "CI never writes baselines (CI is set). Create them on a machine like it and open a pull request: "
            "pytest perf_tests --perf-baseline=create"
        )
    if settings.engine == "verl" and not settings.stored and shutil.which(settings.python) is None:
        raise UsageError(
            f"--perf-python: {settings.python} is no program. Give the interpreter: --perf-python VENV/bin/python"
        )
    if settings.budget_min < 0:
        raise UsageError(f"--perf-budget-min: {settings.budget_min:g} is negative. 0 buys no further run.")
    if settings.num_create_runs < 1:
        raise UsageError(f"--perf-create-runs: {settings.num_create_runs} is no number of runs. Give 1 or more.")


def _change_workload(settings: Settings) -> dict[str, object]:
    changes: dict[str, object] = {}
    if settings.model is not None:
        if not (settings.model / "config.json").is_file():
            raise UsageError(
                f"--perf-model: {settings.model} is no model folder, it has no config.json. Give a local checkpoint."
            )
        changes["model.path"] = str(settings.model.absolute())
    for name, path in (("train_files", settings.train_files), ("val_files", settings.val_files)):
        if path is not None:
            if not path.is_file():
                raise UsageError(f"--perf-{name.replace('_', '-')}: there is no file {path}. Give a parquet file.")
            changes[name] = str(path.absolute())
    if settings.num_steps is not None:
        if settings.num_steps < 2:
            raise UsageError(f"--perf-steps: {settings.num_steps} steady steps give no loop to time. Give 2 or more.")
        changes["num_steady_steps"] = settings.num_steps
    return changes


def parse_overrides(texts: tuple[str, ...]) -> Overrides:
    """Hydra overrides of `KEY=VALUE` texts; values are JSON where they can be, else plain strings.

    Raises:
        UsageError: no `=`, or no key before it.
    """
    overrides: Overrides = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(
                f"--perf-override: {text!r} is not KEY=VALUE, such as actor_rollout_ref.actor.use_dynamic_bsz=True"
            )
        overrides[key.strip()] = _parse_value(value.strip(), text)
    return overrides


def _parse_value(value: str, text: str) -> OverrideValue:
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    try:
        parsed = json.loads(value)
    except ValueError:
        return value
    items = parsed if isinstance(parsed, list) else parsed.values() if isinstance(parsed, dict) else []
    if any(isinstance(item, list | dict) for item in items):
        raise UsageError(f"--perf-override: the value of {text!r} is nested. Give its inner keys one by one.")
    result: OverrideValue = parsed
    return result


def default_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/grpo-perf`, else `~/.cache/grpo-perf`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo-perf"
