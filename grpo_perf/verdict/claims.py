"""Which claims a cell makes: known before it runs, so that pytest can name a test for each.

                   measurement  training_health  targets  relative claims
cpu, base tier          x              x          host's        -
cpu, other tiers        x              x          host's        x   ratios to the base tier
gpu                     x              x            x           x   seconds against the baseline
"""

from collections.abc import Mapping

from grpo_perf.metrics import REGISTRY
from grpo_perf.types import Device, Target, Tier

MEASUREMENT = "measurement"
TRAINING_HEALTH = "training_health"

HEALTH_METRICS = ("loss", "grad_norm", "ppo_kl", "rollout_kl", "rollout_actor_correlation")
"""Judged together as `training_health`; a target on one of them sets its limit there."""

_NEEDS_GPU = frozenset(
    {
        "busy_fraction",
        "idle_fraction",
        "idle_s_per_step",
        "wait_s_per_step",
        "sm_active_fraction",
        "tensor_active_fraction",
        "dram_active_fraction",
        "nvml_utilization",
        "memory_used_fraction",
        "power_w",
        "mfu",
    }
)
# Needs several GPUs and a trace, which no run has yet: the gate says so as a warning where there are several GPUs.
_NOT_MEASURED_YET = frozenset({"wait_s_per_step"})


def claim_names(*, device: Device, tier: Tier, targets: Mapping[str, Target]) -> list[str]:
    """Names of the claims of a cell, each once, in the order in which they are printed."""
    names = [MEASUREMENT, TRAINING_HEALTH, *_name_targets(device, targets)]
    if device == "gpu" or tier.builds_on is not None:
        names += name_relative_claims(device, tier)
    return list(dict.fromkeys(names))


def name_relative_claims(device: Device, tier: Tier) -> list[str]:
    """Metrics compared with the baseline: the judged ones of the registry, the epoch, the tier's gated phases."""
    judged = [metric.name for metric in REGISTRY.values() if metric.judged and metric.name not in _NOT_MEASURED_YET]
    judged.insert(judged.index("loop_time_s") + 1, "epoch_time_s")
    # Shared CPUs change speed between two runs by more than a phase may: there a phase is judged within its own loop.
    family = "phase_s" if device == "gpu" else "phase_to_rest"
    phases = [f"{family}/{phase}" for phase in tier.gated_phases]
    return [name for name in [*judged, *phases] if device == "gpu" or name not in _NEEDS_GPU]


def _name_targets(device: Device, targets: Mapping[str, Target]) -> list[str]:
    return [
        name
        for name in targets
        if name not in HEALTH_METRICS and (device == "gpu" or name.partition("/")[0] not in _NEEDS_GPU)
    ]
