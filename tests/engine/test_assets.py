"""Model and data: the user's own as they are, built ones whole or not at all."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_perf.engine import assets
from grpo_perf.engine.assets import build_assets, describe_assets
from grpo_perf.errors import EngineError, UsageError
from grpo_perf.types import Model, Workload

MODEL = Model(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    dtype="float32",
    tokenizer="byte-bpe",
)
WORKLOAD = Workload(
    name="tiny",
    description="",
    device="cpu",
    model=MODEL,
    train_batch_size=4,
    rollout_n=2,
    ppo_mini_batch_size=4,
    max_prompt_length=160,
    max_response_length=16,
    dataset_size=16,
)


def write_python(path: Path, script: str) -> Path:
    """A stand-in for the measured interpreter; `$3` is the folder to fill."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def builder(tmp_path: Path) -> Path:
    script = 'mkdir "$3/model"; touch "$3/train.parquet" "$3/val.parquet"; echo x >> "$(dirname "$0")/calls"'
    return write_python(tmp_path / "python", script)


def num_calls(builder: Path) -> int:
    calls = builder.parent / "calls"
    return len(calls.read_text().split()) if calls.exists() else 0


def test_builds_once_and_says_so(builder: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    first = build_assets(builder, WORKLOAD, tmp_path / "cache", os.environ, lines.append)
    second = build_assets(builder, WORKLOAD, tmp_path / "cache", os.environ, lines.append)
    assert first == second
    assert num_calls(builder) == 1
    assert lines == [f"building model and data of tiny in {first.model.parent}"]
    assert first.model.is_dir()
    assert first.train.is_file()
    assert json.loads((first.model.parent / "spec.json").read_text())["data"]["num_rows"] == 16


def test_what_does_not_change_the_files_shares_them(builder: Path, tmp_path: Path) -> None:
    first = build_assets(builder, WORKLOAD, tmp_path, os.environ)
    assert build_assets(builder, replace(WORKLOAD, rollout_n=8, name="other"), tmp_path, os.environ) == first
    assert build_assets(builder, replace(WORKLOAD, max_terms=5), tmp_path, os.environ) != first
    assert build_assets(builder, replace(WORKLOAD, model=replace(MODEL, seed=1)), tmp_path, os.environ) != first
    assert num_calls(builder) == 3


def test_a_broken_build_leaves_nothing_to_be_used(tmp_path: Path) -> None:
    broken = write_python(tmp_path / "broken", 'mkdir "$3/model"; echo "first" >&2; echo "no space left" >&2; exit 1')
    with pytest.raises(EngineError, match=r"exit code 1\): no space left. See what .* can run: grpo-perf doctor"):
        build_assets(broken, WORKLOAD, tmp_path / "cache", os.environ)
    assert list((tmp_path / "cache" / "assets").iterdir()) == []


def test_a_build_that_was_killed_half_way_is_not_used(builder: Path, tmp_path: Path) -> None:
    whole = build_assets(builder, WORKLOAD, tmp_path / "cache", os.environ).model.parent
    whole.rename(whole.with_name(f".{whole.name}.killed"))
    assert build_assets(builder, WORKLOAD, tmp_path / "cache", os.environ).model.is_dir()
    assert num_calls(builder) == 2


def test_another_session_may_finish_first(builder: Path, tmp_path: Path) -> None:
    folder = build_assets(builder, WORKLOAD, tmp_path / "other", os.environ).model.parent
    target = tmp_path / "cache" / "assets" / folder.name
    racer = f'mkdir "$3/model"; mkdir -p {target}/model'
    found = build_assets(write_python(tmp_path / "racer", racer), WORKLOAD, tmp_path / "cache", os.environ)
    assert found.model == target / "model"
    assert [path.name for path in target.parent.iterdir()] == [folder.name]


def test_what_only_the_person_can_provide_is_a_usage_error(tmp_path: Path) -> None:
    lacking = write_python(tmp_path / "lacking", 'echo "the Qwen vocabulary is missing" >&2; exit 3')
    with pytest.raises(UsageError, match="cannot be built: the Qwen vocabulary is missing"):
        build_assets(lacking, WORKLOAD, tmp_path / "cache", os.environ)


def test_a_build_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "_TIMEOUT_S", 0.2)
    slow = write_python(tmp_path / "slow", "exec sleep 30")
    with pytest.raises(EngineError, match="took more than 0 s"):
        build_assets(slow, WORKLOAD, tmp_path / "cache", os.environ)
    assert list((tmp_path / "cache" / "assets").iterdir()) == []


def test_own_files_are_used_as_they_are(builder: Path, tmp_path: Path) -> None:
    model, train, val = tmp_path / "mine", tmp_path / "t.parquet", tmp_path / "v.parquet"
    model.mkdir()
    train.touch()
    val.touch()
    own = replace(WORKLOAD, model=Model(path=str(model)), train_files=str(train), val_files=str(val))
    found = build_assets(builder, own, tmp_path / "cache", os.environ)
    assert (found.model, found.train, found.val) == (model, train, val)
    assert num_calls(builder) == 0
    mixed = build_assets(builder, replace(own, val_files=None), tmp_path / "cache", os.environ)
    assert (mixed.model, mixed.train) == (model, train)
    assert mixed.val.parent.parent == tmp_path / "cache" / "assets"


@pytest.mark.parametrize("field", ["train_files", "val_files", "model"])
def test_own_files_that_are_not_there(builder: Path, tmp_path: Path, field: str) -> None:
    value: object = Model(path="/none/mine") if field == "model" else "/none/mine"
    name = "model.path" if field == "model" else field
    with pytest.raises(UsageError, match=rf"'tiny': {name} is '/none/mine', and there is nothing at /none/mine"):
        build_assets(builder, replace(WORKLOAD, **{field: value}), tmp_path, os.environ)  # type: ignore[arg-type]


def test_tokenizer_folder_of_the_environment(tmp_path: Path) -> None:
    qwen = replace(WORKLOAD, model=replace(MODEL, tokenizer="qwen"))
    assert describe_assets(qwen, {})["tokenizer_path"] is None
    with pytest.raises(UsageError, match=r"GRPO_PERF_TOKENIZER=/none has no tokenizer_config.json"):
        describe_assets(qwen, {"GRPO_PERF_TOKENIZER": "/none"})
    (tmp_path / "tokenizer_config.json").touch()
    assert describe_assets(qwen, {"GRPO_PERF_TOKENIZER": str(tmp_path)})["tokenizer_path"] == str(tmp_path)
    assert describe_assets(WORKLOAD, {"GRPO_PERF_TOKENIZER": "/none"})["tokenizer_path"] is None
    before = describe_assets(qwen, {"GRPO_PERF_TOKENIZER": str(tmp_path)})
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert describe_assets(qwen, {"GRPO_PERF_TOKENIZER": str(tmp_path)}) != before


# --- with the interpreter of GRPO_PERF_TEST_PYTHON ---------------------------------------------------------------


def test_builds_a_real_model_that_is_the_same_each_time(verl_python: Path, tmp_path: Path) -> None:
    first = build_assets(verl_python, WORKLOAD, tmp_path / "a", os.environ)
    second = build_assets(verl_python, WORKLOAD, tmp_path / "b", os.environ)
    config = json.loads((first.model / "config.json").read_text())
    tokenizer = json.loads((first.model / "tokenizer.json").read_text())
    assert config["vocab_size"] == len(tokenizer["model"]["vocab"])
    assert config["tie_word_embeddings"] is False
    assert config["dtype"] == "float32"
    for name in ("model/model.safetensors", "model/tokenizer.json", "train.parquet"):
        assert (first.model.parent / name).read_bytes() == (second.model.parent / name).read_bytes()


def test_qwen_vocabulary_missing_from_the_real_interpreter(verl_python: Path, tmp_path: Path) -> None:
    dashscope_free = {**os.environ, "PYTHONPATH": str(tmp_path)}
    (tmp_path / "dashscope.py").touch()  # hides an installed one: it has no resources beside it
    qwen = replace(WORKLOAD, model=replace(MODEL, tokenizer="qwen"))
    with pytest.raises(UsageError, match=r"pip install --no-deps dashscope.*GRPO_PERF_TOKENIZER=PATH"):
        build_assets(verl_python, qwen, tmp_path / "cache", dashscope_free)
