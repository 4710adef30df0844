"""Measurements small enough to check by hand.

Default GPU run: five loops of 10 s = gen 5 + ref 1 + update_actor 4; 50 GiB; 4 GPU-s idle a loop, 3 of them in gen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from grpo_perf.metrics import get_metric
from grpo_perf.types import (
    Baseline,
    BaselineMetric,
    CellVerdict,
    Claim,
    Fingerprint,
    Measurement,
    MetricValue,
    Provenance,
    Scalar,
    Tier,
)
from grpo_perf.verdict.stats import robust_spread, summarize_runs

GPU = "1xNVIDIA-H200"
STEADY = (10.0, 10.0, 10.0, 10.0, 10.0)
PHASES = {"gen": 5.0, "ref": 1.0, "update_actor": 4.0}
BASE_TIER = Tier(name="untuned", description="")
TIER = Tier(name="dynamic-batch", description="", builds_on="untuned", gated_phases=["update_actor"])
IDENTITY: dict[str, Scalar] = {
    "device_name": "NVIDIA H200",
    "num_devices": 1,
    "workload_hash": "abc",
    "memory_gib": 139.8,
}
SUBJECT: dict[str, Scalar] = {"verl": "0.9.0", "torch": "2.11.0", "override:actor.use_dynamic_bsz": True}
HOST: dict[str, Scalar] = {"driver": "580", "kernel": "6.1"}


def series(name: str, values: Sequence[float]) -> MetricValue:
    """A metric with loops."""
    return MetricValue(value=summarize_runs([values], get_metric(name).aggregation), series=list(values))


def make_measurement(
    loops: Sequence[float] = STEADY,
    *,
    run_id: str = "run-1",
    tier: str = "dynamic-batch",
    hardware: str = GPU,
    phases: Mapping[str, float] | None = None,
    metrics: Mapping[str, MetricValue | None] | None = None,
    identity: Mapping[str, Scalar] | None = None,
    subject: Mapping[str, Scalar] | None = None,
    host: Mapping[str, Scalar] | None = None,
    invalid_reasons: Sequence[str] = (),
    warnings: Sequence[str] = (),
    faults: Sequence[str] = (),
) -> Measurement:
    """A healthy run; phases keep their share of each loop unless given in seconds."""
    lengths = dict(PHASES if phases is None else phases)
    whole = sum(lengths.values())
    found: dict[str, MetricValue] = {
        "loop_time_s": series("loop_time_s", loops),
        "epoch_time_s": MetricValue(value=128 * series("loop_time_s", loops).value),  # type: ignore[operator]
        "effective_tokens_per_hour": series("effective_tokens_per_hour", [36_000_000 / loop for loop in loops]),
        "memory_used_gib": series("memory_used_gib", [50.0] * len(loops)),
        "loss": series("loss", [-0.1] * len(loops)),
        "grad_norm": series("grad_norm", [2.0] * len(loops)),
        "rollout_kl": series("rollout_kl", [1e-3] * len(loops)),
        "rollout_actor_correlation": series("rollout_actor_correlation", [0.999] * len(loops)),
        "unaccounted_fraction": MetricValue(value=0.021),
        "timing_error_fraction": MetricValue(value=0.001),
        "coverage_fraction": MetricValue(value=1.0),
    }
    found |= {
        f"phase_s/{name}": series(
            "phase_s", [loop * length / whole for loop in loops] if phases is None else [length] * len(loops)
        )
        for name, length in lengths.items()
    }
    if hardware.startswith("cpu"):
        found |= {
            f"phase_to_rest/{name}": series("phase_to_rest", [length / (whole - length)] * len(loops))
            for name, length in lengths.items()
            if length < whole
        }
        found |= {
            "host_busy_fraction": MetricValue(value=0.87),
            "host_idle_s_per_step/gen": series("host_idle_s_per_step", [1.2] * len(loops)),
            "busy_fraction": MetricValue(value=None, reason="no GPU in this run"),
        }
    else:
        found |= {
            "busy_fraction": MetricValue(value=0.6),
            "idle_fraction": MetricValue(value=0.4),
            "idle_s_per_step": series("idle_s_per_step", [0.4 * loop for loop in loops]),
            "idle_s_per_step/gen": series("idle_s_per_step", [0.3 * loop for loop in loops]),
            "idle_s_per_step/ref": series("idle_s_per_step", [0.1 * loop for loop in loops]),
        }
    for name, value in (metrics or {}).items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = value
    return Measurement(
        run_id=run_id,
        workload="cpu-tiny" if hardware.startswith("cpu") else "qwen2.5-1.5b",
        tier=tier,
        hardware=hardware,
        num_loops=len(loops),
        metrics=found,
        fingerprint=Fingerprint(
            identity=IDENTITY | dict(identity or {}),
            subject=SUBJECT | dict(subject or {}),
            host=HOST | dict(host or {}),
        ),
        invalid_reasons=list(invalid_reasons),
        warnings=list(warnings),
        faults=list(faults),
    )


def store_runs(name: str, runs: Sequence[Sequence[float]]) -> BaselineMetric:
    """What an absolute baseline keeps of a metric."""
    return BaselineMetric(
        median=summarize_runs(runs, get_metric(name).aggregation),
        spread=robust_spread([value for loops in runs for value in loops]),
        samples=[list(loops) for loops in runs],
    )


def make_baseline(*runs: Measurement, **changes: object) -> Baseline:
    """An absolute baseline of all that the runs' metrics hold, independent of grpo_perf.baseline."""
    measured = runs or (make_measurement(),)
    names = [name for name, value in measured[0].metrics.items() if value.series]
    metrics = {name: store_runs(name, [run.metrics[name].series for run in measured]) for name in names}
    epoch = [[128 * loop for loop in run.metrics["loop_time_s"].series] for run in measured]
    baseline = Baseline(
        schema_version=1,
        hardware=measured[0].hardware,
        workload=measured[0].workload,
        tier=measured[0].tier,
        kind="absolute",
        base_tier=None,
        num_runs=len(measured),
        num_warmup_steps=1,
        metrics=metrics | {"epoch_time_s": store_runs("epoch_time_s", epoch)},
        fingerprint=measured[0].fingerprint,
        provenance=Provenance(run_ids=[run.run_id for run in measured]),
    )
    return replace(baseline, **changes)  # type: ignore[arg-type]


def make_ratio_baseline(ratio: float, *, spread: float = 0.0, num_runs: int = 1, **changes: object) -> Baseline:
    """A CPU baseline in which every metric of the default run is `ratio` times the base tier's."""
    run = make_measurement(hardware="cpu")
    names = ["loop_time_s", "epoch_time_s", "effective_tokens_per_hour", "memory_used_gib"]
    names += [f"phase_s/{phase}" for phase in PHASES]
    kept = BaselineMetric(median=ratio, spread=spread, samples=[[ratio]] * num_runs)
    inverse = BaselineMetric(median=1 / ratio, spread=spread, samples=[[1 / ratio]] * num_runs)
    metrics = {name: inverse if name == "effective_tokens_per_hour" else kept for name in names}
    same = BaselineMetric(median=1.0, spread=0.0, samples=[[1.0]])
    metrics |= {f"phase_to_rest/{phase}": same for phase in PHASES}
    metrics["memory_used_gib"] = BaselineMetric(median=1.0, spread=0.0, samples=[[1.0]])
    baseline = make_baseline(run)
    return replace(baseline, kind="ratio", base_tier="untuned", metrics=metrics, num_runs=num_runs, **changes)  # type: ignore[arg-type]


def find_claim(verdict: CellVerdict, metric: str) -> Claim:
    """The one claim on a metric."""
    (claim,) = [claim for claim in verdict.claims if claim.metric == metric]
    return claim
