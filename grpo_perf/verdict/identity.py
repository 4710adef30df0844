"""Which differences between two fingerprints forbid a comparison, which are its subject, and which only warn.

identity   device, count, workload hash ...   differs -> ENV_MISMATCH, names the field
subject    verl, vllm, overrides ...          differs -> printed beside the verdict: this is what is judged
host       driver, kernel, CPU ...            differs -> warning
"""

import math
from collections.abc import Mapping

from grpo_perf.types import Fingerprint, Scalar
from grpo_perf.units import NA

_OVERRIDE = "override:"
# Drivers report total memory and power limits a little differently; a real difference of model or limit is larger.
_SAME_WITHIN = 0.01


def compare_identity(baseline: Fingerprint, current: Fingerprint) -> list[str]:
    """Identity fields that differ, as `device_name NVIDIA H100 -> NVIDIA H200`."""
    return _list_differences(baseline.identity, current.identity)


def compare_subject(baseline: Fingerprint, current: Fingerprint) -> list[str]:
    """Versions, overrides and configuration that differ, as `verl 0.9.0 -> 0.9.1`."""
    return _list_differences(baseline.subject, current.subject)


def compare_host(baseline: Fingerprint, current: Fingerprint) -> list[str]:
    """Warnings on host fields that differ, as `host differs from the baseline: driver 580 -> 590`."""
    return [f"host differs from the baseline: {text}" for text in _list_differences(baseline.host, current.host)]


def _list_differences(before: Mapping[str, Scalar], after: Mapping[str, Scalar]) -> list[str]:
    differing = (key for key in sorted({*before, *after}) if not _is_same(before.get(key), after.get(key)))
    return [f"{key.removeprefix(_OVERRIDE)} {_show(key, before)} -> {_show(key, after)}" for key in differing]


def _is_same(before: Scalar, after: Scalar) -> bool:
    if isinstance(before, float) or isinstance(after, float):
        return _is_number(before) and _is_number(after) and math.isclose(before, after, rel_tol=_SAME_WITHIN)  # type: ignore[arg-type]
    return type(before) is type(after) and before == after


def _is_number(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _show(key: str, values: Mapping[str, Scalar]) -> str:
    if values.get(key) is not None:
        return str(values[key])
    return "(not set)" if key.startswith(_OVERRIDE) and key not in values else NA
