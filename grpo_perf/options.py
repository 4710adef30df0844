"""The options of pytest and of the command line, declared once: `--perf-runs` here is `--runs` there."""

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from grpo_perf.types import Device

if TYPE_CHECKING:  # the plugin is loaded by every pytest session: nothing heavy is imported until a cell is collected
    import pytest

    from grpo_perf.runner import Settings

IniType = Literal["string", "bool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option."""

    name: str
    """`runs` of `--perf-runs`, and of the ini key `perf_runs`."""
    help: str
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    convert: Callable[[str], Any] | None = None
    ini: IniType | None = None
    """The type of its ini key; None where it is meant for one call only."""
    repeat: bool = False
    in_cli: bool = True
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def dest(self) -> str:
        """`perf_runs`."""
        return f"perf_{self.name.replace('-', '_')}"

    def arguments(self) -> dict[str, Any]:
        """Keywords of argparse's add_argument; the default is always None, so that an ini key can stand in."""
        arguments: dict[str, Any] = {"dest": self.dest, "help": self.help, "default": None} | self.extra
        if self.repeat:
            arguments["action"] = "append"
        given = {"metavar": self.metavar, "choices": self.choices, "type": self.convert}
        return arguments | {name: value for name, value in given.items() if value is not None}


OPTIONS = (
    Option(name="python", metavar="PATH", ini="string",
           help="measure the verl of this interpreter (default: this one)"),
    Option(name="plan", in_cli=False, extra={"action": "store_true"},
           help="print what would be measured and for how long, then exit"),
    Option(name="baseline", choices=("check", "create"),
           help="check (default): compare with the stored baselines. create: write them, gate nothing; refused in CI"),
    Option(name="create-runs", metavar="N", convert=int, ini="string",
           help="runs that a new baseline is made from (default: 3)"),
    Option(name="runs", metavar="DIR", ini="string", help="folder of the run folders (default: runs)"),
    Option(name="baselines", metavar="DIR", ini="string", help="folder of the baselines (default: baselines)"),
    Option(name="catalog", metavar="DIR", ini="string", help="folder with workloads/ and tiers/ (default: perf_tests)"),
    Option(name="from", metavar="RUN", repeat=True, in_cli=False,
           help="judge this stored run folder instead of running its cell; can be repeated"),
    Option(name="engine", metavar="ENGINE", help="verl (default), or replay:DIR: hand out the stored runs of a folder"),
    Option(name="rollout", choices=("auto", "vllm", "hf"), ini="string",
           help="rollout engine without a GPU: vllm, or hf (transformers) where vLLM cannot run (default: auto)"),
    Option(name="warm-start", choices=("auto", "on", "off"), ini="string",
           help="fork a run's processes from one that has imported torch and vllm (default: auto: without a GPU)"),
    Option(name="strict", ini="bool", in_cli=False, extra={"action": "store_true"},
           help="INCONCLUSIVE fails instead of being skipped"),
    Option(name="budget-min", metavar="MIN", convert=float, ini="string",
           help="minutes that further runs of inconclusive cells may take (default: 10)"),
    Option(name="require-gpu", ini="bool", in_cli=False, extra={"action": "store_true"},
           help="no usable GPU is an error (default: when CI is set and -m gpu was asked for)"),
    Option(name="steps", metavar="N", convert=int, help="steady steps of each cell, instead of its workload's"),
    Option(name="model", metavar="PATH", help="train this local checkpoint instead of the workload's generated one"),
    Option(name="train-files", metavar="PATH", help="train on this parquet file instead of generated prompts"),
    Option(name="val-files", metavar="PATH", help="validate on this parquet file"),
    Option(name="override", metavar="KEY=VALUE", repeat=True, help="set a key of verl in every cell; can be repeated"),
)  # fmt: skip


def add_options(parser: "pytest.Parser") -> None:
    """Declare `--perf-*` and the ini keys `perf_*`."""
    group = parser.getgroup("grpo-perf", "GRPO performance (grpo-perf)")
    for option in OPTIONS:
        group.addoption(f"--perf-{option.name}", **option.arguments())
        if option.ini is not None:
            parser.addini(option.dest, f"default of --perf-{option.name}", type=option.ini, default=None)
        if option.name == "require-gpu":
            group.addoption(
                "--no-perf-require-gpu", dest=option.dest, action="store_false", help="run what can run without a GPU"
            )


def read_option(config: "pytest.Config", name: str) -> Any:
    """The value from the command line, else from the ini file, else None; paths of an ini file start at its folder."""
    option = next(option for option in OPTIONS if option.name == name)
    value = config.getoption(option.dest)
    if value is not None or option.ini is None:
        return value
    stored = config.getini(option.dest)
    if stored is None or option.ini == "bool":
        return stored
    if option.metavar in ("DIR", "PATH"):
        return str(config.rootpath / stored)
    return option.convert(stored) if option.convert else stored


def read_settings(config: "pytest.Config") -> "Settings":
    """What this pytest session asks for. Nothing is checked yet."""
    values = {option.dest: read_option(config, option.name) for option in OPTIONS}
    root = config.rootpath
    for name in ("runs", "baselines", "catalog"):
        values[f"perf_{name}"] = values[f"perf_{name}"] or str(root / _FOLDERS[name])
    return make_settings(values, os.environ, find_asked(config.getoption("markexpr") or ""))


_FOLDERS = {"runs": "runs", "baselines": "baselines", "catalog": "perf_tests"}


def make_settings(values: Mapping[str, Any], environ: Mapping[str, str], asked: frozenset[Device]) -> "Settings":
    """Settings from parsed options; what was not given gets its default here.

    Args:
        values: dest -> value, None where it was not given.
        asked: devices asked for by name.
    """
    from grpo_perf.runner.settings import Settings, default_cache_dir

    def path(name: str) -> Path | None:
        return _shorten(Path(values[f"perf_{name}"])) if values.get(f"perf_{name}") else None

    def given(name: str, default: Any) -> Any:
        value = values.get(f"perf_{name}")
        return default if value is None else value

    return Settings(
        python=Path(os.path.abspath(given("python", sys.executable))),  # noqa: PTH100 - a venv's symlink must stay
        runs_dir=path("runs") or Path(_FOLDERS["runs"]),
        baselines_dir=path("baselines") or Path(_FOLDERS["baselines"]),
        catalog_dir=path("catalog") or Path(_FOLDERS["catalog"]),
        cache_dir=default_cache_dir(),
        engine=given("engine", "verl"),
        rollout=given("rollout", "auto"),
        warm_start=given("warm_start", "auto"),
        budget_min=given("budget_min", 10.0),
        baseline_mode=given("baseline", "check"),
        num_create_runs=given("create_runs", 3),
        model=path("model"),
        train_files=path("train_files"),
        val_files=path("val_files"),
        num_steps=values.get("perf_steps"),
        overrides=tuple(given("override", ())),
        stored=tuple(_shorten(Path(text)) for text in given("from", ())),
        faults=environ.get("GRPO_PERF_FAULT", ""),
        in_ci=is_ci(environ),
        asked=asked,
    )


def is_ci(environ: Mapping[str, str]) -> bool:
    """Whether CI is set to anything but a no."""
    return environ.get("CI", "").lower() not in ("", "0", "false", "no")


def find_asked(expression: str) -> frozenset[Device]:
    """The devices that a `-m` expression asks for: named, and not right after `not`."""
    words = re.findall(r"\w+", expression)
    asked = {word for word, before in zip(words, ["", *words], strict=False) if before != "not"}
    return frozenset(cast("set[Device]", asked & {"cpu", "gpu"}))


def _shorten(path: Path) -> Path:
    """Relative to here where that is shorter to read."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - resolves `..`, keeps symlinks
    here = Path.cwd()
    return absolute.relative_to(here) if absolute.is_relative_to(here) else absolute
