"""Every metric has one entry here: unit, which way is better, how loops become one value, and where it comes from."""

from dataclasses import dataclass
from typing import Literal

Aggregation = Literal["median", "mean", "max", "min", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A named quantity. `name/<phase>` is a member of the same family."""

    name: str
    unit: str
    better: Literal["higher", "lower", "neither"]
    aggregation: Aggregation
    source: str
    judged: bool = False
    """Compared with the baseline, two-sided."""


_METRICS = (
    Metric(name="loop_time_s", unit="s", better="lower", aggregation="median", judged=True,
           source="start of trainer span `step` k to start of `step` k+1"),
    Metric(name="phase_s", unit="s", better="lower", aggregation="median",
           source="trainer lane, innermost span of that name, per loop"),
    # The mean: a session has six loops or so, and the median of so few throws a third of them away.
    Metric(name="phase_to_rest", unit="", better="lower", aggregation="mean",
           source="phase over the rest of its own loop: what slows the whole machine for a while cancels out"),
    Metric(name="gap_s", unit="s", better="lower", aggregation="median", source="loop time outside `step`"),
    Metric(name="unaccounted_fraction", unit="fraction", better="lower", aggregation="max",
           source="share of `step` that no phase covers"),
    Metric(name="timing_error_fraction", unit="fraction", better="lower", aggregation="max",
           source="|span sum - verl's timing_s/<phase>| beyond 5 ms, relative; worst phase and step"),
    Metric(name="epoch_time_s", unit="s", better="lower", aggregation="none",
           source="ceil(dataset size / train batch size) x loop time"),
    Metric(name="effective_tokens_per_hour", unit="tokens/h", better="higher", aggregation="median", judged=True,
           source="verl perf/total_num_tokens (prompt + response without padding) over loop time"),
    Metric(name="tokens_per_s_per_gpu", unit="tokens/s", better="higher", aggregation="median",
           source="the same tokens over loop time and GPUs"),
    Metric(name="busy_fraction", unit="fraction", better="higher", aggregation="mean",
           source="GPM graphics activity, overlap-weighted over the steady window"),
    Metric(name="idle_fraction", unit="fraction", better="lower", aggregation="mean", source="1 - busy_fraction"),
    Metric(name="idle_s_per_step", unit="GPU-s", better="lower", aggregation="median", judged=True,
           source="GPU-seconds not busy per loop"),
    Metric(name="wait_s_per_step", unit="GPU-s", better="lower", aggregation="median", judged=True,
           source="idle + exposed communication and spin; needs several GPUs and a trace"),
    Metric(name="sm_active_fraction", unit="fraction", better="higher", aggregation="mean", source="GPM SM activity"),
    Metric(name="tensor_active_fraction", unit="fraction", better="higher", aggregation="mean",
           source="GPM any tensor pipe"),
    Metric(name="dram_active_fraction", unit="fraction", better="neither", aggregation="mean",
           source="GPM DRAM bandwidth"),
    Metric(name="nvml_utilization", unit="fraction", better="higher", aggregation="mean",
           source="NVML utilisation, as nvidia-smi prints it; never the judge"),
    Metric(name="host_busy_fraction", unit="fraction", better="higher", aggregation="mean",
           source="CPU time of the run's processes over cores, where there is no GPU"),
    Metric(name="host_idle_s_per_step", unit="s", better="lower", aggregation="median",
           source="(1 - host busy) x loop time"),
    Metric(name="memory_used_gib", unit="GiB", better="lower", aggregation="max", judged=True,
           source="peak over the steady window: device memory on GPUs, memory of the run's processes on CPU"),
    Metric(name="memory_used_fraction", unit="fraction", better="lower", aggregation="max",
           source="peak device memory over capacity"),
    Metric(name="power_w", unit="W", better="neither", aggregation="mean", source="NVML"),
    Metric(name="coverage_fraction", unit="fraction", better="higher", aggregation="none",
           source="share of the steady window that samples cover"),
    Metric(name="sampler_cost_fraction", unit="fraction", better="lower", aggregation="none",
           source="CPU time of the sampler process over one core"),
    Metric(name="start_up_s", unit="s", better="lower", aggregation="none", source="launch to start of the first step"),
    Metric(name="grad_norm", unit="", better="neither", aggregation="median", source="verl actor/grad_norm"),
    Metric(name="loss", unit="", better="neither", aggregation="median", source="verl actor/loss, else actor/pg_loss"),
    Metric(name="ppo_kl", unit="", better="lower", aggregation="max", source="verl |actor/ppo_kl|"),
    Metric(name="rollout_kl", unit="", better="lower", aggregation="max", source="verl |rollout_corr/kl|"),
    Metric(name="rollout_actor_correlation", unit="", better="higher", aggregation="min",
           source="verl training/rollout_actor_probs_pearson_corr"),
    Metric(name="mfu", unit="fraction", better="higher", aggregation="median", source="verl perf/mfu/actor"),
)  # fmt: skip

REGISTRY: dict[str, Metric] = {metric.name: metric for metric in _METRICS}

PHASES = ("gen", "reward", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor", "update_weights")
"""verl's phase names (`timing_s/*`) of the synchronous trainer, in the order of a step."""

MARKED = (
    "on_step_begin", "prepare_step", "dataloader", "balance_batch", "compute_metrics", "logging", "validate",
    "save_checkpoint",
)  # fmt: skip
"""What verl does not time (or times elsewhere) and the probe marks."""


def get_metric(name: str) -> Metric:
    """The registry entry of a metric or of a member of its family (`phase_s/gen`)."""
    return REGISTRY[name.partition("/")[0]]


def phase_of(name: str) -> str | None:
    """`gen` of `phase_s/gen`; None for a metric of the whole loop."""
    return name.partition("/")[2] or None
