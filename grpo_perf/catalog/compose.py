"""The command line of a cell: verl's Hydra arguments, one a key, later settings in place of earlier ones.

what the workload is + how the platform runs it  <-  the cell's overrides (tier, workload, caller)
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grpo_perf.catalog.overrides import check_overrides, expand_overrides, merge_overrides, render_overrides, split_key
from grpo_perf.errors import UsageError
from grpo_perf.types import Cell, Overrides, OverrideValue, Workload

RolloutEngine = Literal["vllm", "hf"]

_ACTOR = "actor_rollout_ref.actor"
_MODEL = "actor_rollout_ref.model"
_REF = "actor_rollout_ref.ref"
_ROLLOUT = "actor_rollout_ref.rollout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """The files of one run."""

    model: Path
    """Folder with weights and tokenizer."""
    train: Path
    val: Path
    inside: Path
    """Folder of the measured-side files; `{inside}` in an override's value."""
    checkpoints: Path


def compose(cell: Cell, paths: Paths, *, rollout_engine: RolloutEngine = "vllm") -> list[str]:
    """The Hydra arguments for `python -m verl.trainer.main_ppo`.

    Raises:
        UsageError: an override that Hydra would not take literally, an unknown placeholder, or a token budget that a
            whole sequence does not fit in.
    """
    where = f"cell {cell.name}"
    expanded = expand_overrides(cell.overrides, {"inside": str(paths.inside)}, where)
    platform = _cpu_base(cell.workload, rollout_engine) if cell.workload.device == "cpu" else _gpu_base()
    merged = merge_overrides(_work(cell.workload, paths), platform, expanded)
    check_overrides(merged, where)  # paths of this machine are values too
    _check_token_budgets(merged, cell.workload, where)
    return render_overrides(merged)


def _work(workload: Workload, paths: Paths) -> Overrides:
    num_steps = workload.num_warmup_steps + workload.num_steady_steps
    steps_per_epoch = max(1, workload.dataset_size // workload.train_batch_size)
    return {
        "algorithm.adv_estimator": "grpo",
        "algorithm.use_kl_in_reward": False,
        "data.train_files": str(paths.train),
        "data.val_files": str(paths.val),
        "data.train_batch_size": workload.train_batch_size,
        "data.max_prompt_length": workload.max_prompt_length,
        "data.max_response_length": workload.max_response_length,
        # Loaded in the trainer: worker processes would compete with what is measured, and take longer to start.
        "data.dataloader_num_workers": 0,
        "data.shuffle": True,
        "data.seed": workload.model.seed,
        f"{_MODEL}.path": str(paths.model),
        f"{_ACTOR}.ppo_mini_batch_size": workload.ppo_mini_batch_size,
        f"{_ACTOR}.use_kl_loss": True,  # the reference model is part of GRPO: without it there is no phase `ref`
        f"{_ACTOR}.kl_loss_coef": 0.001,
        f"{_ACTOR}.kl_loss_type": "low_var_kl",
        f"{_ROLLOUT}.n": workload.rollout_n,
        f"{_ROLLOUT}.ignore_eos": workload.ignore_eos,
        f"{_ROLLOUT}.tensor_model_parallel_size": 1,
        "reward.custom_reward_function.path": str(paths.inside / "grpo_perf_reward.py"),
        "trainer.n_gpus_per_node": workload.num_gpus,
        "trainer.nnodes": 1,
        "trainer.total_training_steps": num_steps,
        "trainer.total_epochs": math.ceil(num_steps / steps_per_epoch) + 1,
        "trainer.logger": ["console", "file"],
        "trainer.project_name": "grpo-perf",
        "trainer.experiment_name": workload.name,
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.save_freq": -1,
        "trainer.resume_mode": "disable",
        "trainer.default_local_dir": str(paths.checkpoints),
        "+ray_kwargs.ray_init.include_dashboard": False,
    }


def _gpu_base() -> Overrides:
    return {
        f"{_ACTOR}.optim.lr": 1e-6,
        f"{_ROLLOUT}.name": "vllm",
        f"{_ROLLOUT}.agent.num_workers": 4,
        "reward.num_workers": 2,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 2,
        "+ray_kwargs.ray_init.object_store_memory": 4_000_000_000,
    }


def _cpu_base(workload: Workload, rollout_engine: RolloutEngine) -> Overrides:
    # What makes unmodified verl run without an accelerator; each line answers a failure of verl 0.9.1 (docs/cpu.md).
    num_sequences = workload.train_batch_size * workload.rollout_n
    max_model_len = workload.max_prompt_length + workload.max_response_length
    settings: Overrides = {
        "trainer.device": "cpu",
        f"{_MODEL}.external_lib": "grpo_perf_cpu_engine",
        f"{_MODEL}.use_remove_padding": False,  # needs flash-attention
        f"+{_MODEL}.override_config.attn_implementation": "sdpa",
        f"{_ACTOR}.strategy": "fsdp2",
        f"+{_ACTOR}.fsdp_config.mixed_precision.param_dtype": "fp32",
        f"{_ACTOR}.fsdp_config.dtype": "float32",
        f"{_ACTOR}.use_torch_compile": False,
        f"{_ACTOR}.fsdp_config.use_torch_compile": False,
        f"{_ACTOR}.optim.lr": 1e-4,
        f"{_REF}.strategy": "fsdp2",
        f"{_REF}.fsdp_config.use_torch_compile": False,
        f"+{_REF}.fsdp_config.mixed_precision.param_dtype": "fp32",
        f"{_ROLLOUT}.name": rollout_engine,
        f"{_ROLLOUT}.dtype": "float32",
        f"{_ROLLOUT}.enforce_eager": True,
        f"{_ROLLOUT}.free_cache_engine": False,
        f"+{_ROLLOUT}.enable_sleep_mode": False,
        f"{_ROLLOUT}.max_model_len": max_model_len,
        f"{_ROLLOUT}.max_num_seqs": num_sequences,
        f"{_ROLLOUT}.max_num_batched_tokens": max(512, max_model_len),
        f"{_ROLLOUT}.agent.num_workers": 1,
        f"{_ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": 16,
        "reward.num_workers": 1,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        # Ray believes in a GPU, and in more CPUs than there are: placement groups ask for 3, actors for 1 each.
        "+ray_kwargs.ray_init.num_gpus": workload.num_gpus,
        "ray_kwargs.ray_init.num_cpus": 16,
    }
    if rollout_engine == "hf":
        settings[f"{_MODEL}.external_lib"] = ["grpo_perf_cpu_engine", "grpo_perf_hf_rollout"]
    else:
        extension = "grpo_perf_cpu_vllm.CPUWorkerExtension"
        settings[f"+{_ROLLOUT}.engine_kwargs.vllm.worker_extension_cls"] = extension
    return settings


_BUDGETS = (
    f"{_ACTOR}.ppo_max_token_len_per_gpu",
    f"{_REF}.log_prob_max_token_len_per_gpu",
    f"{_ROLLOUT}.log_prob_max_token_len_per_gpu",
)


def _check_token_budgets(merged: Overrides, workload: Workload, where: str) -> None:
    # verl splits a batch by tokens, never a sequence: one that is longer than the budget overruns it (verl #7553).
    longest = workload.max_prompt_length + workload.max_response_length
    values: dict[str, OverrideValue] = {split_key(key)[1]: value for key, value in merged.items()}
    if values.get(f"{_ACTOR}.use_dynamic_bsz") is not True:
        return
    for key in _BUDGETS:
        budget = values.get(key)
        if isinstance(budget, int) and budget < longest:
            raise UsageError(
                f"{where}: {key}={budget} is less than one sequence of {longest} tokens "
                f"(max_prompt_length + max_response_length). Raise it to {longest} or more."
            )
