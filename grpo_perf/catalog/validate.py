"""What a workload or tier must satisfy beyond its types, checked once where it is read."""

import math
from collections.abc import Iterable, Mapping

from grpo_perf.catalog.names import suggest
from grpo_perf.catalog.overrides import check_overrides, split_key
from grpo_perf.errors import UsageError
from grpo_perf.metrics import PHASES, REGISTRY
from grpo_perf.types import Model, OverrideValue, Target, Tier, Tolerance, Workload

_POSITIVE = (
    "train_batch_size",
    "rollout_n",
    "ppo_mini_batch_size",
    "max_prompt_length",
    "max_response_length",
    "min_terms",
    "max_terms",
    "dataset_size",
    "num_warmup_steps",
    "num_gpus",
    "start_up_timeout_s",
    "step_timeout_s",
)
_SHAPE = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)

# Keys that follow from a workload's fields or that the record depends on: an override would change the work behind
# the back of the workload's hash, or lose the run's own files.
OWNED_KEYS: dict[str, str] = {
    "data.train_files": "the workload's train_files",
    "data.val_files": "the workload's val_files",
    "data.train_batch_size": "the workload's train_batch_size",
    "data.max_prompt_length": "the workload's max_prompt_length",
    "data.max_response_length": "the workload's max_response_length",
    "actor_rollout_ref.model.path": "the workload's model.path",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "the workload's ppo_mini_batch_size",
    "actor_rollout_ref.rollout.n": "the workload's rollout_n",
    "actor_rollout_ref.rollout.ignore_eos": "the workload's ignore_eos",
    "trainer.n_gpus_per_node": "the workload's num_gpus",
    "trainer.total_training_steps": "the workload's num_warmup_steps and num_steady_steps",
    "trainer.total_epochs": "the workload's num_warmup_steps and num_steady_steps",
    "trainer.logger": "grpo-perf, which reads verl's file log",
    "trainer.default_local_dir": "grpo-perf, which keeps a run in its folder",
}


def check_workload(workload: Workload, where: str) -> None:
    """Accept a workload that verl can run.

    Raises:
        UsageError: names the field, its value and what it must be.
    """
    for name in _POSITIVE:
        value = getattr(workload, name)
        if not (math.isfinite(value) and value > 0):
            raise UsageError(f"{where}: {name} is {value}; it must be greater than 0.")
    _check_steps(workload, where)
    if workload.train_batch_size % workload.ppo_mini_batch_size:
        raise UsageError(
            f"{where}: train_batch_size {workload.train_batch_size} is not a multiple of "
            f"ppo_mini_batch_size {workload.ppo_mini_batch_size}."
        )
    if workload.min_terms > workload.max_terms:
        raise UsageError(f"{where}: min_terms {workload.min_terms} is greater than max_terms {workload.max_terms}.")
    if workload.dataset_size < workload.train_batch_size:
        raise UsageError(
            f"{where}: dataset_size {workload.dataset_size} is less than train_batch_size {workload.train_batch_size}."
        )
    _check_model(workload.model, where)
    check_settings(workload.overrides, where)


def _check_model(model: Model, where: str) -> None:
    if model.path is not None:
        return
    for name in _SHAPE:
        if getattr(model, name) <= 0:
            raise UsageError(
                f"{where}: model.{name} is {getattr(model, name)}; "
                "give the shape of the model, or model.path of a checkpoint."
            )
    if model.hidden_size % model.num_attention_heads:
        raise UsageError(
            f"{where}: model.hidden_size {model.hidden_size} is not a multiple of "
            f"num_attention_heads {model.num_attention_heads}."
        )
    if model.num_attention_heads % model.num_key_value_heads:
        raise UsageError(
            f"{where}: model.num_attention_heads {model.num_attention_heads} is not a multiple of "
            f"num_key_value_heads {model.num_key_value_heads}."
        )


def _check_steps(workload: Workload, where: str) -> None:
    counts = {"num_steady_steps": workload.num_steady_steps}
    counts |= {f"steps_by_tier.{tier}": num_steps for tier, num_steps in workload.steps_by_tier.items()}
    for name, num_steps in counts.items():
        if num_steps < 2:
            raise UsageError(f"{where}: {name} is {num_steps}; N steps give N - 1 loops, so it must be 2 or more.")
    for tier in workload.steps_by_tier:
        if tier not in workload.tiers:
            raise UsageError(
                f"{where}: steps_by_tier names {tier!r}, which is none of its tiers.{suggest(tier, workload.tiers)}"
            )


def check_tier(tier: Tier, where: str) -> None:
    """Accept a tier whose overrides, tolerances and targets mean something.

    Raises:
        UsageError: names the field, its value and what it must be.
    """
    check_settings(tier.overrides, where)
    check_settings(tier.cpu.overrides, where)
    _check_tolerances(tier.tolerances, where)
    _check_tolerances(tier.cpu.tolerances, where)
    _check_phases([*tier.gated_phases, *(tier.cpu.gated_phases or [])], where)
    own = {split_key(key)[1] for key in tier.overrides}
    for key in tier.cpu.not_translated:
        if key not in own:
            raise UsageError(
                f"{where}: cpu.not_translated names {key!r}, which the tier does not set.{suggest(key, own)} Remove it."
            )
    for hardware, workloads in tier.targets.items():
        for workload, metrics in workloads.items():
            for metric, target in metrics.items():
                _check_target(metric, target, f"{where}: targets.{hardware}.{workload}")


def check_settings(overrides: Mapping[str, OverrideValue], where: str) -> None:
    """Accept overrides that neither run anything nor set what belongs to the workload.

    Raises:
        UsageError: names the key and where it belongs.
    """
    check_overrides(overrides, where)
    for key in overrides:
        owner = OWNED_KEYS.get(split_key(key)[1])
        if owner is not None:
            raise UsageError(f"{where}: override {key!r} belongs to {owner}. Set it there; a tier only tunes.")


def _check_tolerances(tolerances: Mapping[str, Tolerance], where: str) -> None:
    for metric, tolerance in tolerances.items():
        _check_metric(metric, f"{where}: tolerances")
        for name in ("relative", "absolute", "floor_cap"):
            value = getattr(tolerance, name)
            # `not >` is true of NaN too, which would let everything pass
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise UsageError(f"{where}: tolerances.{metric}.{name} is {value}; it must be a number greater than 0.")


def _check_target(metric: str, target: Target, where: str) -> None:
    _check_metric(metric, where)
    limits = [limit for limit in (target.minimum, target.maximum) if limit is not None]
    if not limits or not all(math.isfinite(limit) for limit in limits):
        raise UsageError(f"{where}.{metric} needs a finite minimum or maximum.")


def _check_metric(metric: str, where: str) -> None:
    family, _, phase = metric.partition("/")
    if family not in REGISTRY:
        raise UsageError(
            f"{where}: there is no metric {family!r}.{suggest(family, REGISTRY)} Metrics: {_join(REGISTRY)}."
        )
    if phase:
        _check_phases([phase], where)


def _check_phases(phases: Iterable[str], where: str) -> None:
    for phase in phases:
        if phase not in PHASES:
            raise UsageError(f"{where}: there is no phase {phase!r}.{suggest(phase, PHASES)} Phases: {_join(PHASES)}.")


def _join(names: Iterable[str]) -> str:
    return ", ".join(names)
