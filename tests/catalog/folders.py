"""A catalogue folder for tests: two tiers and one workload, small enough to read at one look."""

from pathlib import Path

WORKLOAD = """
description = "tiny"
device = "cpu"
train_batch_size = 8
rollout_n = 4
ppo_mini_batch_size = 4
max_prompt_length = 128
max_response_length = 64
tiers = ["base", "fast"]

[model]
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 1
dtype = "float32"
tokenizer = "byte-bpe"
"""

BASE = """
description = "the base"

[overrides]
"actor_rollout_ref.actor.strategy" = "fsdp"
"actor_rollout_ref.rollout.max_num_seqs" = 128

[tolerances]
loop_time_s = { relative = 0.05 }
memory_used_gib = { relative = 0.05 }

[cpu.overrides]
"actor_rollout_ref.actor.strategy" = "fsdp2"

[cpu.not_translated]
"actor_rollout_ref.rollout.max_num_seqs" = "all at once"

[cpu.tolerances]
loop_time_s = { relative = 0.2 }
"""

FAST = """
description = "tuned"
builds_on = "base"
gated_phases = ["gen"]

[overrides]
"trainer.v1.sampler.custom_sampler.path" = "{inside}/poll.py"

[tolerances]
loop_time_s = { relative = 0.03 }

[cpu]
gated_phases = ["update_actor"]

[targets."*"."*"]
busy_fraction = { minimum = 0.1 }

[targets."1xNVIDIA-H200"."*"]
busy_fraction = { minimum = 0.2 }

[targets."1xNVIDIA-H200".tiny]
busy_fraction = { minimum = 0.3 }
idle_fraction = { maximum = 0.7 }
"""


def write_catalog(root: Path, **files: str) -> Path:
    """The folder with workload `tiny` and tiers `base` and `fast`; `tier_x=` and `workload_x=` add or replace files."""
    texts = {"workload_tiny": WORKLOAD, "tier_base": BASE, "tier_fast": FAST} | files
    for name, text in texts.items():
        kind, _, stem = name.partition("_")
        folder = root / f"{kind}s"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{stem}.toml").write_text(text)
    return root
