"""The catalogue that users run (perf_tests/) holds together."""

from pathlib import Path

import pytest

from grpo_perf.catalog import Catalog, Paths, compose, list_cells, load_catalog, resolve_cell

SUITE = Path(__file__).parents[2] / "perf_tests"
PATHS = Paths(model=Path("/m"), train=Path("/t"), val=Path("/v"), inside=Path("/i"), checkpoints=Path("/c"))

# Parameters of the published Qwen2.5 checkpoints (config.json of each), in 1e9.
PARAMETERS = {"qwen2.5-1.5b": 1.544, "qwen2.5-1.5b-large": 1.544, "qwen2.5-1.5b-longtail": 1.544, "qwen2.5-7b": 7.616}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog(SUITE)


def test_cells_for_each_device(catalog: Catalog) -> None:
    assert list_cells(catalog, "cpu", 0) == [
        "cpu-tiny/untuned",
        "cpu-tiny/dynamic-batch",
        "cpu-tiny/recommended",
    ]
    assert "qwen2.5-1.5b/untuned" in list_cells(catalog, "gpu", 1)


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_qwen_shapes(catalog: Catalog, name: str) -> None:
    model = catalog.workloads[name].model
    hidden, head_dim = model.hidden_size, model.hidden_size // model.num_attention_heads
    assert head_dim == 128
    kv = model.num_key_value_heads * head_dim
    attention = 2 * hidden * hidden + 2 * hidden * kv + hidden + 2 * kv  # q and o, k and v, biases of q, k, v
    layer = attention + 3 * hidden * model.intermediate_size + 2 * hidden
    embedding = (model.vocab_size or 0) * hidden * (1 if model.tie_word_embeddings else 2)
    total = model.num_hidden_layers * layer + embedding + hidden
    assert total / 1e9 == pytest.approx(PARAMETERS[name], abs=5e-4)


def test_every_tier_composes_on_every_workload(catalog: Catalog) -> None:
    for workload in catalog.workloads.values():
        for tier in catalog.tiers:
            found = compose(resolve_cell(catalog, f"{workload.name}/{tier}", "cpu"), PATHS)
            assert ("trainer.device=cpu" in found) == (workload.device == "cpu")


def test_bases_on_cpu_are_cells_that_run_anyway(catalog: Catalog) -> None:
    cells = list_cells(catalog, "cpu", 0)
    bases = {name: resolve_cell(catalog, name, "cpu").base_name for name in cells}
    assert bases["cpu-tiny/untuned"] is None
    assert bases["cpu-tiny/recommended"] == "cpu-tiny/dynamic-batch"
    assert all(base in cells for base in bases.values() if base)


def test_a_cpu_cell_sets_nothing_of_a_gpu(catalog: Catalog) -> None:
    cell = resolve_cell(catalog, "cpu-tiny/recommended", "cpu")
    assert cell.overrides["actor_rollout_ref.rollout.enforce_eager"] is True
    for key in ("gpu_memory_utilization", "cudagraph_capture_sizes", "max_num_batched_tokens"):
        assert f"actor_rollout_ref.rollout.{key}" not in cell.overrides
        assert cell.not_translated[f"actor_rollout_ref.rollout.{key}"]


def test_every_tier_gates_loop_time_on_both_devices(catalog: Catalog) -> None:
    for tier in catalog.tiers:
        on_gpu = resolve_cell(catalog, f"qwen2.5-1.5b/{tier}", "1xNVIDIA-H200").tier.tolerances["loop_time_s"]
        on_cpu = resolve_cell(catalog, f"cpu-tiny/{tier}", "cpu").tier.tolerances["loop_time_s"]
        assert 0 < (on_gpu.relative or 0) < (on_cpu.relative or 0)


def test_7b_keeps_what_it_needs_to_fit_under_every_tier(catalog: Catalog) -> None:
    for tier in catalog.tiers:
        overrides = resolve_cell(catalog, f"qwen2.5-7b/{tier}", "1xNVIDIA-H200").overrides
        assert overrides["actor_rollout_ref.actor.fsdp_config.model_dtype"] == "bf16"
        assert overrides["actor_rollout_ref.rollout.gpu_memory_utilization"] == 0.35
