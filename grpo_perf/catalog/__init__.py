"""What is measured: workloads and tiers from TOML, and the command line of a cell."""

from grpo_perf.catalog.cells import change_workload, hash_workload, list_cells, resolve_cell
from grpo_perf.catalog.compose import Paths, RolloutEngine, compose
from grpo_perf.catalog.load import Catalog, load_catalog
from grpo_perf.catalog.names import nearest

__all__ = [
    "Catalog",
    "Paths",
    "RolloutEngine",
    "change_workload",
    "compose",
    "hash_workload",
    "list_cells",
    "load_catalog",
    "nearest",
    "resolve_cell",
]
