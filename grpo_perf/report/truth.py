"""Tables of the checks of the measurement itself."""

from collections.abc import Mapping, Sequence

from tabulate import tabulate

from grpo_perf.types import Scalar
from grpo_perf.units import NA, format_percent

Row = Mapping[str, Scalar]


def render_loads(rows: Sequence[Row]) -> list[str]:
    """A row a known load. Keys: load, known, busy, error, row_error, nvml (fractions), clock_error_s, num_rows."""
    headers = ("load", "known", "busy", "error", "one sample", "NVML", "NVML error", "samples")
    cells = [
        (
            row["load"],
            _percent(row["known"]),
            _percent(row["busy"]),
            _points(row["error"]),
            f"± {_points(row['row_error']).lstrip('+')}",
            _percent(row["nvml"]),
            _points(_subtract(row["nvml"], row["known"])),
            row["num_rows"],
        )
        for row in rows
    ]
    return tabulate(cells, headers=headers, disable_numparse=True, colalign=("left", *["right"] * 7)).splitlines()


def render_phases(rows: Sequence[Row]) -> list[str]:
    """A row a phase of the traced step. Keys: phase, num_rows, busy, kernels, both (fractions)."""
    headers = ("phase", "samples", "busy", "kernels", "error", "kernels + copies", "error")
    cells = [
        (
            row["phase"],
            row["num_rows"],
            _percent(row["busy"]),
            _percent(row["kernels"]),
            _points(_subtract(row["busy"], row["kernels"])),
            _percent(row["both"]),
            _points(_subtract(row["busy"], row["both"])),
        )
        for row in rows
    ]
    return tabulate(cells, headers=headers, disable_numparse=True, colalign=("left", *["right"] * 6)).splitlines()


def _percent(value: Scalar) -> str:
    return format_percent(value, digits=2) if isinstance(value, float) else NA


def _points(value: Scalar) -> str:
    """A difference of two shares, in points of a percent."""
    return f"{value * 100:+.2f}" if isinstance(value, float) else NA


def _subtract(a: Scalar, b: Scalar) -> float | None:
    return a - b if isinstance(a, float) and isinstance(b, float) else None
