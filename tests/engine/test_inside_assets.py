"""The measured-side files: importable on their own, deterministic, without grpo_perf."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

INSIDE = Path(__file__).parents[2] / "grpo_perf" / "engine" / "inside"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, INSIDE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("file", sorted(INSIDE.glob("*.py")), ids=lambda file: file.stem)
def test_nothing_inside_imports_grpo_perf(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not [name for name in names if name.split(".")[0] == "grpo_perf"]


def test_rows_are_the_same_each_time_and_right() -> None:
    assets = load("grpo_perf_assets")
    rows = assets.make_rows(50, "train", 0, 2, 24)
    assert rows == assets.make_rows(50, "train", 0, 2, 24)
    assert rows[:10] == assets.make_rows(10, "train", 0, 2, 24)
    assert rows != assets.make_rows(50, "train", 1, 2, 24)
    assert rows != assets.make_rows(50, "val", 0, 2, 24)
    lengths = set()
    for row in rows:
        numbers = [int(text) for text in row["prompt"][0]["content"].rpartition(": ")[2].split(" + ")]
        assert row["reward_model"]["ground_truth"] == str(sum(numbers))
        lengths.add(len(numbers))
    assert min(lengths) >= 2
    assert max(lengths) <= 24
    assert len(lengths) > 10


def test_byte_names_are_those_of_gpt2() -> None:
    names = load("grpo_perf_assets").bytes_to_unicode()
    assert len(set(names.values())) == 256
    assert (names[ord("A")], names[ord(" ")], names[0]) == ("A", "\u0120", "\u0100")  # `Ġ` is GPT-2's blank


def test_a_token_is_split_where_it_was_merged() -> None:
    split = load("grpo_perf_assets").split_by_rank
    ranks = {b"a": 0, b"b": 1, b"c": 2, b"ab": 3, b"bc": 4, b"abc": 5}
    assert split(b"abc", 5, ranks) == [b"ab", b"c"]  # `ab` ranks before `bc`
    assert split(b"bc", 4, ranks) == [b"b", b"c"]


def test_missing_vocabulary_names_the_next_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assets = load("grpo_perf_assets")
    monkeypatch.setattr(assets.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(assets.MissingInputError, match=r"pip install --no-deps dashscope.*GRPO_PERF_TOKENIZER=PATH"):
        assets.find_qwen_ranks()


@pytest.mark.parametrize(
    ("text", "truth", "score", "accuracy"),
    [
        ("1 + 2 #### 3", "3", 1.0, 1.0),
        ("#### 4", "3", 0.5 / 6, 0.0),  # one digit of six characters, halved
        ("ab12", "3", 0.25, 0.0),
        ("", "3", 0.0, 0.0),
        (None, "3", 0.0, 0.0),
    ],
)
def test_reward(text: str | None, truth: str, score: float, accuracy: float) -> None:
    found = load("grpo_perf_reward").compute_score("x", text, truth, extra_info=None, anything=1)
    assert found == {"score": pytest.approx(score), "acc": accuracy}


FAKE_BUFFERS = """
class ReplayBuffer:
    def __init__(self, mode, poll_interval=2.0):
        self.mode, self.poll_interval = mode, poll_interval
"""
FAKE_ASYNC = "class ReplayBufferAsync(ReplayBuffer): pass\n"


def poll_intervals(tmp_path: Path, buffers: str) -> str:
    folder = tmp_path / "verl" / "trainer" / "ppo" / "v1"
    folder.mkdir(parents=True)
    (folder / "replay_buffer.py").write_text(buffers)
    script = "import grpo_perf_fast_poll as f; print([(n, getattr(f, n)('m').poll_interval, getattr(f, n)('m', "
    script += "poll_interval=1).poll_interval) for n in sorted(vars(f)) if n.startswith('FastPoll')])"
    environment = {"PYTHONPATH": f"{INSIDE}:{tmp_path}"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_fast_poll(tmp_path: Path) -> None:
    expected = "[('FastPollReplayBuffer', 0.02, 1), ('FastPollReplayBufferAsync', 0.02, 1)]"
    assert poll_intervals(tmp_path, FAKE_BUFFERS + FAKE_ASYNC) == expected


def test_fast_poll_of_a_verl_without_async_trainers(tmp_path: Path) -> None:
    assert poll_intervals(tmp_path, FAKE_BUFFERS) == "[('FastPollReplayBuffer', 0.02, 1)]"


def test_the_real_verl_still_takes_a_poll_interval(verl_python: Path) -> None:
    script = "import importlib.util as u; print(u.find_spec('verl').submodule_search_locations[0])"
    done = subprocess.run([verl_python, "-c", script], capture_output=True, text=True, check=True)
    source = Path(done.stdout.strip()) / "trainer" / "ppo" / "v1" / "replay_buffer.py"
    classes = {node.name: node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.ClassDef)}
    assert {"ReplayBuffer", "ReplayBufferAsync"} <= set(classes)
    init = next(node for node in classes["ReplayBuffer"].body if getattr(node, "name", "") == "__init__")
    assert isinstance(init, ast.FunctionDef)
    assert "poll_interval" in [argument.arg for argument in [*init.args.args, *init.args.kwonlyargs]]
