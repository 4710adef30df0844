"""Cells: chains merged, the device's variant, tolerances, targets, hashes."""

from pathlib import Path

import pytest

from grpo_perf.catalog import Catalog, hash_workload, list_cells, load_catalog, resolve_cell
from grpo_perf.errors import UsageError
from tests.catalog.folders import FAST, WORKLOAD, write_catalog

STRATEGY = "actor_rollout_ref.actor.strategy"
NUM_SEQS = "actor_rollout_ref.rollout.max_num_seqs"
SAMPLER = "trainer.v1.sampler.custom_sampler.path"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    gpu = WORKLOAD.replace('"cpu"', '"gpu"').replace('"float32"', '"bfloat16"')
    pair = gpu.replace("rollout_n = 4", "rollout_n = 4\nnum_gpus = 2").replace('["base", "fast"]', '["fast"]')
    return load_catalog(write_catalog(tmp_path, workload_big=gpu, workload_pair=pair))


def refusal(catalog: Catalog, cell: str, **changes: object) -> str:
    with pytest.raises(UsageError) as caught:
        resolve_cell(catalog, cell, "cpu", workload_changes=changes)
    return str(caught.value)


def test_gpu_cell_has_the_whole_chain(catalog: Catalog) -> None:
    cell = resolve_cell(catalog, "big/fast", "1xNVIDIA-H200")
    assert cell.name == "big/fast"
    assert cell.base_name == "big/base"
    assert cell.overrides == {STRATEGY: "fsdp", NUM_SEQS: 128, SAMPLER: "{inside}/poll.py"}
    assert cell.not_translated == {}
    assert cell.tier.tolerances["loop_time_s"].relative == 0.03  # its own
    assert cell.tier.tolerances["memory_used_gib"].relative == 0.05  # its base's
    assert cell.tier.gated_phases == ["gen"]


def test_cpu_cell_has_the_cpu_variant(catalog: Catalog) -> None:
    cell = resolve_cell(catalog, "tiny/fast", "cpu")
    assert cell.overrides == {STRATEGY: "fsdp2", SAMPLER: "{inside}/poll.py"}
    assert cell.not_translated == {NUM_SEQS: "all at once"}
    # the base's CPU tolerance wins over the tighter GPU one of the later tier
    assert cell.tier.tolerances["loop_time_s"].relative == 0.2
    assert cell.tier.gated_phases == ["update_actor"]


def test_not_translated_keeps_what_the_base_set(tmp_path: Path) -> None:
    quick = f'description = "q"\nbuilds_on = "fast"\n[overrides]\n"{SAMPLER}" = "x"\n'
    quick += f'[cpu.not_translated]\n"{SAMPLER}" = "why"\n'
    cell = resolve_cell(load_catalog(write_catalog(tmp_path, tier_quick=quick)), "tiny/quick", "cpu")
    assert cell.overrides[SAMPLER] == "{inside}/poll.py"
    assert cell.not_translated[SAMPLER] == "why"


def test_null_drops_a_key_on_cpu(tmp_path: Path) -> None:
    text = f'description = "q"\nbuilds_on = "base"\n[cpu.overrides]\n"{STRATEGY}" = "null"\n'
    cell = resolve_cell(load_catalog(write_catalog(tmp_path, tier_quick=text)), "tiny/quick", "cpu")
    assert cell.overrides == {}


def test_a_base_that_changes_nothing_on_the_device_is_skipped(tmp_path: Path) -> None:
    middle = 'description = "m"\nbuilds_on = "base"\n[overrides]\n"x.prefetch" = true\n'
    middle += '[cpu.not_translated]\n"x.prefetch" = "no stream"\n'
    gpu = WORKLOAD.replace('"cpu"', '"gpu"')
    fast = FAST.replace('"base"', '"middle"')
    catalog = load_catalog(write_catalog(tmp_path, tier_middle=middle, tier_fast=fast, workload_big=gpu))
    assert resolve_cell(catalog, "big/fast", "1xNVIDIA-H200").base_name == "big/middle"
    assert resolve_cell(catalog, "tiny/fast", "cpu").base_name == "tiny/base"
    assert resolve_cell(catalog, "tiny/base", "cpu").base_name is None


def test_order_of_overrides_is_tier_workload_caller(tmp_path: Path) -> None:
    text = WORKLOAD + f'\n[overrides]\n"{STRATEGY}" = "workload"\n"{SAMPLER}" = "workload"\n'
    catalog = load_catalog(write_catalog(tmp_path, workload_tiny=text))
    cell = resolve_cell(catalog, "tiny/fast", "cpu", extra_overrides={STRATEGY: "caller"})
    assert cell.overrides == {SAMPLER: "workload", STRATEGY: "caller"}


def test_extra_overrides_are_checked(catalog: Catalog) -> None:
    with pytest.raises(UsageError, match=r"the extra overrides: override 'actor_rollout_ref.rollout.n' belongs to"):
        resolve_cell(catalog, "tiny/fast", "cpu", extra_overrides={"actor_rollout_ref.rollout.n": 16})
    with pytest.raises(UsageError, match="Hydra would interpolate"):
        resolve_cell(catalog, "tiny/fast", "cpu", extra_overrides={"a.b": "${oc.env:HOME}"})


@pytest.mark.parametrize(
    ("hardware", "workload", "expected"),
    [
        ("1xNVIDIA-H200", "tiny", {"busy_fraction": 0.3, "idle_fraction": None}),
        ("1xNVIDIA-H200", "big", {"busy_fraction": 0.2}),
        ("cpu", "tiny", {"busy_fraction": 0.1}),
    ],
)
def test_the_most_exact_target_wins(
    catalog: Catalog, hardware: str, workload: str, expected: dict[str, float | None]
) -> None:
    targets = resolve_cell(catalog, f"{workload}/fast", hardware).targets
    assert {name: target.minimum for name, target in targets.items()} == expected


def test_unknown_names(catalog: Catalog) -> None:
    text = refusal(catalog, "tiny/fsat")
    assert "There is no tier 'fsat'" in text
    assert "Did you mean 'fast'? There are: base, fast." in text
    assert "pytest perf_tests --collect-only" in text
    assert "There is no workload 'tyni'" in refusal(catalog, "tyni/fast")
    assert "is not a cell name WORKLOAD/TIER, such as big/base" in refusal(catalog, "tiny")
    assert "is not a cell name" in refusal(catalog, "tiny/fast/../..")


def test_list_cells(catalog: Catalog) -> None:
    assert list_cells(catalog, "cpu", 0) == ["tiny/base", "tiny/fast"]
    assert list_cells(catalog, "gpu", 1) == ["big/base", "big/fast"]
    assert list_cells(catalog, "gpu", 2) == ["big/base", "big/fast", "pair/fast"]


def test_workload_changes(catalog: Catalog) -> None:
    changes = {"num_steady_steps": 3, "model.path": "/models/mine"}
    workload = resolve_cell(catalog, "tiny/fast", "cpu", workload_changes=changes).workload
    assert workload.num_steady_steps == 3
    assert workload.model.path == "/models/mine"
    assert workload.model.hidden_size == 64


def test_steps_by_tier_unless_the_caller_says_otherwise(tmp_path: Path) -> None:
    text = WORKLOAD.replace("rollout_n = 4", "rollout_n = 4\nnum_steady_steps = 9\nsteps_by_tier = { fast = 24 }")
    catalog = load_catalog(write_catalog(tmp_path, workload_tiny=text))
    assert resolve_cell(catalog, "tiny/base", "cpu").workload.num_steady_steps == 9
    fast = resolve_cell(catalog, "tiny/fast", "cpu").workload
    assert fast.num_steady_steps == 24
    assert hash_workload(fast) == hash_workload(catalog.workloads["tiny"])
    asked = resolve_cell(catalog, "tiny/fast", "cpu", workload_changes={"num_steady_steps": 3})
    assert asked.workload.num_steady_steps == 3


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("num_stedy_steps", 3, "unknown field 'num_stedy_steps'. Did you mean 'num_steady_steps'?"),
        ("model.pat", "x", "unknown field 'model.pat'. Did you mean 'path'?"),
        ("rollout_n", "four", "rollout_n: Expected `int`, got `str`"),
        ("rollout_n", 0, "rollout_n is 0"),
        ("name", "x", "'name' cannot be changed"),
    ],
)
def test_bad_workload_changes(catalog: Catalog, key: str, value: object, expected: str) -> None:
    assert expected in refusal(catalog, "tiny/fast", **{key: value})


def test_hash_covers_the_work_and_nothing_else(catalog: Catalog) -> None:
    def changed(**changes: object) -> str:
        return hash_workload(resolve_cell(catalog, "tiny/fast", "cpu", workload_changes=changes).workload)

    original = hash_workload(catalog.workloads["tiny"])
    assert len(original) == 12
    assert int(original, 16) >= 0
    assert changed(description="x", num_steady_steps=3, num_warmup_steps=2, tiers=["base"]) == original
    assert changed(start_up_timeout_s=1.0, step_timeout_s=2.0) == original
    different = [
        {"rollout_n": 8},
        {"model.seed": 1},
        {"max_terms": 9},
        {"ignore_eos": False},
        {"overrides": {"a.b": 1}},
    ]
    assert original not in [changed(**change) for change in different]
