"""What the measured interpreter has installed, and whether its verl accepts the overrides, before anything is started.

verl's schema is asked of the measured verl itself: a key that exists there is right, whatever guides say.
"""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_perf.catalog import nearest
from grpo_perf.errors import UsageError
from grpo_perf.types import Scalar

TESTED_VERLS = ("0.9.0", "0.9.1")

_SCRIPT = Path(__file__).parent / "inside" / "grpo_perf_schema.py"
_TIMEOUT_S = 120.0  # a cold interpreter on a network disk; warm it takes about 1 s

# What tuning guides call settings, and what verl 0.9 has in their place (FINDINGS.md section 1).
_RENAMED: tuple[tuple[str, str], ...] = (
    (
        r".*\boptim\.lr_scheduler",
        "verl calls it lr_scheduler_type: actor_rollout_ref.actor.optim.lr_scheduler_type=cosine.",
    ),
    (
        r".*\bsharding_strategy",
        "verl has no such key. FULL_SHARD is fsdp_config.fsdp_size=-1 with fsdp_config.reshard_after_forward=True.",
    ),
    (r".*\blimit_all_gathers", "verl has no such key: FSDP1 limits all-gathers by default. Remove the override."),
    (r".*\bmegatron\..*", "Megatron's keys exist only with the Megatron engine: add model_engine=megatron."),
)


def inspect_python(python: Path) -> dict[str, str | None]:
    """Versions of python, verl, vllm, torch and what belongs to them in that interpreter; None where not installed.

    Raises:
        UsageError: the interpreter cannot be started.
    """
    answer: dict[str, str | None] = _ask(python, ["versions"], "", os.environ)
    return answer


def describe_untested(versions: Mapping[str, str | None]) -> str | None:
    """A warning line for a verl that this suite was not tested with, None for a tested one."""
    version = versions.get("verl")
    if version is None or version in TESTED_VERLS:
        return None
    tested = " and ".join(TESTED_VERLS)
    return f"verl {version} is untested: grpo-perf was tested with verl {tested}. It is measured all the same."


def resolve(python: Path, hydra_overrides: list[str], env: Mapping[str, str]) -> dict[str, Scalar]:
    """verl's configuration after Hydra, flattened to dotted keys; lists are JSON text.

    Raises:
        UsageError: no verl in that interpreter, or an override that its verl does not accept.
    """
    for override in hydra_overrides:
        if override.startswith("-"):
            raise UsageError(
                f"Override {override!r}: Hydra's keys have no leading '--'. Write {override.lstrip('-')!r}."
            )
    answer = _ask(python, ["compose"], json.dumps(hydra_overrides), env)
    if "config" in answer:
        config: dict[str, Scalar] = answer["config"]
        return config
    raise UsageError(_explain(python, answer))


def _explain(python: Path, answer: dict[str, Any]) -> str:
    error = answer["error"]
    install = f"{python} -m pip install verl=={TESTED_VERLS[-1]}"
    if error in ("no verl", "no hydra"):
        missing = "verl" if error == "no verl" else "hydra-core, which verl needs,"
        return (
            f"{missing} is not installed in {python}. Install it there: {install}, "
            "or name the interpreter that has it: --perf-python PATH"
        )
    if error == "no schema":
        return (
            f"The verl of {python} has no ppo_trainer.yaml in {answer['message']}. "
            f"grpo-perf was tested with verl {' and '.join(TESTED_VERLS)}: {install}"
        )
    return explain_rejection(answer["message"], answer["keys"])


def explain_rejection(message: str, keys: list[str]) -> str:
    """What a person needs to mend an override that Hydra refused.

    Args:
        message: Hydra's own.
        keys: all keys of the measured verl's schema.
    """
    if found := re.search(r"Could not append to config\. An item is already at '([^']+)'", message):
        return f"verl has the key {found[1]!r} already: write it without '+', or with '++'."
    said = " ".join(message.partition("Config search path")[0].split()).rstrip(".")
    found = re.search(r"Could not override '([^']+)'", message)
    if found is None:
        return f"verl's configuration refuses the overrides: {said}. Mend the override it names."
    key = found[1]
    if key in keys:  # the key is right and the value is not
        return f"verl refuses the value given for {key!r}: {said}. Mend the value."
    return f"The measured verl has no key {key!r}. {_hint(key, keys)}"


def _hint(key: str, keys: list[str]) -> str:
    for pattern, advice in _RENAMED:
        if re.fullmatch(pattern, key):
            return advice
    close = nearest_key(key, keys)
    meant = f"Did you mean {close!r}? " if close else ""
    return f"{meant}To add a key that verl's schema does not have, write '+{key}=...'."


def nearest_key(key: str, keys: list[str]) -> str | None:
    """The key of the schema that `key` was most likely meant to be.

    A shortened key of the guides (`actor.use_dynamic_bsz`) is found by its end, a misspelt one among its siblings.
    """
    by_end = [known for known in keys if known.endswith(f".{key}")]
    if by_end:
        return min(by_end, key=len)
    parent, _, name = key.rpartition(".")
    while parent and parent not in keys:
        parent, _, name = parent.rpartition(".")
    siblings = {known.rpartition(".")[2]: known for known in keys if known.rpartition(".")[0] == parent}
    close = nearest(name, siblings)
    if close is not None:
        return siblings[close] + key.removeprefix(f"{parent}.{name}" if parent else name)
    by_name = {known.rpartition(".")[2]: known for known in reversed(keys)}
    close = nearest(key.rpartition(".")[2], by_name, cutoff=0.8)  # anywhere: only if it looks very much alike
    return by_name[close] if close else None


def _ask(python: Path, arguments: list[str], stdin: str, env: Mapping[str, str]) -> dict[str, Any]:
    command = [str(python), str(_SCRIPT), *arguments]
    try:
        done = subprocess.run(
            command, input=stdin, env=dict(env), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        answer = json.loads(done.stdout)
    except OSError as error:
        raise UsageError(f"{python} cannot be started: {error}. Name an interpreter: --perf-python PATH") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(
            f"{python} gave no answer within {_TIMEOUT_S:.0f} s. Does it start at all? Try: {python} -c 'print(1)'"
        ) from error
    except ValueError as error:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UsageError(
            f"{python} cannot say what it has installed (exit code {done.returncode}): {last}. "
            "Name a Python interpreter of 3.10 or later: --perf-python PATH"
        ) from error
    return answer if isinstance(answer, dict) else {}
