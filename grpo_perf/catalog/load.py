"""Workloads and tiers from TOML: read strictly, so that a misspelt field is an error and never a silent default."""

import dataclasses
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from grpo_perf.catalog.names import check_name, suggest
from grpo_perf.catalog.overrides import split_key
from grpo_perf.catalog.validate import check_tier, check_workload
from grpo_perf.errors import UsageError
from grpo_perf.types import CpuVariant, Model, Target, Tier, Tolerance, Workload

T = TypeVar("T")

_NESTED: dict[type, dict[str, type]] = {Workload: {"model": Model}, Tier: {"cpu": CpuVariant}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """All workloads and tiers of a folder, each checked, tier chains complete."""

    path: Path
    workloads: dict[str, Workload]
    tiers: dict[str, Tier]


def load_catalog(path: Path) -> Catalog:
    """The catalogue of a folder with workloads/*.toml and tiers/*.toml.

    Raises:
        UsageError: no such folder, or a file that is no valid workload or tier (names file, field and remedy).
    """
    if not (path / "workloads").is_dir() or not (path / "tiers").is_dir():
        raise UsageError(
            f"{path} is no catalogue: it needs workloads/*.toml and tiers/*.toml. "
            "Run from the folder that holds perf_tests/, or name one: pytest --perf-catalog PATH"
        )
    tiers = {file.stem: _load_tier(file) for file in _list_files(path / "tiers")}
    workloads = {file.stem: _load_workload(file) for file in _list_files(path / "workloads")}
    catalog = Catalog(path=path, workloads=workloads, tiers=tiers)
    for name in tiers:
        chain_tiers(catalog, name)
    for workload in workloads.values():
        for name in workload.tiers:
            if name not in tiers:
                raise UsageError(
                    f"{path / 'workloads' / workload.name}.toml: tiers: there is no tier {name!r}."
                    f"{suggest(name, tiers)} Tiers: {', '.join(tiers)}."
                )
    return catalog


def chain_tiers(catalog: Catalog, name: str) -> list[Tier]:
    """The tier and what it builds on, base first.

    Raises:
        UsageError: an unknown `builds_on`, or tiers that build on each other.
    """
    chain: list[Tier] = []
    seen: list[str] = []
    current: str | None = name
    while current is not None:
        where = catalog.path / "tiers" / f"{seen[-1] if seen else name}.toml"
        if current not in catalog.tiers:
            raise UsageError(
                f"{where}: builds_on: there is no tier {current!r}.{suggest(current, catalog.tiers)} "
                f"Tiers: {', '.join(catalog.tiers)}."
            )
        if current in seen:
            circle = " -> ".join([*seen[seen.index(current) :], current])
            raise UsageError(f"{where}: builds_on goes in a circle: {circle}. Remove one builds_on.")
        seen.append(current)
        chain.insert(0, catalog.tiers[current])
        current = catalog.tiers[current].builds_on
    return chain


def convert_fields(data: dict[str, Any], type_: type[T], where: str) -> T:
    """`data` as a `type_`, with no unknown, missing or mistyped field.

    Raises:
        UsageError: names the field, the nearest field there is, and `where`.
    """
    _check_fields(data, type_, where)
    try:
        return msgspec.convert(data, type_)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {_explain(error)}") from error


def _list_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.toml"), key=lambda file: file.stem)


def _load_workload(file: Path) -> Workload:
    workload = convert_fields(_read_toml(file), Workload, str(file))
    check_workload(workload, str(file))
    return workload


def _load_tier(file: Path) -> Tier:
    data = _read_toml(file)
    cpu = data.get("cpu")
    if isinstance(cpu, dict) and isinstance(cpu.get("overrides"), dict):
        cpu["overrides"] = _read_nulls(cpu["overrides"])
    tier = convert_fields(data, Tier, str(file))
    check_tier(tier, str(file))
    return tier


def _read_toml(file: Path) -> dict[str, Any]:
    check_name(file.stem, str(file))
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file}{_line_of(error)}: not valid TOML: {error}. Mend that line.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}. It must be a UTF-8 text file.") from error
    if data.setdefault("name", file.stem) != file.stem:
        raise UsageError(f"{file}: name is {data['name']!r}, but the file is {file.name}. Leave the name out.")
    if isinstance(data.get("overrides"), dict):
        data["overrides"] = _read_nulls(data["overrides"])
    return data


def _read_nulls(overrides: dict[str, Any]) -> dict[str, Any]:
    # TOML has no null; the string stands for it, as it does on verl's own command line.
    return {key: None if value == "null" else value for key, value in overrides.items()}


def _line_of(error: tomllib.TOMLDecodeError) -> str:
    match = re.search(r"at line (\d+)", str(error))
    return f":{match[1]}" if match else ""


def _check_fields(data: dict[str, Any], type_: type, where: str, prefix: str = "") -> None:
    known = [field.name for field in dataclasses.fields(type_)]
    for name, value in data.items():
        if name not in known:
            hint = suggest(name, known)
            shown = ", ".join(field for field in known if field != "name")
            raise UsageError(f"{where}: unknown field {prefix + name!r}.{hint} Fields: {shown}.")
        nested = _NESTED.get(type_, {}).get(name)
        if nested is not None and isinstance(value, dict):
            _check_fields(value, nested, where, f"{prefix}{name}.")
        if name == "tolerances":
            _check_tables(value, Tolerance, where, f"{prefix}{name}.")
        if name == "targets":
            _check_targets(value, where)
    missing = [
        field.name
        for field in dataclasses.fields(type_)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    absent = [name for name in missing if name not in data]
    if absent:
        raise UsageError(f"{where}: {prefix + absent[0]!r} is missing. Add it.")


def _check_tables(value: object, type_: type, where: str, prefix: str) -> None:
    if isinstance(value, dict):
        for name, table in value.items():
            if isinstance(table, dict):
                _check_fields(table, type_, where, f"{prefix}{name}.")


def _check_targets(value: object, where: str) -> None:
    if isinstance(value, dict):
        for hardware, workloads in value.items():
            for workload, metrics in workloads.items() if isinstance(workloads, dict) else ():
                _check_tables(metrics, Target, where, f"targets.{hardware}.{workload}.")


def _explain(error: msgspec.ValidationError) -> str:
    text = str(error)
    match = re.search(r" - at `\$\.?(.*)`", text)
    if match is None:
        return f"{text}. Mend the value."
    field = split_key(match[1])[1] or "the file"
    hint = ' Quote dotted keys in TOML: "a.b.c" = 1.' if "overrides" in field else ""
    return f"{field}: {text[: match.start()]}.{hint} Mend the value."
