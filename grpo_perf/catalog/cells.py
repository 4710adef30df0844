"""Cells: a workload under a tier, with the tier's chain, the device's variant and the hardware's targets resolved.

untuned <- dynamic-batch <- recommended        base first; a later tier replaces a key
   each: overrides - not_translated + cpu.overrides   (CPU workloads only)
then the workload's own overrides, then the caller's
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from grpo_perf.catalog.load import Catalog, chain_tiers, convert_fields
from grpo_perf.catalog.names import suggest
from grpo_perf.catalog.overrides import drop_overrides, merge_overrides, split_key
from grpo_perf.catalog.validate import check_settings, check_workload
from grpo_perf.errors import UsageError
from grpo_perf.types import Cell, Device, Overrides, Target, Tier, Tolerance, Workload

_NO_WORK = {
    "name",
    "description",
    "tiers",
    "num_warmup_steps",
    "num_steady_steps",
    "steps_by_tier",
    "start_up_timeout_s",
    "step_timeout_s",
}


def resolve_cell(
    catalog: Catalog,
    name: str,
    hardware_key: str,
    *,
    workload_changes: Mapping[str, object] | None = None,
    extra_overrides: Overrides | None = None,
) -> Cell:
    """The cell `workload/tier`, complete.

    Args:
        workload_changes: fields to replace, such as `num_steady_steps` or `model.path`.
        extra_overrides: Hydra overrides that win over those of tier and workload.

    Raises:
        UsageError: unknown workload, tier, field or override key.
    """
    workload_name, tier_name = _split_name(catalog, name)
    workload = _choose_steps(catalog.workloads[workload_name], tier_name)
    workload = change_workload(workload, workload_changes or {})
    extra = extra_overrides or {}
    check_settings(extra, "the extra overrides")
    chain = chain_tiers(catalog, tier_name)
    overrides, not_translated = _merge_chain(chain, workload.device)
    return Cell(
        workload=workload,
        tier=_resolve_tier(chain, workload.device),
        overrides=merge_overrides(overrides, workload.overrides, extra),
        not_translated=not_translated,
        targets=_find_targets(chain[-1], hardware_key, workload_name),
    )


def _choose_steps(workload: Workload, tier: str) -> Workload:
    num_steps = workload.steps_by_tier.get(tier, workload.num_steady_steps)
    return replace(workload, num_steady_steps=num_steps)


def list_cells(catalog: Catalog, device: Device, num_gpus: int) -> list[str]:
    """Names of the cells that fit the device, workloads by name, tiers in the order of the workload's file."""
    return [
        f"{workload.name}/{tier}"
        for workload in catalog.workloads.values()
        if workload.device == device and (device == "cpu" or workload.num_gpus <= num_gpus)
        for tier in workload.tiers
    ]


def change_workload(workload: Workload, changes: Mapping[str, object]) -> Workload:
    """The workload with fields replaced; `model.path` reaches into the model.

    Raises:
        UsageError: an unknown field, or a value it cannot have.
    """
    if not changes:
        return workload
    data: dict[str, Any] = msgspec.to_builtins(workload)
    for key, value in changes.items():
        head, _, rest = key.partition(".")
        if head == "name" or (rest and head != "model"):
            raise UsageError(
                f"workload {workload.name!r}: {key!r} cannot be changed. Copy its TOML file under a new name."
            )
        if rest:
            data["model"] = {**data["model"], rest: value}
        else:
            data[key] = value
    where = f"changes to workload {workload.name!r}"
    changed = convert_fields(data, Workload, where)
    check_workload(changed, where)
    return changed


def hash_workload(workload: Workload) -> str:
    """12 hex digits over everything that changes the work of a step; not over how long or how it is watched."""
    data = {key: value for key, value in msgspec.to_builtins(workload).items() if key not in _NO_WORK}
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _split_name(catalog: Catalog, name: str) -> tuple[str, str]:
    workload, slash, tier = name.partition("/")
    if not slash or "/" in tier:
        raise UsageError(f"{name!r} is not a cell name WORKLOAD/TIER, such as {_example(catalog)}.")
    _check_known(workload, catalog.workloads, "workload", catalog)
    _check_known(tier, catalog.tiers, "tier", catalog)
    return workload, tier


def _check_known(name: str, known: Mapping[str, object], kind: str, catalog: Catalog) -> None:
    if name not in known:
        raise UsageError(
            f"There is no {kind} {name!r} in {catalog.path / f'{kind}s'}.{suggest(name, known)} "
            f"There are: {', '.join(known) or 'none'}. See them all: pytest perf_tests --collect-only -q"
        )


def _example(catalog: Catalog) -> str:
    for workload in catalog.workloads.values():
        if workload.tiers:
            return f"{workload.name}/{workload.tiers[0]}"
    return "cpu-tiny/untuned"


def _merge_chain(chain: list[Tier], device: Device) -> tuple[Overrides, dict[str, str]]:
    merged: Overrides = {}
    not_translated: dict[str, str] = {}
    for tier in chain:
        if device != "cpu":
            merged = merge_overrides(merged, tier.overrides)
            continue
        dropped = {split_key(key)[1] for key, value in tier.cpu.overrides.items() if value is None}
        kept = {key: value for key, value in tier.cpu.overrides.items() if value is not None}
        own = drop_overrides(tier.overrides, set(tier.cpu.not_translated))
        merged = drop_overrides(merge_overrides(merged, own, kept), dropped)
        for key in merge_overrides(own, kept):
            not_translated.pop(split_key(key)[1], None)
        not_translated |= tier.cpu.not_translated
    return merged, not_translated


def _resolve_tier(chain: list[Tier], device: Device) -> Tier:
    tolerances: dict[str, Tolerance] = {}
    for tier in chain:
        tolerances |= tier.tolerances
    for tier in chain if device == "cpu" else []:  # after all others: no GPU tolerance of a later tier tightens them
        tolerances |= tier.cpu.tolerances
    tier = chain[-1]
    phases = tier.gated_phases
    if device == "cpu" and tier.cpu.gated_phases is not None:
        phases = tier.cpu.gated_phases
    return replace(tier, tolerances=tolerances, gated_phases=phases, builds_on=_find_base(chain, device))


def _find_base(chain: list[Tier], device: Device) -> str | None:
    # A base that changes nothing on this device (fsdp2-prefetch on CPU) would only cost another run: go below it.
    bases = chain[:-1]
    while len(bases) > 1 and _merge_chain(bases, device)[0] == _merge_chain(bases[:-1], device)[0]:
        bases = bases[:-1]
    return bases[-1].name if bases else None


def _find_targets(tier: Tier, hardware: str, workload: str) -> dict[str, Target]:
    found: dict[str, Target] = {}
    for hardware_key in ("*", hardware):  # the more exact one wins
        for workload_key in ("*", workload):
            found |= tier.targets.get(hardware_key, {}).get(workload_key, {})
    return found
