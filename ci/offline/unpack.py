"""Unpacks the parts of a bundle that have arrived; can be run again when more have. Standard library only.

    unpack.py TARGET BUNDLE_DIR     BUNDLE_DIR holds manifest.json and part1/, part2/, ...

Exit codes: 0 everything is unpacked, 4 parts are missing (they are named), 1 a part is damaged.
"""

import concurrent.futures
import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

EXIT_DAMAGED, EXIT_INCOMPLETE = 1, 4


def unpack(target: Path, bundle: Path) -> int:
    """Unpack what can be, in parallel; returns the exit code."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    done = target / ".unpacked"
    done.mkdir(parents=True, exist_ok=True)
    missing: set[str] = set()
    jobs = {}
    with concurrent.futures.ProcessPoolExecutor() as pool:
        for archive in manifest["archives"]:
            name = archive["name"]
            if (done / name).is_file() and (done / name).read_text() == fingerprint(archive):
                continue
            absent = [piece["file"] for piece in archive["pieces"] if not (bundle / piece["file"]).is_file()]
            missing.update(file.split("/")[0] for file in absent)
            if not absent:
                jobs[name] = pool.submit(extract, archive, bundle, target / manifest["folders"][name])
        for archive in manifest["archives"]:
            if archive["name"] in jobs:
                jobs[archive["name"]].result()
                (done / archive["name"]).write_text(fingerprint(archive))
    print(f"unpacked {len(jobs)} of {len(manifest['archives'])} archives into {target}")
    if missing:
        print(f"still to come: {', '.join(sorted(missing))}. Put them into {bundle} and run this again.")
        return EXIT_INCOMPLETE
    return 0


def fingerprint(archive: dict[str, Any]) -> str:
    """Changes when the archive does."""
    return " ".join(piece["sha256"] for piece in archive["pieces"])


def extract(archive: dict[str, Any], bundle: Path, target: Path) -> None:
    """Join the pieces of an archive and unpack it."""
    joined = io.BytesIO()
    for piece in archive["pieces"]:
        data = (bundle / piece["file"]).read_bytes()
        if hashlib.sha256(data).hexdigest() != piece["sha256"]:
            raise SystemExit(
                f"{piece['file']} is damaged: {len(data)} bytes, want {piece['num_bytes']}. Copy it to {bundle} again."
            )
        joined.write(data)
    joined.seek(0)
    with tarfile.open(fileobj=joined, mode="r:xz") as tar:
        for member in tar:
            safe = tarfile.data_filter(member, str(target))  # refuses names that leave the folder
            # tarfile's own making of folders fails where another process makes the same one
            (target / safe.name).parent.mkdir(parents=True, exist_ok=True)
            tar.extract(safe, target, filter="fully_trusted")


if __name__ == "__main__":
    try:
        sys.exit(unpack(Path(sys.argv[1]), Path(sys.argv[2])))
    except FileNotFoundError as error:
        print(f"{error.filename} is missing: name the folder that holds manifest.json and the parts", file=sys.stderr)
        sys.exit(EXIT_DAMAGED)
