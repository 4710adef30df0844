"""The command line of a cell."""

from pathlib import Path

import pytest

from grpo_perf.catalog import Catalog, Paths, compose, load_catalog, resolve_cell
from grpo_perf.errors import UsageError
from grpo_perf.types import Overrides
from tests.catalog.folders import WORKLOAD, write_catalog

PATHS = Paths(
    model=Path("/cache/model"),
    train=Path("/cache/train.parquet"),
    val=Path("/cache/val.parquet"),
    inside=Path("/opt/in side"),
    checkpoints=Path("/tmp/checkpoints"),
)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return load_catalog(write_catalog(tmp_path, workload_big=WORKLOAD.replace('"cpu"', '"gpu"')))


def arguments(catalog: Catalog, name: str, extra: Overrides | None = None, **options: object) -> dict[str, str]:
    found = compose(resolve_cell(catalog, name, "cpu", extra_overrides=extra), PATHS, **options)  # type: ignore[arg-type]
    pairs = dict(item.split("=", 1) for item in found)
    assert len(pairs) == len(found), "a key is there twice"
    bare = [key.lstrip("+") for key in pairs]
    assert len(set(bare)) == len(bare), "a key is there twice, with another prefix"
    return pairs


def test_the_workload_is_in_it(catalog: Catalog) -> None:
    found = arguments(catalog, "big/fast")
    assert found["data.train_batch_size"] == "8"
    assert found["actor_rollout_ref.rollout.n"] == "4"
    assert found["actor_rollout_ref.rollout.ignore_eos"] == "true"
    assert found["actor_rollout_ref.model.path"] == "/cache/model"
    assert found["data.train_files"] == "/cache/train.parquet"
    assert found["trainer.default_local_dir"] == "/tmp/checkpoints"
    assert found["trainer.logger"] == "[console,file]"
    assert found["actor_rollout_ref.actor.use_kl_loss"] == "true"
    assert found["reward.custom_reward_function.path"] == "'/opt/in side/grpo_perf_reward.py'"


def test_steps_and_epochs(tmp_path: Path) -> None:
    # 1 warm-up + 6 steady steps of 8 prompts from 16: 2 steps an epoch, 4 epochs, and one to spare
    text = WORKLOAD.replace("rollout_n = 4", "rollout_n = 4\ndataset_size = 16")
    found = arguments(load_catalog(write_catalog(tmp_path, workload_tiny=text)), "tiny/fast")
    assert found["trainer.total_training_steps"] == "7"
    assert found["trainer.total_epochs"] == "5"


def test_gpu_base(catalog: Catalog) -> None:
    found = arguments(catalog, "big/fast")
    assert found["actor_rollout_ref.rollout.name"] == "vllm"
    assert found["actor_rollout_ref.actor.strategy"] == "fsdp"
    assert "trainer.device" not in found


def test_cpu_base(catalog: Catalog) -> None:
    found = arguments(catalog, "tiny/fast")
    assert found["trainer.device"] == "cpu"
    assert found["actor_rollout_ref.actor.strategy"] == "fsdp2"
    assert found["actor_rollout_ref.model.external_lib"] == "grpo_perf_cpu_engine"
    extension = "+actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls"
    assert found[extension] == "grpo_perf_cpu_vllm.CPUWorkerExtension"
    assert found["actor_rollout_ref.rollout.max_num_seqs"] == "32"  # 8 prompts x 4
    assert found["actor_rollout_ref.rollout.max_model_len"] == "192"  # 128 + 64


def test_transformers_rollout(catalog: Catalog) -> None:
    found = arguments(catalog, "tiny/fast", rollout_engine="hf")
    assert found["actor_rollout_ref.rollout.name"] == "hf"
    assert found["actor_rollout_ref.model.external_lib"] == "[grpo_perf_cpu_engine,grpo_perf_hf_rollout]"
    assert not [key for key in found if "worker_extension_cls" in key]


def test_the_cell_wins_over_the_platform(catalog: Catalog) -> None:
    found = arguments(
        catalog, "tiny/fast", {"actor_rollout_ref.actor.optim.lr": 0.5, "ray_kwargs.ray_init.num_gpus": 2}
    )
    assert found["actor_rollout_ref.actor.optim.lr"] == "0.5"
    assert found["++ray_kwargs.ray_init.num_gpus"] == "2"  # the platform adds it with `+`


def test_inside_is_filled_in(catalog: Catalog) -> None:
    assert arguments(catalog, "tiny/fast")["trainer.v1.sampler.custom_sampler.path"] == "'/opt/in side/poll.py'"


def test_unknown_placeholder(catalog: Catalog) -> None:
    with pytest.raises(UsageError, match=r"cell tiny/fast: .*unknown placeholder \{home\}"):
        arguments(catalog, "tiny/fast", {"a.b": "{home}"})


def test_a_path_that_hydra_would_interpolate(catalog: Catalog) -> None:
    paths = Paths(
        model=Path("/a/${b}"), train=PATHS.train, val=PATHS.val, inside=PATHS.inside, checkpoints=PATHS.checkpoints
    )
    with pytest.raises(UsageError, match=r"actor_rollout_ref\.model\.path"):
        compose(resolve_cell(catalog, "tiny/fast", "cpu"), paths)


@pytest.mark.parametrize("key", ["actor.ppo_max_token_len_per_gpu", "ref.log_prob_max_token_len_per_gpu"])
def test_a_token_budget_holds_a_whole_sequence(catalog: Catalog, key: str) -> None:
    dynamic: Overrides = {"actor_rollout_ref.actor.use_dynamic_bsz": True}
    arguments(catalog, "tiny/fast", dynamic | {f"actor_rollout_ref.{key}": 192})  # 128 + 64 fit exactly
    with pytest.raises(UsageError, match="=191 is less than one sequence of 192 tokens"):
        arguments(catalog, "tiny/fast", dynamic | {f"actor_rollout_ref.{key}": 191})
    arguments(catalog, "tiny/fast", {f"actor_rollout_ref.{key}": 191})  # not used without dynamic batches
