"""Busy and idle seconds by device, loop and phase: samples overlapped with the innermost-span segments.

    segments   │  gen  │u│ ref │ update_actor │ gap │ gen
    rows       │  .9  │  .8  │  .1  │  1.  │ null │  .9         a row is shared out by overlap, never counted
    busy of ref     = sum over rows of overlap x value
    covered of ref  = sum over rows of overlap                  null and gaps cover nothing

Idle of a cell is (1 - busy / covered) x its length: what no row covers is taken to be like the rest of the same cell,
so a lost row neither hides idle nor makes it up. Nothing covered is NaN here and `n/a` outside, never 0 and never
"all idle". With full coverage the phases add up to the loop exactly; under 98 % the run is invalid anyway.

Shapes: G devices, L loops, P phases.
"""
# ruff: noqa: N802, N806, N815  (shapes as suffixes)

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from grpo_perf.timeline.intervals import Sampled, Values, integrate
from grpo_perf.timeline.lanes import Partition
from grpo_perf.units import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attribution:
    """A busy fraction shared out over loops and phases."""

    partition: Partition
    devices: tuple[int, ...]
    """GPU indices, or the host's -1."""
    covered_s_GLP: Values
    busy_s_GLP: Values

    @property
    def length_s_LP(self) -> Values:
        """Own time of each phase in each loop, in seconds."""
        return self.partition.length_ns_LP / NS_PER_S

    @property
    def idle_s_GLP(self) -> Values:
        """Device-seconds not busy by phase; NaN where a phase took time and nothing covers it."""
        return _fill_idle(self.length_s_LP, self.covered_s_GLP, self.busy_s_GLP)

    @property
    def idle_s_GL(self) -> Values:
        """Device-seconds not busy by loop; NaN where nothing covers a loop."""
        return _fill_idle(self.length_s_LP.sum(axis=1), self.covered_s_GLP.sum(axis=2), self.busy_s_GLP.sum(axis=2))

    @property
    def busy_fraction_G(self) -> Values:
        """Busy share of the covered part of the steady window; NaN where nothing is covered."""
        return _divide(self.busy_s_GLP.sum(axis=(1, 2)), self.covered_s_GLP.sum(axis=(1, 2)))

    @property
    def busy_fraction_GL(self) -> Values:
        """The same by loop."""
        return _divide(self.busy_s_GLP.sum(axis=2), self.covered_s_GLP.sum(axis=2))

    @property
    def busy_fraction_GP(self) -> Values:
        """The same by phase, over the whole window."""
        return _divide(self.busy_s_GLP.sum(axis=1), self.covered_s_GLP.sum(axis=1))


def attribute(busy: Mapping[int, Sampled], partition: Partition) -> Attribution:
    """Busy seconds of each device shared out over the partition's loops and phases."""
    devices = tuple(sorted(busy))
    shape = (len(devices), partition.num_loops, len(partition.phases))
    covered_s_GLP, busy_s_GLP = np.zeros(shape), np.zeros(shape)
    for row, device in enumerate(devices):
        covered_ns_S, busy_ns_S = integrate(busy[device], partition.edges_ns)
        covered_s_GLP[row] = partition.sum_LP(covered_ns_S) / NS_PER_S
        busy_s_GLP[row] = partition.sum_LP(busy_ns_S) / NS_PER_S
    return Attribution(partition=partition, devices=devices, covered_s_GLP=covered_s_GLP, busy_s_GLP=busy_s_GLP)


def _divide(amount: Values, covered_s: Values) -> Values:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(covered_s > 0, amount / covered_s, np.nan)


def _fill_idle(length_s: Values, covered_s: Values, busy_s: Values) -> Values:
    idle = (1 - _divide(busy_s, covered_s)) * length_s
    return np.where(length_s > 0, idle, 0.0)
