"""What types alone do not catch in a workload or tier."""

from pathlib import Path

import pytest

from grpo_perf.catalog import load_catalog
from grpo_perf.errors import UsageError
from tests.catalog.folders import BASE, FAST, WORKLOAD, write_catalog


def message_of(root: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load_catalog(root)
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("rollout_n = 4", "rollout_n = 0", "rollout_n is 0; it must be greater than 0"),
        ("rollout_n = 4", "rollout_n = 4\nnum_steady_steps = 1", "N steps give N - 1 loops, so it must be 2 or more"),
        ("rollout_n = 4", "rollout_n = 4\nsteps_by_tier = { fast = 1 }", "steps_by_tier.fast is 1; N steps give N - 1"),
        ("rollout_n = 4", "rollout_n = 4\nsteps_by_tier = { fats = 4 }", "none of its tiers. Did you mean 'fast'?"),
        ("rollout_n = 4", "rollout_n = 4\nnum_warmup_steps = 0", "num_warmup_steps is 0"),
        ("rollout_n = 4", "rollout_n = 4\nstep_timeout_s = nan", "step_timeout_s is nan"),
        ("rollout_n = 4", "rollout_n = 4\nmin_terms = 30", "min_terms 30 is greater than max_terms 24"),
        ("rollout_n = 4", "rollout_n = 4\ndataset_size = 4", "dataset_size 4 is less than train_batch_size 8"),
        ("ppo_mini_batch_size = 4", "ppo_mini_batch_size = 3", "is not a multiple of ppo_mini_batch_size 3"),
        ("hidden_size = 64", "hidden_size = 65", "model.hidden_size 65 is not a multiple of num_attention_heads 2"),
        ("num_attention_heads = 2", "num_attention_heads = 0", "model.num_attention_heads is 0"),
        ("num_key_value_heads = 1", "num_key_value_heads = 4", "is not a multiple of num_key_value_heads 4"),
    ],
)
def test_workload_values(tmp_path: Path, old: str, new: str, expected: str) -> None:
    text = message_of(write_catalog(tmp_path, workload_tiny=WORKLOAD.replace(old, new)))
    assert "tiny.toml" in text
    assert expected in text


def test_own_checkpoint_needs_no_shape(tmp_path: Path) -> None:
    text = WORKLOAD.partition("[model]")[0] + '[model]\npath = "/models/mine"\n'
    assert load_catalog(write_catalog(tmp_path, workload_tiny=text)).workloads["tiny"].model.path == "/models/mine"


@pytest.mark.parametrize("value", ["0.0", "-0.1", "nan", "inf"])
def test_a_tolerance_that_lets_everything_pass_is_refused(tmp_path: Path, value: str) -> None:
    text = message_of(write_catalog(tmp_path, tier_base=BASE.replace("relative = 0.2", f"relative = {value}")))
    assert "tolerances.loop_time_s.relative" in text
    assert "greater than 0" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FAST.replace("loop_time_s", "loop_times_s"), "there is no metric 'loop_times_s'. Did you mean 'loop_time_s'?"),
        (FAST.replace('["gen"]', '["genn"]'), "there is no phase 'genn'. Did you mean 'gen'?"),
        (FAST.replace('["update_actor"]', '["update"]'), "there is no phase 'update'"),
        (FAST.replace("loop_time_s", '"phase_s/updat_actor"'), "Did you mean 'update_actor'?"),
        (FAST.replace("{ maximum = 0.7 }", "{}"), "idle_fraction needs a finite minimum or maximum"),
        (FAST.replace("{ maximum = 0.7 }", "{ maximum = nan }"), "idle_fraction needs a finite minimum or maximum"),
    ],
)
def test_tier_values(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in message_of(write_catalog(tmp_path, tier_fast=text))


def test_not_translated_names_a_key_of_the_tier(tmp_path: Path) -> None:
    text = BASE.replace(
        '"actor_rollout_ref.rollout.max_num_seqs" = "all', '"actor_rollout_ref.rollout.max_num_seq" = "all'
    )
    shown = message_of(write_catalog(tmp_path, tier_base=text))
    assert "cpu.not_translated names 'actor_rollout_ref.rollout.max_num_seq', which the tier does not set" in shown
    assert "Did you mean 'actor_rollout_ref.rollout.max_num_seqs'?" in shown


@pytest.mark.parametrize("key", ["data.train_batch_size", "++actor_rollout_ref.rollout.n", "trainer.logger"])
@pytest.mark.parametrize("section", ["overrides", "cpu.overrides"])
def test_a_tier_cannot_change_the_work(tmp_path: Path, key: str, section: str) -> None:
    text = message_of(write_catalog(tmp_path, tier_base=f'description = "x"\n[{section}]\n"{key}" = 2\n'))
    assert f"override {key!r} belongs to" in text
