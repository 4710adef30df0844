"""DESIGN's table of rooms: lower never imports higher, siblings never import each other."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "grpo_perf"

ROOMS = {
    0: ("errors", "units", "metrics", "record", "types"),
    1: ("catalog", "telemetry", "timeline", "verdict"),
    2: ("engine", "baseline", "diagnose", "adopt", "history"),
    3: ("report",),
    4: ("runner", "campaigns"),
    5: ("options", "suite", "gate", "truth", "plugin", "cli"),
}
LEVELS = {room: level for level, rooms in ROOMS.items() for room in rooms}

OPEN_LEVELS = (0, 5)
"""Plain data refers to plain data; the front doors share options, suite and gate."""

ONLY_IN = {
    "verl": ("engine/inside/",),
    "vllm": ("engine/inside/",),
    "torch": ("engine/inside/",),
    "transformers": ("engine/inside/",),
    "tokenizers": ("engine/inside/",),
    "hydra": ("engine/inside/",),
    "omegaconf": ("engine/inside/",),
    "codetiming": ("engine/inside/",),
    "pynvml": ("telemetry/nvml.py",),
    "ray": ("engine/inside/", "telemetry/ray_nodes.py"),
    "matplotlib": ("report/",),
    "tabulate": ("report/", "runner/plan.py"),
    "pytest": ("options.py", "suite.py", "gate.py", "truth.py", "plugin.py"),
}

FILES = sorted(PACKAGE.rglob("*.py"))


def list_imports(source: str) -> Iterator[str]:
    """Dotted names that a module imports, those inside functions too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def find_room(dotted: str) -> str | None:
    """`catalog` of `grpo_perf.catalog.load`; None for the package itself and for others."""
    parts = dotted.split(".")
    return parts[1] if parts[0] == "grpo_perf" and len(parts) > 1 and not parts[1].startswith("__") else None


def find_violations(room: str, source: str) -> list[str]:
    """Imports of a module in `room` that the table forbids."""
    wrong = []
    for name in list_imports(source):
        other = find_room(name)
        if other is None or other == room:
            continue
        higher = LEVELS[other] > LEVELS[room]
        sibling = LEVELS[other] == LEVELS[room] and LEVELS[room] not in OPEN_LEVELS
        if higher or sibling:
            wrong.append(name)
    return wrong


def room_of(path: Path) -> str:
    """The room that a file lies in."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(PACKAGE)) for path in FILES])
def test_imports_point_down(path: Path) -> None:
    if path.name == "__init__.py" and path.parent == PACKAGE:
        assert not list(list_imports(path.read_text()))
    else:
        assert find_violations(room_of(path), path.read_text()) == []


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(PACKAGE)) for path in FILES])
def test_heavy_libraries_stay_where_they_belong(path: Path) -> None:
    relative = path.relative_to(PACKAGE).as_posix()
    for name in list_imports(path.read_text()):
        allowed = ONLY_IN.get(name.partition(".")[0])
        assert allowed is None or relative.startswith(allowed), f"{relative} imports {name}"


def test_measured_processes_need_nothing_of_ours() -> None:
    for path in (PACKAGE / "engine" / "inside").glob("*.py"):
        assert not [name for name in list_imports(path.read_text()) if name.startswith("grpo_perf.")], path.name


def test_every_room_is_in_the_table() -> None:
    assert {room_of(path) for path in FILES} - {"__init__"} <= LEVELS.keys()


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("verdict", "from grpo_perf.baseline import load_baseline"),
        ("verdict", "from grpo_perf.timeline import measure"),
        ("types", "from grpo_perf.catalog import Catalog"),
        ("report", "def f():\n    from grpo_perf.runner import judge_folder"),
    ],
)
def test_a_forbidden_import_is_found(room: str, source: str) -> None:
    assert find_violations(room, source)
