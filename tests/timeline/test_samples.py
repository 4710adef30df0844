"""Columns by device, restricted to the window."""

from typing import Any

import numpy as np

from grpo_perf.timeline.samples import HOST, has_bits, measure_rate, read_column, read_gpu_column, select_rows
from tests.builders import make_samples

ROWS: list[dict[str, Any]] = [
    {"t0_ns": 0, "t1_ns": 10, "device": 0, "busy_fraction": 0.5, "throttle_reasons": 0},
    {"t0_ns": 0, "t1_ns": 10, "device": -1, "host_busy_fraction": 0.25, "sampler_cpu_s": 1.0},
    {"t0_ns": 10, "t1_ns": 20, "device": 0, "busy_fraction": None, "throttle_reasons": 0x28},
    {"t0_ns": 20, "t1_ns": 30, "device": 0, "busy_fraction": 1.0, "throttle_reasons": None},
    {"t0_ns": 20, "t1_ns": 30, "device": -1, "host_busy_fraction": 0.5, "sampler_cpu_s": 1.5},
]


def test_rows_of_each_device_that_overlap_the_window() -> None:
    rows = select_rows(make_samples(ROWS), np.array([10, 25]), num_gpus=1)
    busy = read_column(rows, "busy_fraction")
    assert busy[0].starts_ns.tolist() == [20]  # the null row covers nothing
    assert busy[0].values.tolist() == [1.0]
    assert read_column(rows, "host_busy_fraction")[HOST].values.tolist() == [0.5]


def test_a_gpu_without_rows_is_not_forgotten() -> None:
    """Two GPUs should be there; means over the one that answered would be half a truth."""
    rows = select_rows(make_samples(ROWS), np.array([0, 30]), num_gpus=2)
    found = read_gpu_column(rows, "busy_fraction")
    assert {device: sampled.num_rows for device, sampled in found.items()} == {0: 2, 1: 0}


def test_gpu_indices_need_not_start_at_zero() -> None:
    only_gpu_3 = [{**row, "device": 3} for row in ROWS if row["device"] == 0]
    assert list(read_gpu_column(select_rows(make_samples(only_gpu_3), np.array([0, 30]), num_gpus=1), "power_w")) == [3]


def test_no_window_and_no_samples() -> None:
    none = np.array([], dtype=np.int64)
    assert read_column(select_rows(make_samples(ROWS), none, num_gpus=1), "busy_fraction")[0].num_rows == 0
    assert read_column(select_rows(make_samples([]), np.array([0, 9]), num_gpus=0), "busy_fraction") == {}


def test_bits_of_a_mask() -> None:
    throttle = read_column(select_rows(make_samples(ROWS), np.array([0, 30]), num_gpus=1), "throttle_reasons")[0]
    assert throttle.values.tolist() == [0.0, 40.0]  # the null row is dropped
    assert has_bits(throttle, 0x20).values.tolist() == [0.0, 1.0]
    assert has_bits(throttle, 0x40).values.tolist() == [0.0, 0.0]


def test_rate_of_a_counter() -> None:
    rows = select_rows(make_samples(ROWS), np.array([0, 30]), num_gpus=0)
    assert measure_rate(read_column(rows, "sampler_cpu_s")[HOST]) == 0.5 / 20e-9
    assert measure_rate(read_column(rows, "sampler_cpu_s")[0]) is None
