"""Hydra overrides as plain data: checked where they enter, merged by key, rendered so that Hydra takes them literally.

    {"+actor.x": "a b"}  --check_overrides-->  --merge_overrides-->  --render_overrides-->  ["+actor.x='a b'"]

Nothing in an override is ever evaluated: no interpolation, no `_target_`, no sweep, no function of Hydra's grammar.
"""

import math
import re
from collections.abc import Mapping

from grpo_perf.errors import UsageError
from grpo_perf.types import Overrides, OverrideValue, Scalar

_KEY = re.compile(r"(?P<prefix>\+{0,2})(?P<bare>[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*)")
_DICT_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_RESERVED = {"true", "false", "null", "inf", "nan"}  # words of Hydra's grammar, in any case
_INSTANTIATION = re.compile(r"_[a-z]+_")  # `_target_`, `_partial_`, `_args_`: Hydra's object construction
_COMMANDS = {"finish_hook_cmd", "py_executable"}  # verl runs their values as a shell command or interpreter


def split_key(key: str) -> tuple[str, str]:
    """(`+`, `a.b`) of `+a.b`."""
    bare = key.lstrip("+")
    return key[: len(key) - len(bare)], bare


def check_overrides(overrides: Mapping[str, OverrideValue], where: str) -> None:
    """Accept only keys and values that verl takes literally.

    Raises:
        UsageError: names the key and `where` it stands.
    """
    for key, value in overrides.items():
        _check_key(key, where)
        _check_value(key, value, where)


def _check_key(key: str, where: str) -> None:
    match = _KEY.fullmatch(key)
    if match is None:
        hint = " Hydra's keys have no leading '--'." if key.startswith("-") else ""
        raise UsageError(
            f"{where}: override key {key!r} is not a dotted name of letters, digits and '_'.{hint} "
            "Write it like actor_rollout_ref.actor.strategy, with + or ++ in front for a key verl does not have."
        )
    segments = match["bare"].split(".")
    if segments[0] == "hydra":
        raise UsageError(f"{where}: override key {key!r} would change Hydra itself, not verl. Remove it.")
    for segment in segments:
        _check_segment(segment, key, where)


def _check_segment(segment: str, key: str, where: str) -> None:
    if _INSTANTIATION.fullmatch(segment):
        raise UsageError(f"{where}: {segment!r} in override {key!r} names an object to construct. Remove it.")
    if segment in _COMMANDS:
        raise UsageError(f"{where}: override {key!r} would run a command. Remove it, and run the command yourself.")


def _check_value(key: str, value: OverrideValue, where: str) -> None:
    if isinstance(value, dict):
        if "." not in key:
            raise UsageError(
                f"{where}: {key!r} is a table. Quote dotted keys in TOML: "
                f'"{key}.{next(iter(value), "name")}" = ..., or TOML nests them.'
            )
        for name, item in value.items():
            if not _DICT_KEY.fullmatch(name):
                raise UsageError(
                    f"{where}: {name!r} in override {key!r} is not a name of letters, digits, '_' and '-'."
                )
            _check_segment(name, key, where)
            _check_scalar(key, item, where)
    elif isinstance(value, list):
        for item in value:
            _check_scalar(key, item, where)
    else:
        _check_scalar(key, value, where)


def _check_scalar(key: str, value: Scalar, where: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{where}: override {key!r} is {value}. Give it a finite number.")
    if not isinstance(value, str):
        return
    if "${" in value:
        raise UsageError(
            f"{where}: override {key!r} holds {value!r}, which Hydra would interpolate. Write the value out."
        )
    if value.strip() == "???":
        raise UsageError(f"{where}: override {key!r} is '???', Hydra's mark for a missing value. Give it a value.")
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise UsageError(f"{where}: override {key!r} holds {value!r} with control characters. Remove them.")


def merge_overrides(*layers: Mapping[str, OverrideValue]) -> Overrides:
    """One value a key, that of the last layer that sets it, whatever its prefix.

    Where layers disagree on the prefix the key becomes `++`, which Hydra accepts for known and for new keys.
    """
    merged: dict[str, tuple[str, OverrideValue]] = {}
    for layer in layers:
        for key, value in layer.items():
            prefix, bare = split_key(key)
            before = merged.pop(bare, None)
            merged[bare] = (prefix if before is None or before[0] == prefix else "++", value)
    return {prefix + bare: value for bare, (prefix, value) in merged.items()}


def drop_overrides(overrides: Mapping[str, OverrideValue], keys: set[str]) -> Overrides:
    """The overrides without those whose bare key is in `keys`."""
    return {key: value for key, value in overrides.items() if split_key(key)[1] not in keys}


def expand_overrides(overrides: Mapping[str, OverrideValue], values: Mapping[str, str], where: str) -> Overrides:
    """The overrides with `{placeholder}` replaced in their strings.

    Raises:
        UsageError: a placeholder that is not one of `values`.
    """

    def expand(key: str, value: Scalar) -> Scalar:
        if not isinstance(value, str):
            return value
        for name in _PLACEHOLDER.findall(value):
            if name not in values:
                known = ", ".join(f"{{{name}}}" for name in values)
                raise UsageError(
                    f"{where}: override {key!r} holds the unknown placeholder {{{name}}}. There is: {known}."
                )
        return _PLACEHOLDER.sub(lambda match: values[match[1]], value)

    expanded: Overrides = {}
    for key, value in overrides.items():
        if isinstance(value, list):
            expanded[key] = [expand(key, item) for item in value]
        elif isinstance(value, dict):
            expanded[key] = {name: expand(key, item) for name, item in value.items()}
        else:
            expanded[key] = expand(key, value)
    return expanded


def render_overrides(overrides: Mapping[str, OverrideValue]) -> list[str]:
    """`key=value` arguments in Hydra's grammar, one an override."""
    return [f"{key}={_render(value)}" for key, value in overrides.items()]


def _render(value: OverrideValue) -> str:
    if isinstance(value, list):
        return f"[{','.join(_render_scalar(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{name}:{_render_scalar(item)}' for name, item in value.items())}}}"
    return _render_scalar(value)


def _render_scalar(value: Scalar) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    # Hydra unescapes a quote and the backslashes right before it (or before the closing quote), and nothing else.
    escaped = re.sub(r"(\\+)(?='|$)", r"\1\1", value).replace("'", r"\'")
    return f"'{escaped}'"
