"""The cells that a session could measure, each with the claims that can be made about it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_perf.catalog import list_cells, resolve_cell
from grpo_perf.errors import UsageError
from grpo_perf.record import load_meta
from grpo_perf.runner.judging import cell_name
from grpo_perf.runner.options import RunnerOptions
from grpo_perf.types import Cell, Device, Target, Tier
from grpo_perf.verdict import claim_names

_ABSOLUTE = ("measurement", "training_health")
"""Claims that no baseline takes part in, like those on targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSpec:
    """A cell as the tests see it, before it is run."""

    name: str
    device: Device
    claims: tuple[str, ...]
    relative: frozenset[str] = frozenset()
    """Those of the claims that compare with the baseline."""
    base: str | None = None
    """The cell of the tier it builds on."""
    reference: str | None = None
    """The cell that has to run in the same session, because this one is judged by its ratio to it."""


def resolve(options: RunnerOptions, name: str) -> Cell:
    """The complete cell, with this session's changes to workload and overrides.

    Raises:
        UsageError: unknown workload, tier, field or key.
    """
    if options.catalog is None:
        raise UsageError(f"Nothing is known of {name!r}: only the runs given with --perf-from are judged.")
    workload = options.catalog.workloads.get(name.partition("/")[0])
    return resolve_cell(
        options.catalog,
        name,
        options.hardware_for(workload.device if workload else options.hardware.device).key,
        workload_changes=options.workload_changes,
        extra_overrides=options.extra_overrides,
    )


def find_reference(cell: Cell) -> str | None:
    """The cell whose run a ratio claim needs; on GPUs seconds are compared and none is needed."""
    return cell.base_name if cell.workload.device == "cpu" else None


def specify(options: RunnerOptions, name: str) -> CellSpec:
    """A cell by name, as the tests see it.

    Raises:
        UsageError: unknown workload or tier.
    """
    cell = resolve(options, name)
    return _describe(cell.name, cell.workload.device, cell.tier, cell.targets, find_reference(cell))


def list_specs(options: RunnerOptions, devices: Iterable[Device]) -> list[CellSpec]:
    """Every cell that fits this machine, base tiers first; with stored runs, exactly their cells."""
    if options.stored:
        return order_specs([_describe_stored(name, path) for name, path in options.stored.items()])
    if options.catalog is None:
        return []
    specs = []
    for device in devices:
        names = list_cells(options.catalog, device, options.hardware_for(device).num_devices)
        specs += order_specs([specify(options, name) for name in names])
    return specs


def find_stored(paths: Iterable[Path]) -> dict[str, Path]:
    """Cell name -> folder of the given stored runs.

    Raises:
        RecordError: no run folder, truncated, or of another schema version.
        UsageError: two runs of one cell.
    """
    stored: dict[str, Path] = {}
    for path in paths:
        name = cell_name(load_meta(path))
        if name in stored:
            raise UsageError(f"--perf-from: {stored[name]} and {path} are both of {name!r}. Give one run a cell.")
        stored[name] = path
    return stored


def order_specs(specs: Sequence[CellSpec]) -> list[CellSpec]:
    """The same cells in the same order, except that a base comes before what builds on it."""
    by_name = {spec.name: spec for spec in specs}
    ordered: dict[str, CellSpec] = {}
    for spec in specs:
        _place(spec, by_name, ordered)
    return list(ordered.values())


def _place(spec: CellSpec, by_name: Mapping[str, CellSpec], ordered: dict[str, CellSpec]) -> None:
    base = by_name.get(spec.base or "")
    if base is not None and base.name not in ordered:
        _place(base, by_name, ordered)
    ordered.setdefault(spec.name, spec)


def _describe_stored(name: str, path: Path) -> CellSpec:
    meta = load_meta(path)
    return _describe(name, meta.workload.device, meta.tier, meta.targets, reference=None)


def _describe(name: str, device: Device, tier: Tier, targets: Mapping[str, Target], reference: str | None) -> CellSpec:
    claims = claim_names(device=device, tier=tier, targets=targets)
    return CellSpec(
        name=name,
        device=device,
        claims=tuple(claims),
        relative=frozenset(claims) - set(_ABSOLUTE) - set(targets),
        base=f"{name.partition('/')[0]}/{tier.builds_on}" if tier.builds_on else None,
        reference=reference,
    )
