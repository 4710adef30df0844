"""Packs folders into compressed archives and lays these into parts of at most a given size, with a manifest.

An archive may be cut at the end of a part; its pieces are joined again where it is unpacked. Code comes first, so that
a host can unpack and compile it while the big binaries are still on their way.

usage: pack.py OUT_DIR PART_MIB NAME=FOLDER...
"""

import concurrent.futures
import hashlib
import json
import os
import sys
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
BIG_BYTES = 16 * MIB
"""A file of this size gets an archive of its own."""
NUM_CODE_ARCHIVES = 4
"""The rest is spread over so many archives, so that a host unpacks them side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """What goes into one compressed file."""

    name: str
    folder: Path
    files: list[str]
    is_big: bool = False
    """Holds one big file, which is needed only when a run starts."""


def plan_archives(name: str, folder: Path) -> list[Archive]:
    """Archives of a folder: code first, then the big files, largest last."""
    sizes = {path.relative_to(folder).as_posix(): path.lstat().st_size for path in list_files(folder)}
    big = sorted((file for file in sizes if sizes[file] >= BIG_BYTES), key=lambda file: (sizes[file], file))
    groups: dict[str, list[str]] = {}
    for file in sorted(sizes.keys() - set(big)):
        groups.setdefault(file.split("/")[0], []).append(file)
    loads = {top: sum(sizes[file] for file in files) for top, files in groups.items()}
    bins = spread(loads, min(NUM_CODE_ARCHIVES, 1 + sum(loads.values()) // BIG_BYTES))
    code = [
        Archive(name=f"{name}-{number}", folder=folder, files=[file for top in tops for file in groups[top]])
        for number, tops in enumerate(bins)
    ]
    return code + [Archive(name=f"{name}-{Path(file).name}", folder=folder, files=[file], is_big=True) for file in big]


def list_files(folder: Path) -> Iterator[Path]:
    """Files and links below a folder, in a fixed order."""
    for base, folders, files in os.walk(folder):
        folders.sort()
        yield from (Path(base, name) for name in sorted(files))


def spread(sizes: dict[str, int], num_bins: int) -> list[list[str]]:
    """Names in at most so many bins of about the same size (largest first, each into the emptiest bin)."""
    bins: list[list[str]] = [[] for _ in range(num_bins)]
    loads = [0] * num_bins
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        emptiest = loads.index(min(loads))
        bins[emptiest].append(name)
        loads[emptiest] += sizes[name]
    return [names for names in bins if names]


def compress(archive: Archive, target: Path) -> None:
    """Write NAME.tar.xz; owners are left out, so that it does not tell who built it."""
    with tarfile.open(target, "w:xz", preset=6) as tar:
        for file in archive.files:
            tar.add(archive.folder / file, arcname=file, filter=_forget_owner)


def _forget_owner(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def lay_out(archives: Iterable[tuple[str, bytes]], out: Path, part_bytes: int) -> dict[str, object]:
    """Write the archives into part1, part2, ... and return the manifest."""
    number, room = 1, part_bytes
    listed = []
    for name, data in archives:
        pieces = []
        while data:
            if room == 0:
                number, room = number + 1, part_bytes
            piece, data = data[:room], data[room:]
            room -= len(piece)
            file = f"part{number}/{name}.tar.xz.{len(pieces)}"
            (out / file).parent.mkdir(parents=True, exist_ok=True)
            (out / file).write_bytes(piece)
            pieces.append({"file": file, "num_bytes": len(piece), "sha256": hashlib.sha256(piece).hexdigest()})
        listed.append({"name": name, "pieces": pieces})
    return {"schema": 1, "archives": listed}


def main(out: Path, part_bytes: int, folders: dict[str, Path]) -> None:
    """Pack folders; the target of each on the host is its name."""
    archives = [(name, archive) for name, folder in folders.items() for archive in plan_archives(name, folder)]
    archives.sort(key=lambda pair: pair[1].is_big)  # stable: code of all folders before big files of any
    scratch = out / "scratch"
    scratch.mkdir(parents=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:  # xz works outside the interpreter's lock
        jobs = [pool.submit(compress, archive, scratch / archive.name) for _, archive in archives]
        for job in jobs:
            job.result()
    packed = ((archive.name, (scratch / archive.name).read_bytes()) for _, archive in archives)
    manifest = lay_out(packed, out, part_bytes)
    manifest["folders"] = {archive.name: name for name, archive in archives}
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    for file in scratch.iterdir():
        file.unlink()
    scratch.rmdir()


if __name__ == "__main__":
    out_dir, part_mib, *named = sys.argv[1:]
    pairs = (argument.partition("=") for argument in named)
    main(Path(out_dir), int(part_mib) * MIB, {name: Path(folder) for name, _, folder in pairs})
