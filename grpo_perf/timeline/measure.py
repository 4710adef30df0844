"""One record in, every metric out.

    spans  ──> window, partition ──┬──> loops.py    time, phases, gap, tokens
    samples ──> rows ──────────────┼──> devices.py  busy, idle by phase, memory, power, coverage
    steps  ──> numbers of steps ───┼──> health.py   loss, KL, timing check
                                   └──> validity.py may it be judged?

Everything is computed from the record alone, so that a stored run can be measured again anywhere.
"""

from grpo_perf.metrics import REGISTRY
from grpo_perf.record import RunMeta, RunRecord
from grpo_perf.timeline.devices import measure_devices
from grpo_perf.timeline.health import measure_health
from grpo_perf.timeline.lanes import TRAINER, Partition, cut_partition, find_crossings
from grpo_perf.timeline.loops import measure_loops
from grpo_perf.timeline.samples import Rows, select_rows
from grpo_perf.timeline.validity import find_invalid_reasons, find_warnings
from grpo_perf.timeline.values import missing, single
from grpo_perf.timeline.window import Window, find_window
from grpo_perf.types import Measurement, MetricValue
from grpo_perf.units import NS_PER_S

_FAMILIES_ONLY = frozenset({"phase_s", "phase_to_rest"})
"""Registry entries that exist only as `name/<phase>`."""


def measure(record: RunRecord) -> Measurement:
    """Every metric of the registry and its families over the steady window, and whether the run may be judged.

    A metric that cannot be measured has the value None and a reason; nothing raises for a broken run.
    """
    meta = record.meta
    window = find_window(record)
    partition = cut_loops(record, window)
    num_gpus = meta.hardware.num_devices if meta.hardware.device == "gpu" else 0
    rows = select_rows(record.samples, window.edges_ns, num_gpus=num_gpus)
    metrics = _measure_all(record, window, partition, rows)
    crossings = find_crossings(record.spans)
    return Measurement(
        run_id=meta.run_id,
        workload=meta.workload.name,
        tier=meta.tier.name,
        hardware=meta.hardware.key,
        num_loops=window.num_loops,
        metrics=metrics,
        fingerprint=meta.fingerprint,
        invalid_reasons=find_invalid_reasons(record, window, rows, metrics, crossings),
        warnings=find_warnings(record, window, rows, crossings),
        faults=list(meta.faults),
    )


def cut_loops(record: RunRecord, window: Window) -> Partition:
    """The trainer's lane of the steady loops, each instant owned by its innermost span."""
    return cut_partition((span for span in record.spans if span.lane == TRAINER), window.edges_ns)


def _measure_all(record: RunRecord, window: Window, partition: Partition, rows: Rows) -> dict[str, MetricValue]:
    """Every registry entry and family, in the registry's order; `no steady loop` where there is none."""
    reason = f"no steady loop: {window.num_steps} steady steps recorded after {window.first} of warm-up"
    measured = {name: missing(reason) for name in REGISTRY if name not in _FAMILIES_ONLY}
    if window.num_loops:
        measured |= measure_loops(window, partition, record.meta)
        measured |= measure_devices(rows, window, partition, record.meta)
    measured |= measure_health(record, window)
    measured["start_up_s"] = _measure_start_up(window, record.meta)
    return measured


def _measure_start_up(window: Window, meta: RunMeta) -> MetricValue:
    """Seconds from the launch of verl to the start of the first step."""
    if meta.launched_ns is None:
        return missing("the launch was not recorded")
    if not window.spans:
        return missing("no step began")
    return single((window.spans[0].t0_ns - meta.launched_ns) / NS_PER_S)
