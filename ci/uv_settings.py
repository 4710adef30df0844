"""Turns `pip config list` (standard input) into shell exports for uv, which does not read pip's settings.

What is set for uv already wins. Several values of one pip setting are separated by blanks. pip's extra indexes are left
out: pip asks all indexes for the best file, uv prefers some to others and would take worse files from a partial mirror.
"""

import ast
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

# pip's setting -> uv's variable and the separator of its values (uv's documentation, "Environment variables")
UV_NAMES = {
    "index-url": ("UV_DEFAULT_INDEX", None),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "no-index": ("UV_NO_INDEX", None),
    "cert": ("SSL_CERT_FILE", None),
}


def read_pip_settings(lines: Iterable[str]) -> dict[str, str]:
    """pip's settings by name. The environment wins over files, and `install.` over `global.`, as in pip."""
    strength = {"global": 0, "install": 1, ":env:": 2}
    found: dict[str, tuple[int, str]] = {}
    for line in lines:
        key, separator, value = line.strip().partition("=")
        section, _, name = key.rpartition(".")
        if not separator or section not in strength:
            continue
        if name not in found or strength[section] >= found[name][0]:
            found[name] = (strength[section], str(ast.literal_eval(value)))
    return {name: value for name, (_, value) in found.items()}


def translate(settings: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """The variables that uv needs beyond those in `env`."""
    wanted = {}
    for name, (variable, separator) in UV_NAMES.items():
        value = settings.get(name)
        if value:
            wanted[variable] = separator.join(value.split()) if separator else value
    wanted["UV_HTTP_TIMEOUT"] = "300"
    wanted["UV_PYTHON_DOWNLOADS"] = "never"
    if not _is_cache_writable(env):
        wanted["UV_CACHE_DIR"] = str(Path(".cache/uv").absolute())
    return {variable: value for variable, value in wanted.items() if variable not in env}


def _is_cache_writable(env: Mapping[str, str]) -> bool:
    home = env.get("XDG_CACHE_HOME") or env.get("HOME")
    return bool(home) and os.access(str(home), os.W_OK)


if __name__ == "__main__":
    for variable, value in translate(read_pip_settings(sys.stdin), os.environ).items():
        print(f"export {variable}={shlex.quote(value)}")
