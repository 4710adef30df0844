"""Prints the version of the verl that this interpreter would import, and the interpreter; imports nothing of verl.

Runs under the interpreter that is asked, so it is written for old Pythons too. Exit code 1: no verl there.
"""

import importlib.metadata
import importlib.util
import pathlib
import sys


def find_version():
    """The version of verl: as its checkout or release says, else as its distribution does; None where there is none."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.origin:  # a folder that is merely called verl has no origin
        return None
    path = pathlib.Path(spec.origin).parent / "version" / "version"
    if path.is_file():
        return path.read_text().strip()
    try:
        return importlib.metadata.version("verl")
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


if __name__ == "__main__":
    version = find_version()
    if version is None:
        sys.exit(1)
    print(version, sys.executable, sep="\t")
