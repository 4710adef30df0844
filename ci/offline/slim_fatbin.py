"""Leaves one GPU architecture's code, and PTX up to it, in the fat binaries of a CUDA library; edits the file in place.

The file keeps its size and layout: each fat binary's kept entries move to its front, its size field shrinks, and the
rest is zeroed, which compresses to nothing.

    fat binary   magic u32, version u16, header size u16, size of the entries u64; then entries
    entry        kind u16 (1 PTX, 2 machine code), u16, header size u32, size u64, ..., architecture u32 at 28

Source of the layout: the fat binaries that nvcc 13 writes; anything else is left as it is or refused.

usage: slim_fatbin.py FILE ARCHITECTURE (90 for sm_90)
"""

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAGIC = struct.pack("<I", 0xBA55ED50)
HEADER_BYTES = 16
PTX, MACHINE_CODE = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Code for one architecture."""

    kind: int
    arch: int
    raw: bytes

    def is_for(self, arch: int) -> bool:
        """Whether a GPU of that architecture can use it."""
        return self.arch == arch if self.kind == MACHINE_CODE else self.arch <= arch


def slim(data: bytearray, arch: int) -> tuple[int, int]:
    """Bytes of GPU code kept and dropped; `data` is changed."""
    num_kept, num_dropped = 0, 0
    for start, size in list(find_fat_binaries(data)):
        begin = start + HEADER_BYTES
        entries = list(read_entries(data, begin, begin + size))
        # a fat binary without any entry is none: of code for other GPUs only, its smallest entry stays
        kept = [entry.raw for entry in entries if entry.is_for(arch)] or [min((e.raw for e in entries), key=len)]
        body = b"".join(kept)
        total = sum(len(entry.raw) for entry in entries)
        num_kept, num_dropped = num_kept + len(body), num_dropped + total - len(body)
        data[begin : begin + size] = body + bytes(size - len(body))
        struct.pack_into("<Q", data, start + 8, len(body))
    return num_kept, num_dropped


def find_fat_binaries(data: bytearray) -> Iterator[tuple[int, int]]:
    """Start and size of the entries of each fat binary that has any."""
    position = 0
    while (start := data.find(MAGIC, position)) >= 0:
        position = start + 4
        if start + HEADER_BYTES > len(data):
            return
        version, header_bytes, size = struct.unpack_from("<HHQ", data, start + 4)
        if (version, header_bytes) == (1, HEADER_BYTES) and 0 < size <= len(data) - start - HEADER_BYTES:
            yield start, size
            position = start + HEADER_BYTES + size


def read_entries(data: bytearray, begin: int, end: int) -> Iterator[Entry]:
    """The entries between two offsets."""
    while begin + 64 <= end:
        kind, _, header_bytes = struct.unpack_from("<HHI", data, begin)
        (size,) = struct.unpack_from("<Q", data, begin + 8)
        (arch,) = struct.unpack_from("<I", data, begin + 28)
        if kind not in (PTX, MACHINE_CODE) or header_bytes < 64 or begin + header_bytes + size > end:
            raise SystemExit(f"unknown entry at {begin:#x}: kind {kind}, header of {header_bytes}, size {size} bytes")
        yield Entry(kind=kind, arch=arch, raw=bytes(data[begin : begin + header_bytes + size]))
        begin += header_bytes + size


def main(path: Path, arch: int) -> None:
    """Slim a file."""
    data = bytearray(path.read_bytes())
    num_kept, num_dropped = slim(data, arch)
    with path.open("r+b") as file:  # keeps mode and links
        file.write(data)
    print(f"{path.name}: kept {num_kept / 1e6:.1f} MB of GPU code, dropped {num_dropped / 1e6:.1f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
