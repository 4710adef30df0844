"""The plain data that flows through the rooms. Validated once, where it is read; frozen afterwards.

Fractions are 0..1, every number carries its unit in its name, and a missing value is None.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

Scalar = str | int | float | bool | None
OverrideValue = Scalar | list[Scalar] | dict[str, Scalar]
Overrides = dict[str, OverrideValue]
Device = Literal["cpu", "gpu"]


class Verdict(StrEnum):
    """DESIGN's verdict table, mildest first: the order is the severity order of a cell."""

    IMPROVED = "IMPROVED"
    PASS = "PASS"
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_BASELINE = "NO_BASELINE"
    NOT_APPLIED = "NOT_APPLIED"
    REGRESSED = "REGRESSED"
    ENV_MISMATCH = "ENV_MISMATCH"
    INVALID = "INVALID"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Shape of a decoder with seeded random weights, or a user's own checkpoint."""

    hidden_size: int = 0
    intermediate_size: int = 0
    num_hidden_layers: int = 0
    num_attention_heads: int = 0
    num_key_value_heads: int = 0
    vocab_size: int | None = None
    """Rows of the embedding; None means the tokenizer's size."""
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    tokenizer: Literal["byte-bpe", "qwen"] = "qwen"
    """`byte-bpe` is trained locally on the workload's prompts, `qwen` is the vocabulary shipped in `dashscope`."""
    seed: int = 0
    path: str | None = None
    """A local checkpoint used as it is; nothing is generated then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is trained. Every tier of a ladder runs the same workload."""

    name: str
    description: str
    device: Device
    model: Model
    train_batch_size: int
    """Prompts per step."""
    rollout_n: int
    """Responses per prompt (GRPO's group size)."""
    ppo_mini_batch_size: int
    max_prompt_length: int
    max_response_length: int
    ignore_eos: bool = True
    min_terms: int = 2
    max_terms: int = 24
    """The generated prompts add between min_terms and max_terms numbers: prompt lengths differ, as real ones do."""
    dataset_size: int = 4096
    """Prompts of one epoch; `epoch_time_s` is computed from it."""
    num_warmup_steps: int = 1
    num_steady_steps: int = 6
    """Recorded steps after warm-up; they give num_steady_steps - 1 loops."""
    steps_by_tier: dict[str, int] = field(default_factory=dict)
    """num_steady_steps of single tiers: the start-up costs the same for all, and short loops give more of them."""
    start_up_timeout_s: float = 420.0
    step_timeout_s: float = 180.0
    num_gpus: int = 1
    train_files: str | None = None
    """A user's own parquet file; generated arithmetic prompts where None."""
    val_files: str | None = None
    tiers: list[str] = field(default_factory=list)
    """The tiers that `pytest perf_tests` runs on this workload, base first."""
    overrides: Overrides = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far a judged metric may move before it counts. Lives in the tier, so a refresh cannot loosen a gate."""

    relative: float | None = None
    absolute: float | None = None
    floor_cap: float | None = None
    """Upper bound of the noise floor, as a fraction: a noisier baseline cannot widen the gate beyond it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Absolute limits of one metric, judged without any baseline."""

    minimum: float | None = None
    maximum: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuVariant:
    """What a tier means where there is no accelerator."""

    overrides: Overrides = field(default_factory=dict)
    """Replace the tier's overrides of the same key; null (in TOML the string "null") drops the key."""
    not_translated: dict[str, str] = field(default_factory=dict)
    """Key of this tier -> why it has no CPU meaning. Left out on CPU, and written in the record."""
    tolerances: dict[str, Tolerance] = field(default_factory=dict)
    """Replace the tier's tolerances of the same metric on CPU workloads, which scatter more."""
    gated_phases: list[str] | None = None
    """Replaces the tier's gated phases on CPU workloads; None keeps them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """How it is tuned. Overrides are added to those of the tier it builds on."""

    name: str
    description: str
    builds_on: str | None = None
    overrides: Overrides = field(default_factory=dict)
    cpu: CpuVariant = field(default_factory=CpuVariant)
    tolerances: dict[str, Tolerance] = field(default_factory=dict)
    gated_phases: list[str] = field(default_factory=list)
    """Phases whose own time is judged against the baseline; others only explain."""
    targets: dict[str, dict[str, dict[str, Target]]] = field(default_factory=dict)
    """hardware -> workload -> metric -> limits; hardware or workload may be `*`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A workload under a tier, with the tier's chain already merged.

    `tier` is the one of the workload's device: its tolerances include the chain's, its gated phases are the device's,
    and `builds_on` skips tiers that change nothing there.
    """

    workload: Workload
    tier: Tier
    overrides: Overrides
    """What the tier chain sets in the variant for the workload's device, then the workload's own, then the caller's."""
    not_translated: dict[str, str] = field(default_factory=dict)
    targets: dict[str, Target] = field(default_factory=dict)
    """Those of this hardware and workload."""

    @property
    def name(self) -> str:
        """`workload/tier`."""
        return f"{self.workload.name}/{self.tier.name}"

    @property
    def base_name(self) -> str | None:
        """The cell that ratio claims compare with, or None."""
        return f"{self.workload.name}/{self.tier.builds_on}" if self.tier.builds_on else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What the machine offers. `key` names the folder of its baselines."""

    key: str
    """`1xNVIDIA-H200`, or `cpu` where there is no GPU."""
    device: Device
    device_name: str
    num_devices: int
    memory_gib: float | None = None
    power_limit_w: float | None = None
    mig: bool | None = None
    telemetry: str = "host"
    """`gpm`, `nvml` (no GPM: busy is n/a) or `host`."""
    driver: str | None = None
    cuda: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Three classes: identity must match, subject is what we judge, host is compared with a warning."""

    identity: dict[str, Scalar] = field(default_factory=dict)
    subject: dict[str, Scalar] = field(default_factory=dict)
    host: dict[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricValue:
    """One metric of one run."""

    value: float | None
    series: list[float] = field(default_factory=list)
    """One value per steady loop, where the metric has one; `value` is its aggregate."""
    reason: str | None = None
    """Why the value is None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Everything that is judged about one run, computed from its record alone."""

    run_id: str
    workload: str
    tier: str
    hardware: str
    num_loops: int
    metrics: dict[str, MetricValue]
    fingerprint: Fingerprint
    invalid_reasons: list[str] = field(default_factory=list)
    """Empty for a run that can be judged."""
    warnings: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Faults injected into this run; such a run never becomes a baseline."""

    def value(self, metric: str) -> float | None:
        """The metric's aggregate, None where it could not be measured."""
        found = self.metrics.get(metric)
        return found.value if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineMetric:
    """Raw samples are kept: median and spread can always be computed again."""

    median: float
    spread: float
    """Robust standard deviation (1.4826 x MAD) of the samples, in the metric's unit."""
    samples: list[list[float]]
    """runs x loops; for a ratio baseline runs x 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a baseline comes from."""

    run_ids: list[str]
    commit: str | None = None
    created_unix_s: float | None = None
    reason: str | None = None
    approved_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The stored reference of one cell on one hardware."""

    schema_version: int
    hardware: str
    workload: str
    tier: str
    kind: Literal["absolute", "ratio"]
    """`ratio`: each metric is this tier's value over that of `base_tier`, measured in the same session."""
    base_tier: str | None
    num_runs: int
    num_warmup_steps: int
    metrics: dict[str, BaselineMetric]
    fingerprint: Fingerprint
    provenance: Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The verdict on one metric of one cell."""

    metric: str
    verdict: Verdict
    message: str
    """One line a person can act on."""
    value: float | None = None
    reference: float | None = None
    """The baseline's median, or the target's limit."""
    change: float | None = None
    """value / reference - 1 for a relative claim."""
    interval: tuple[float, float] | None = None
    """Of the change."""
    limit: float | None = None
    """The change that is still allowed, as a fraction; for a target the limit itself."""
    next_command: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellVerdict:
    """The verdict on a cell: as severe as its severest claim; an improvement never offsets a regression."""

    cell: str
    hardware: str
    verdict: Verdict
    claims: list[Claim]
    run_ids: list[str]
    blame: list[str] = field(default_factory=list)
    """Phases that explain a change, the largest share first."""
    subject_changes: list[str] = field(default_factory=list)
    """`verl 0.9.0 -> 0.9.1`, printed beside the verdict."""
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeContext:
    """All that a verdict needs beside the run itself; stored in the record so that it can be judged again."""

    baseline: Baseline | None = None
    baseline_path: str | None = None
    references: list[Measurement] = field(default_factory=list)
    """Runs of the base cell in the same session."""
    siblings: list[Measurement] = field(default_factory=list)
    """Earlier runs of the same cell in the same session."""
