"""The bundle for air-gapped GPU hosts: slimming, packing, unpacking, and what the scripts refuse."""

import json
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ci.sandbox import ROOT, make_sandbox
from tests.ci.test_helpers import load
from tests.ci.test_locks import read_pins

OFFLINE = ROOT / "ci" / "offline"
PTX, CODE = 1, 2


# --- GPU code of other architectures


def entry(kind: int, arch: int, body: bytes) -> bytes:
    header = bytearray(64)
    struct.pack_into("<HHIQ", header, 0, kind, 0, 64, len(body))
    struct.pack_into("<I", header, 28, arch)
    return bytes(header) + body


def fat_binary(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_only_usable_gpu_code_stays_and_nothing_moves() -> None:
    kept = entry(PTX, 80, b"p" * 8) + entry(CODE, 90, b"c" * 24)
    before = b"ELF" + fat_binary(entry(CODE, 80, b"x" * 16), kept, entry(PTX, 100, b"y" * 8)) + b"tail"
    data = bytearray(before)
    # dropped: 64 + 16 and 64 + 8 bytes; kept: 64 + 8 and 64 + 24
    assert load("offline/slim_fatbin").slim(data, 90) == (160, 152)
    assert len(data) == len(before)
    assert data[:3] == b"ELF"
    assert data[-4:] == b"tail"
    assert data[3 + 16 :][:160] == kept
    assert struct.unpack_from("<Q", data, 3 + 8) == (160,)
    assert set(data[3 + 16 + 160 : -4]) == {0}


def test_fat_binary_of_other_gpus_keeps_its_smallest_entry() -> None:
    small = entry(CODE, 100, b"s")
    data = bytearray(fat_binary(entry(CODE, 80, b"x" * 16), small))
    assert load("offline/slim_fatbin").slim(data, 90) == (65, 80)
    assert data[16:][:65] == small


def test_chance_magic_is_left_alone() -> None:
    data = bytearray(b"\x50\xed\x55\xba" + b"\xff" * 40)
    before = bytes(data)
    assert load("offline/slim_fatbin").slim(data, 90) == (0, 0)
    assert data == before


def test_unknown_layout_is_refused() -> None:
    with pytest.raises(SystemExit, match="unknown entry at 0x10: kind 7"):
        load("offline/slim_fatbin").slim(bytearray(fat_binary(entry(7, 90, b"x" * 8))), 90)


# --- packing and unpacking


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle in parts of 30,000 bytes: code, and a program too big for one part."""
    site = tmp_path / "made" / "site"
    (site / "pkg").mkdir(parents=True)
    (site / "pkg" / "__init__.py").write_text("answer = 42\n")
    (site / "pkg" / "server").write_bytes(random.Random(0).randbytes(40_000))  # does not compress
    (site / "pkg" / "server").chmod(0o755)
    pack = load("offline/pack")
    monkeypatch.setattr(pack, "BIG_BYTES", 30_000)
    out = tmp_path / "bundle"
    pack.main(out, 30_000, {"site": site})
    for name in ("install.sh", "unpack.py", "check_host.py"):
        (out / name).write_bytes((OFFLINE / name).read_bytes())
    return out


def unpack(target: Path, bundle: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(bundle / "unpack.py"), str(target), str(bundle)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_parts_keep_to_their_size(bundle: Path) -> None:
    parts = sorted(bundle.glob("part*"))
    sizes = [sum(file.stat().st_size for file in part.iterdir()) for part in parts]
    assert len(parts) > 1
    assert set(sizes[:-1]) == {30_000}  # filled to the brim
    assert 0 < sizes[-1] <= 30_000
    assert not (bundle / "scratch").exists()


def test_bundle_is_unpacked_as_it_was(bundle: Path, tmp_path: Path) -> None:
    done = unpack(tmp_path / "host", bundle)
    assert done.returncode == 0, done.stderr
    for name in ("pkg/__init__.py", "pkg/server"):
        made, unpacked = (folder / "site" / name for folder in (tmp_path / "made", tmp_path / "host"))
        assert unpacked.read_bytes() == made.read_bytes()
        assert unpacked.stat().st_mode & 0o111 == made.stat().st_mode & 0o111


def test_code_can_be_unpacked_before_the_rest_arrives(bundle: Path, tmp_path: Path) -> None:
    late = bundle / "part2"
    late.rename(tmp_path / "late")
    first = unpack(tmp_path / "host", bundle)
    assert first.returncode == 4
    assert f"still to come: part2. Put them into {bundle}" in first.stdout
    assert (tmp_path / "host" / "site" / "pkg" / "__init__.py").is_file()
    assert not (tmp_path / "host" / "site" / "pkg" / "server").exists()
    (tmp_path / "late").rename(late)
    assert "unpacked 1 of 2 archives" in unpack(tmp_path / "host", bundle).stdout
    assert "unpacked 0 of 2 archives" in unpack(tmp_path / "host", bundle).stdout


def test_damaged_part_is_named(bundle: Path, tmp_path: Path) -> None:
    piece = next((bundle / "part2").iterdir())
    piece.write_bytes(piece.read_bytes()[:-1])
    done = unpack(tmp_path / "host", bundle)
    assert done.returncode == 1
    assert f"part2/{piece.name} is damaged: " in done.stderr
    assert f"Copy it to {bundle} again." in done.stderr


def test_folder_without_a_bundle_is_said(tmp_path: Path) -> None:
    command = [sys.executable, str(OFFLINE / "unpack.py"), str(tmp_path / "host"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("name the folder that holds manifest.json and the parts")


# --- install.sh on the host


def install(bundle: Path, *args: str, python: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", str(bundle / "install.sh"), *args],
        cwd=bundle.parent,
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def write_python(path: Path, is_3_12: bool) -> Path:
    """An interpreter that claims to be Python 3.12, or not."""
    path.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit {0 if is_3_12 else 1}\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


def test_install_makes_an_environment_to_source(bundle: Path, tmp_path: Path) -> None:
    python = write_python(tmp_path / "python", is_3_12=True)
    done = install(bundle, "host", str(ROOT), python=python)
    assert done.returncode == 0, done.stderr
    host = tmp_path / "host"
    assert f"next: . {host}/env.sh && " in done.stdout
    assert list((host / "site" / "pkg").glob("__pycache__/*.pyc"))
    assert "grpo_perf = grpo_perf.plugin" in (host / "site" / "grpo_perf-0.dist-info" / "entry_points.txt").read_text()
    script = f'. {host}/env.sh; printf "%s " "${{PATH%%:*}}" "$PYTHONPATH" "$GRPO_PERF_TOKENIZER"'
    shown = subprocess.run(["bash", "-c", script], env={"PATH": "/bin"}, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == [f"{host}/site/bin", f"{host}/site:{ROOT}", f"{host}/tokenizer"]


def test_install_of_some_parts_says_what_is_to_come(bundle: Path, tmp_path: Path) -> None:
    (bundle / "part2").rename(tmp_path / "late")
    done = install(bundle, "host", python=write_python(tmp_path / "python", is_3_12=True))
    assert done.returncode == 4
    assert "still to come: part2" in done.stdout
    assert not (tmp_path / "host" / "env.sh").exists()


def test_install_needs_the_python_that_the_wheels_are_for(bundle: Path, tmp_path: Path) -> None:
    done = install(bundle, "host", python=write_python(tmp_path / "python", is_3_12=False))
    assert done.returncode == 2
    assert "the bundle is for Python 3.12" in done.stderr


# --- what is bundled, and what the builder refuses


def test_bundle_has_the_locks_versions() -> None:
    locked = read_pins("suite.txt") | read_pins("gpu.txt")
    bundled = read_pins("../offline/overlay.txt")
    differing = {name: (version, locked.get(name)) for name, version in bundled.items() if locked.get(name) != version}
    # its version there is the suite's, not the one that verl's stack would like
    assert differing == {}


def test_patterns_stay_in_the_site_folder() -> None:
    lines = (OFFLINE / "unused.txt").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert patterns
    assert not [pattern for pattern in patterns if pattern.startswith("/") or ".." in pattern or " " in pattern]


def test_stand_in_says_what_it_is() -> None:
    script = (OFFLINE / "flash_attn_standin" / "build.sh").read_text()
    assert "Version: $version+standin" in script
    assert "Summary: stand-in backed by" in script  # what grpo_perf/engine/fingerprint.py looks for


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "OUT_DIR is missing"),
        (["out", "--part-mib", "0"], "--part-mib wants a whole number of MiB, not '0'"),
        (["out", "--part-mib"], "--part-mib wants a value"),
        (["out", "--flash-attn", "nothing.whl"], "--flash-attn: there is no nothing.whl"),
        (["out", "more"], "one OUT_DIR only, not also more"),
        (["out", "--fast"], "unknown option --fast"),
        (["full"], "full is not empty: name a new folder"),
        (["out"], "python3.12 is not Python 3.12, which the wheels are for"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_builder_refuses(tmp_path: Path, arguments: list[str], message: str) -> None:
    sandbox = make_sandbox(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    done = sandbox.run(str(sandbox.root / "ci" / "offline_bundle.sh"), *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert sandbox.installed() == []


def test_manifest_names_every_piece(bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    listed = {piece["file"] for archive in manifest["archives"] for piece in archive["pieces"]}
    there = {path.relative_to(bundle).as_posix() for path in bundle.glob("part*/*")}
    assert listed == there
    assert set(manifest["folders"].values()) == {"site"}
