"""Columns of the samples table as sampled values, by device.

    row   t0      t1     device  busy   power
          ├───────┤         0    0.9     600       one row covers [t0, t1] of one device
          ├───────┤         1    null    580       null: device 1 has no busy value in that time
                  ├──────┤  0    0.8     610

Only rows that overlap the steady window are touched. Device -1 is the host.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from grpo_perf.timeline.intervals import Sampled, Times, make_sampled

HOST = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """The rows of one window, those of each device together."""

    table: pa.Table
    row_numbers: NDArray[np.intp]
    """Row of the table, device by device, in the order of the table."""
    starts_ns: Times
    ends_ns: Times
    slices: dict[int, slice]
    """Where each device's rows lie in the three arrays."""


def select_rows(table: pa.Table, edges_ns: Times, *, num_gpus: int) -> Rows:
    """Rows that overlap [first edge, last edge), by device; a GPU that should have rows and has none is listed too."""
    starts, ends = _to_numpy(table, "t0_ns"), _to_numpy(table, "t1_ns")
    devices = _to_numpy(table, "device")
    inside = np.zeros(len(starts), dtype=bool)
    if len(edges_ns):
        inside = (ends > edges_ns[0]) & (starts < edges_ns[-1])
    picked = {device: np.flatnonzero(inside & (devices == device)) for device in _list_devices(devices, num_gpus)}
    bounds = np.cumsum([0, *map(len, picked.values())]).tolist()
    # Gathered once and not for each column: rows of a device are far apart in the table.
    row_numbers = np.concatenate([np.array([], dtype=np.intp), *picked.values()])
    return Rows(
        table=table,
        row_numbers=row_numbers,
        starts_ns=starts[row_numbers],
        ends_ns=ends[row_numbers],
        slices={device: slice(low, high) for device, (low, high) in zip(picked, pairwise(bounds), strict=True)},
    )


def read_column(rows: Rows, column: str) -> dict[int, Sampled]:
    """A column as one sampled value per device; a device without any value has no rows in it."""
    values = _to_numpy(rows.table, column)[rows.row_numbers].astype(np.float64)
    return {
        device: make_sampled(rows.starts_ns[of_device], rows.ends_ns[of_device], values[of_device])
        for device, of_device in rows.slices.items()
    }


def read_gpu_column(rows: Rows, column: str) -> dict[int, Sampled]:
    """The same without the host's rows."""
    return {device: sampled for device, sampled in read_column(rows, column).items() if device != HOST}


def has_bits(sampled: Sampled, mask: int) -> Sampled:
    """1 where a bit mask column shares a bit with `mask`, else 0."""
    shared = (sampled.values.astype(np.int64) & mask) != 0
    return Sampled(starts_ns=sampled.starts_ns, ends_ns=sampled.ends_ns, values=shared.astype(np.float64))


def measure_rate(sampled: Sampled) -> float | None:
    """Growth per second of a counter that is read at the end of each row; None with fewer than two readings."""
    if sampled.num_rows < 2:
        return None
    grown = float(sampled.values[-1] - sampled.values[0])
    return grown / (float(sampled.ends_ns[-1] - sampled.ends_ns[0]) / 1e9)


def _list_devices(devices: NDArray[np.int16], num_gpus: int) -> list[int]:
    """Devices that have rows anywhere in the run, and enough silent GPUs beside them to make `num_gpus`."""
    found = np.unique(devices).tolist()
    silent = [device for device in range(num_gpus) if device not in found]
    num_silent = max(0, num_gpus - sum(device != HOST for device in found))
    return sorted(found + silent[:num_silent])


def _to_numpy(table: pa.Table, column: str) -> NDArray[Any]:
    """A column without its nulls' mask: they become NaN (whole numbers become floats then)."""
    values: NDArray[Any] = table.column(column).to_numpy()
    return values
