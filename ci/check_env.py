"""Checks that the environment of this interpreter holds exactly what a lock says. Exit code 1 names what differs.

usage: PYTHON check_env.py LOCK
"""

import importlib.metadata
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path


def read_lock(lines: Iterable[str]) -> dict[str, str]:
    """Distribution -> version; lines for some platforms only (`name==1 ; marker`) are left out."""
    pins = {}
    for line in lines:
        name, separator, version = line.strip().partition("==")
        if separator and not name.startswith("#") and ";" not in version:
            pins[name] = version
    return pins


def find_differences(pins: Mapping[str, str]) -> list[str]:
    """A line for each distribution that is missing or of another version. A build tag (`+cpu`) is no difference."""
    problems = []
    for name, wanted in pins.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            problems.append(f"{name}: want {wanted}, not installed")
            continue
        if found.partition("+")[0] != wanted.partition("+")[0]:
            problems.append(f"{name}: want {wanted}, found {found}")
    return problems


if __name__ == "__main__":
    lock = Path(sys.argv[1])
    problems = find_differences(read_lock(lock.read_text().splitlines()))
    if problems:
        lines = [f"ci: {sys.executable} is not what {lock} says:", *(f"  {problem}" for problem in problems)]
        sys.exit("\n".join([*lines, f"Remove it and run again: rm -rf {sys.prefix}"]))
