"""Which processes are of the run: descendants of its root, and whoever carries its id in the environment.

    every poll         last pid of the system moved?  no -> nothing was started, nothing to look for
                                                      yes -> list /proc, look at the parents of the new pids only
    every 2 s or more  environments of all other processes: finds orphans that lost their parent before we saw them

Looking costs, so a look is repeated only after a hundred times the time that it took: at most 1 % of a core each.
"""

import os
import time
from collections.abc import Iterable
from typing import NamedTuple

_ENVIRON_PERIOD_NS = 2_000_000_000
_COST_FACTOR = 100


class ProcessStat(NamedTuple):
    """The few fields of /proc/<pid>/stat that are used."""

    parent: int
    cpu_ticks: int
    """utime + stime of all its threads."""
    start_ticks: int
    """With the pid, names a process uniquely: pids are used again."""


def read_bytes(path: str) -> bytes | None:
    """The whole small file, None where the process is gone or is not ours to read."""
    # os.open and os.read: pathlib and io objects cost more than the kernel's part of the work.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = chunk = os.read(descriptor, 8192)
        while len(chunk) == 8192:
            chunk = os.read(descriptor, 8192)
            data += chunk
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return data


def read_stat(proc: str, pid: int) -> ProcessStat | None:
    """Parent, CPU time and start of a process, None where it is gone.

    Source: proc_pid_stat(5); the name in parentheses may itself hold blanks and parentheses.
    """
    data = read_bytes(f"{proc}/{pid}/stat")
    if not data:
        return None
    fields = data[data.rindex(b")") + 2 :].split(b" ", 20)
    return ProcessStat(int(fields[1]), int(fields[11]) + int(fields[12]), int(fields[19]))


class FoundProcess(NamedTuple):
    """A process of the run, seen for the first time."""

    pid: int
    is_newborn: bool
    """It was started after the last look: all its CPU time belongs to the present interval."""


class RunProcesses:
    """The pids of the run, kept up to date at little cost."""

    def __init__(self, *, run_id: str, root_pid: int, proc: str = "/proc", own_pid: int | None = None) -> None:
        """Args: own_pid: the sampler, which is never of the run though the run's owner is its parent too."""
        self._proc = proc
        self._own_pid = os.getpid() if own_pid is None else own_pid
        self._mark = f"\0GRPO_PERF_RUN_ID={run_id}\0".encode()
        self._root_pid = root_pid
        self._pids: set[int] = set()
        self._others: set[int] = set()
        self._last_pid: bytes | None = None
        self._listing_due_ns = 0
        self._environ_due_ns = 0
        self._has_listed = False

    @property
    def pids(self) -> frozenset[int]:
        """Processes of the run that are known now."""
        return frozenset(self._pids)

    def forget(self, pid: int) -> None:
        """The process ended; its pid may be given to another one."""
        self._pids.discard(pid)

    def refresh(self, now_ns: int) -> list[FoundProcess]:
        """Look for processes that joined the run since the last call."""
        found: list[FoundProcess] = []
        if now_ns >= self._listing_due_ns and self._has_anything_started():
            begun_ns = time.perf_counter_ns()
            found += self._look_at_new_pids()
            self._listing_due_ns = now_ns + _COST_FACTOR * (time.perf_counter_ns() - begun_ns)
        if now_ns >= self._environ_due_ns:
            begun_ns = time.perf_counter_ns()
            found += self._look_at_environments()
            self._last_pid = None  # list again: a pid may have been given out before its process could be listed
            cost_ns = time.perf_counter_ns() - begun_ns
            self._environ_due_ns = now_ns + max(_ENVIRON_PERIOD_NS, _COST_FACTOR * cost_ns)
        return found

    def owns(self, pid: int) -> bool | None:
        """Whether the process is of the run (or is the sampler); None where this pid names nobody here."""
        if pid in self._pids or pid == self._own_pid:
            return True
        if pid <= 0 or not os.path.exists(f"{self._proc}/{pid}"):  # noqa: PTH110 - on the sampling path
            return None
        return self._is_marked(pid) or self._has_ancestor_in_run(pid)

    def _has_anything_started(self) -> bool:
        # The last field is the newest pid of this pid namespace, threads included. Source: proc_loadavg(5).
        newest = (read_bytes(f"{self._proc}/loadavg") or b"").rpartition(b" ")[2]
        has_moved = newest != self._last_pid or not newest
        self._last_pid = newest
        return has_moved

    def _look_at_new_pids(self) -> list[FoundProcess]:
        listed = {int(name) for name in os.listdir(self._proc) if name.isdigit()}
        listed.discard(self._own_pid)
        if self._root_pid in listed and not self._has_listed:
            self._pids.add(self._root_pid)
            first = [FoundProcess(self._root_pid, False)]
        else:
            first = []
        self._others &= listed
        fresh = listed - self._others - self._pids
        joined = self._take_descendants(fresh)
        self._others |= fresh - joined
        is_newborn, self._has_listed = self._has_listed, True
        return first + [FoundProcess(pid, is_newborn) for pid in sorted(joined)]

    def _look_at_environments(self) -> list[FoundProcess]:
        marked = {pid for pid in self._others if self._is_marked(pid)}
        if not marked:
            return []
        self._pids |= marked
        self._others -= marked
        marked |= self._take_descendants(self._others)
        self._others -= marked
        # How long they have been running unseen is not known: their CPU time counts from here on.
        return [FoundProcess(pid, False) for pid in sorted(marked)]

    def _take_descendants(self, candidates: Iterable[int]) -> set[int]:
        stats = ((pid, read_stat(self._proc, pid)) for pid in candidates)
        parents = {pid: stat.parent for pid, stat in stats if stat is not None}
        joined: set[int] = set()
        while True:
            children = {pid for pid, parent in parents.items() if parent in self._pids and pid not in joined}
            if not children:
                return joined
            joined |= children
            self._pids |= children

    def _is_marked(self, pid: int) -> bool:
        # Unreadable means another user's process, so not one of ours.
        environment = read_bytes(f"{self._proc}/{pid}/environ")
        return environment is not None and self._mark in b"\0" + environment + b"\0"

    def _has_ancestor_in_run(self, pid: int) -> bool:
        stat = read_stat(self._proc, pid)
        while stat is not None and stat.parent > 1:
            if stat.parent in self._pids:
                return True
            stat = read_stat(self._proc, stat.parent)
        return False
