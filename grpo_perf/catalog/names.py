"""Names of workloads and tiers, and the nearest known name for an error message."""

import difflib
import re
from collections.abc import Iterable

from grpo_perf.errors import UsageError

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.5) -> str | None:
    """The known name that `name` was most likely meant to be, or None if none is near (`cutoff`: difflib's ratio)."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return found[0] if found else None


def suggest(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for an error message, or the empty string."""
    found = nearest(name, known)
    return f" Did you mean {found!r}?" if found else ""


def check_name(name: str, where: str) -> str:
    """The name itself: it becomes part of paths, so it can neither leave a folder nor hide in one.

    Raises:
        UsageError: characters other than a-z, 0-9, `.` and `-`, or `..`.
    """
    if not _NAME.fullmatch(name) or ".." in name:
        raise UsageError(
            f"{where}: {name!r} is not a usable name. Names are made of a-z, 0-9, '.' and '-'; rename the file."
        )
    return name
