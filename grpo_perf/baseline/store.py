"""Baselines on disk: one file a cell, made to be read in a diff.

baselines/1xNVIDIA-H200/qwen2.5-1.5b/dynamic-batch.json
          hardware      workload     tier                  sorted keys, one metric a line, 5 significant digits
"""

import json
import re
import statistics
from pathlib import Path
from typing import Any

import msgspec

from grpo_perf.errors import BaselineError
from grpo_perf.metrics import REGISTRY, get_metric
from grpo_perf.record import replace_file
from grpo_perf.types import Baseline
from grpo_perf.verdict.commands import create_command
from grpo_perf.verdict.stats import summarize_runs

SCHEMA_VERSION = 1
_SAFE_NAME = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]*")
_ROUNDED_WITHIN = 1e-3  # 5 digits of samples and median; anything beyond was edited by hand


def baseline_path(root: Path, hardware: str, workload: str, tier: str) -> Path:
    """The file of a cell's baseline.

    Raises:
        BaselineError: a name that could leave the folder or hide in it.
    """
    for kind, name in (("hardware", hardware), ("workload", workload), ("tier", tier)):
        if _SAFE_NAME.fullmatch(name) is None:
            raise BaselineError(
                f"{kind} {name!r} cannot name a baseline file under {root}: only letters, digits and . _ + - are "
                f"allowed, and no dot first. Rename the {kind}."
            )
    return root / hardware / workload / f"{tier}.json"


def load_baseline(root: Path, hardware: str, workload: str, tier: str) -> Baseline | None:
    """A cell's baseline; None where there is no file.

    Raises:
        BaselineError: the file cannot be read, is of another schema version, was edited, or is of another cell.
    """
    path = baseline_path(root, hardware, workload, tier)
    again = f"Restore it (git checkout -- {path}) or measure again: {create_command(hardware, tier)}"
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise BaselineError(f"{path} cannot be read: {error.strerror}. {again}") from error
    _check_version(path, data, again)
    try:
        baseline = msgspec.json.decode(data, type=Baseline)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BaselineError(f"{path} is no baseline: {error}. {again}") from error
    _check_cell(path, baseline, (hardware, workload, tier), again)
    _check_metrics(path, baseline, again)
    return baseline


def save_baseline(root: Path, baseline: Baseline) -> Path:
    """Write a baseline, all of it or nothing, and return its path.

    Raises:
        BaselineError: a bad name, or the file cannot be written; the file that was there is untouched then.
    """
    path = baseline_path(root, baseline.hardware, baseline.workload, baseline.tier)
    try:
        replace_file(path, format_baseline(baseline))
    except OSError as error:
        runs = ", ".join(baseline.provenance.run_ids) or "the runs"
        command = create_command(baseline.hardware, baseline.tier)
        raise BaselineError(
            f"{path} cannot be written: {error.strerror}. Nothing is lost: the file that was there is untouched and "
            f"{runs} are kept. Make room or the folder writable, then: {command}"
        ) from error
    return path


def format_baseline(baseline: Baseline) -> str:
    """The file's text: sorted keys, one metric a line, numbers of metrics with 5 significant digits."""
    data: dict[str, Any] = msgspec.to_builtins(baseline)
    metrics = {name: _round(metric) for name, metric in sorted(data.pop("metrics").items())}
    lines = [f"  {json.dumps(name)}: {_dump(metric)}" for name, metric in metrics.items()]
    parts = {key: json.dumps(value, indent=1, sort_keys=True).replace("\n", "\n ") for key, value in data.items()}
    parts["metrics"] = "{\n" + ",\n".join(lines) + "\n }" if lines else "{}"
    return "{\n" + ",\n".join(f' "{key}": {parts[key]}' for key in sorted(parts)) + "\n}\n"


def _dump(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _round(value: Any) -> Any:
    """The same structure with every float at 5 significant digits: more is noise, and makes diffs unreadable."""
    if isinstance(value, dict):
        return {key: _round(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_round(item) for item in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _check_version(path: Path, data: bytes, again: str) -> None:
    try:
        content = json.loads(data)
    except ValueError as error:
        raise BaselineError(f"{path} is no JSON: {error}. {again}") from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SCHEMA_VERSION:
        raise BaselineError(
            f"{path} has schema version {version!r}, this grpo-perf reads version {SCHEMA_VERSION}. "
            f"Use the grpo-perf that wrote it. {again}"
        )


def _check_cell(path: Path, baseline: Baseline, expected: tuple[str, str, str], again: str) -> None:
    found = (baseline.hardware, baseline.workload, baseline.tier)
    if found != expected:
        raise BaselineError(
            f"{path} is the baseline of {found[1]}/{found[2]} on {found[0]}, not of {expected[1]}/{expected[2]} on "
            f"{expected[0]}: it was copied or renamed. {again}"
        )


def _check_metrics(path: Path, baseline: Baseline, again: str) -> None:
    """Medians follow from the samples: one that does not was edited, and a gate must not be loosened that way."""
    for name, metric in baseline.metrics.items():
        if name.partition("/")[0] not in REGISTRY:
            raise BaselineError(f"{path} has a metric {name!r} that this grpo-perf does not know. {again}")
        if not metric.samples or not all(metric.samples):
            raise BaselineError(f"{path} has no samples of {name}. {again}")
        if baseline.kind == "ratio":
            expected = statistics.median(value for loops in metric.samples for value in loops)
        else:
            expected = summarize_runs(metric.samples, get_metric(name).aggregation)
        if abs(expected - metric.median) > _ROUNDED_WITHIN * abs(expected) or metric.spread < 0:
            raise BaselineError(
                f"{path}: the median of {name} is {metric.median}, its samples give {expected:.5g}: it was edited by "
                f"hand. {again}"
            )
