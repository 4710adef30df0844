"""Model, tokenizer and prompts of a workload: the user's own, or built once from a seed and kept by their recipe.

    cache_dir/assets/<12 hex digits>/{model/, train.parquet, val.parquet, spec.json}

A folder of that name is always whole: it is built beside and renamed.
"""

import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from grpo_perf.errors import EngineError, UsageError
from grpo_perf.types import Workload

_SCRIPT = Path(__file__).parent / "inside" / "grpo_perf_assets.py"
_TOKENIZER_ENV = "GRPO_PERF_TOKENIZER"
_NEEDS_PERSON = 3  # exit code of the script
_TIMEOUT_S = 900.0  # writing 15 GB of 7B weights to a slow disk
_FORMAT = 1  # raise when the script's output changes for the same spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Assets:
    """Where the inputs of a run lie."""

    model: Path
    train: Path
    val: Path


def build_assets(
    python: Path,
    workload: Workload,
    cache_dir: Path,
    env: Mapping[str, str],
    progress: Callable[[str], None] | None = None,
) -> Assets:
    """The workload's files, built under `python` if the cache has none yet.

    Raises:
        UsageError: a path of the user's does not exist, or the Qwen vocabulary is missing.
        EngineError: the build failed.
    """
    own = _find_own(workload)
    if len(own) == 3:
        return Assets(**own)
    spec = describe_assets(workload, env)
    folder = cache_dir / "assets" / _hash(spec)
    if not folder.is_dir():
        if progress is not None:
            progress(f"building model and data of {workload.name} in {folder}")
        _build(python, spec, folder, env)
    built = {"model": folder / "model", "train": folder / "train.parquet", "val": folder / "val.parquet"}
    return Assets(**(built | own))


def describe_assets(workload: Workload, env: Mapping[str, str]) -> dict[str, Any]:
    """All that determines the built files, as the script reads it.

    Raises:
        UsageError: GRPO_PERF_TOKENIZER names no tokenizer folder.
    """
    model = None if workload.model.path else msgspec.to_builtins(workload.model)
    tokenizer = env.get(_TOKENIZER_ENV) if model is not None and workload.model.tokenizer == "qwen" else None
    if tokenizer and not (Path(tokenizer) / "tokenizer_config.json").is_file():
        raise UsageError(
            f"{_TOKENIZER_ENV}={tokenizer} has no tokenizer_config.json. "
            f"Name a folder that a Hugging Face tokenizer was saved in, or unset it: unset {_TOKENIZER_ENV}"
        )
    return {
        "format": _FORMAT,
        "model": model,
        "tokenizer_path": tokenizer or None,
        "tokenizer_digest": _digest_folder(Path(tokenizer)) if tokenizer else None,
        "data": {
            "train": workload.train_files is None,
            "val": workload.val_files is None,
            "num_rows": workload.dataset_size,
            "seed": workload.model.seed,
            "min_terms": workload.min_terms,
            "max_terms": workload.max_terms,
        },
    }


def _find_own(workload: Workload) -> dict[str, Path]:
    wanted = {
        "model": ("model.path", workload.model.path),
        "train": ("train_files", workload.train_files),
        "val": ("val_files", workload.val_files),
    }
    found = {}
    for name, (field, text) in wanted.items():
        if text is None:
            continue
        path = Path(text).expanduser().absolute()
        if not path.exists():
            raise UsageError(
                f"workload {workload.name!r}: {field} is {text!r}, and there is nothing at {path}. "
                f"Mend {field} in perf_tests/workloads/{workload.name}.toml"
            )
        found[name] = path
    return found


def _digest_folder(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.json")):  # what a tokenizer does is all in its JSON files
        if file.name.startswith(("tokenizer", "vocab", "special_tokens_map", "added_tokens")):
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def _hash(spec: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:12]


def _build(python: Path, spec: dict[str, Any], folder: Path, env: Mapping[str, str]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        (scratch / "spec.json").write_text(json.dumps(spec, indent=1, sort_keys=True) + "\n")
        _run_script(python, scratch, env)
        scratch.chmod(0o755)  # mkdtemp's folder is private
        if not folder.is_dir():
            try:
                scratch.rename(folder)
            except OSError:  # another session finished the same build first
                if not folder.is_dir():
                    raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run_script(python: Path, scratch: Path, env: Mapping[str, str]) -> None:
    command = [str(python), str(_SCRIPT), str(scratch / "spec.json"), str(scratch)]
    try:
        done = subprocess.run(
            command,
            env=dict(env),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(
            f"Building model and data took more than {_TIMEOUT_S:.0f} s. Is the disk of {scratch.parent} slow or full? "
            f"See by hand: {' '.join(command)}"
        ) from error
    except OSError as error:
        raise UsageError(f"{python} cannot be started: {error}. Name an interpreter: --perf-python PATH") from error
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    if done.returncode == _NEEDS_PERSON:
        raise UsageError(f"Model and data cannot be built: {last}")
    if done.returncode:
        raise EngineError(
            f"Building model and data failed under {python} (exit code {done.returncode}): {last}. "
            f"See what {python} can run: grpo-perf doctor --python {python}"
        )
