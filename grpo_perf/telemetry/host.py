"""What the run costs the host: CPU time and memory of its processes, read from /proc at little cost."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from grpo_perf.telemetry.processes import RunProcesses, read_bytes, read_stat
from grpo_perf.units import BYTES_PER_GIB, NS_PER_S

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

_MEMORY_PERIOD_NS = NS_PER_S
_PSS_PERIOD_NS = 10 * NS_PER_S
_PSS_BUDGET_NS = 4_000_000
"""Per memory poll: 0.4 % of a core."""
_PSS_MAX_BYTES = 8 * BYTES_PER_GIB
"""smaps_rollup walks all pages with the process's memory map locked, about 3 ms a GiB: not above this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReading:
    """The run's processes between two polls."""

    t0_ns: int
    t1_ns: int
    busy_fraction: float
    memory_gib: float | None


class HostMeter:
    """CPU and memory of the run's processes."""

    def __init__(self, processes: RunProcesses, *, num_cores: float, proc: str = "/proc") -> None:
        self._processes = processes
        self._num_cores = num_cores
        self._proc = proc
        self._memory = MemoryMeter(proc)
        self._counters: dict[int, tuple[int, int]] = {}
        """pid -> (start, CPU time) in ticks."""
        self._stamp_ns: int | None = None

    def poll(self, now_ns: int) -> HostReading | None:
        """Busy fraction (0..1 of all cores) since the last poll and memory now; None on the first poll."""
        t0_ns, self._stamp_ns = self._stamp_ns, now_ns
        num_ticks = self._count_ticks(now_ns)
        memory_bytes = self._memory.poll(self._counters, now_ns)
        if t0_ns is None or now_ns <= t0_ns:
            return None
        capacity_ticks = (now_ns - t0_ns) / NS_PER_S * _TICKS_PER_S * self._num_cores
        return HostReading(
            t0_ns=t0_ns,
            t1_ns=now_ns,
            # Ticks are 10 ms, so one interval can hold a tick that belongs to its neighbour; the sum stays right.
            busy_fraction=min(1.0, num_ticks / capacity_ticks),
            memory_gib=memory_bytes / BYTES_PER_GIB if memory_bytes is not None else None,
        )

    def _count_ticks(self, now_ns: int) -> int:
        newborn = dict(self._processes.refresh(now_ns))
        total = 0
        counters: dict[int, tuple[int, int]] = {}
        for pid in (*self._counters, *newborn):
            if pid in counters:
                continue
            stat = read_stat(self._proc, pid)
            start, before = self._counters.get(pid, (None, 0))
            if stat is None or (start is not None and stat.start_ticks != start):
                self._processes.forget(pid)
                continue
            if start is not None or newborn[pid]:
                total += max(0, stat.cpu_ticks - before)
            counters[pid] = (stat.start_ticks, stat.cpu_ticks)
        self._counters = counters
        return total


class MemoryMeter:
    """Memory of the run's processes, counting what they share once where that is cheap to know.

    Once a second: resident minus shared pages of each process (statm, cheap). To it comes the process's part of shared
    pages, PSS minus the same: it changes slowly, so it is read again every 10 s only, within a budget of time.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._due_ns = 0
        self._bytes: int | None = None
        self._shares: dict[int, tuple[int, int]] = {}
        """pid -> (when it is due again, bytes)."""

    def poll(self, pids: Iterable[int], now_ns: int) -> int | None:
        """Bytes of all these processes, at most a second old; None where there is no process."""
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _MEMORY_PERIOD_NS
            self._bytes = self._measure(pids, now_ns)
        return self._bytes

    def _measure(self, pids: Iterable[int], now_ns: int) -> int | None:
        private: dict[int, tuple[int, int]] = {}
        for pid in pids:
            statm = read_bytes(f"{self._proc}/{pid}/statm")
            if statm:
                _size, resident, shared = statm.split(b" ", 3)[:3]
                private[pid] = int(resident) * _PAGE_BYTES, (int(resident) - int(shared)) * _PAGE_BYTES
        self._refresh_shares(private, now_ns)
        if not private:
            return None
        return sum(own + self._shares.get(pid, (0, 0))[1] for pid, (_resident, own) in private.items())

    def _refresh_shares(self, private: dict[int, tuple[int, int]], now_ns: int) -> None:
        self._shares = {pid: share for pid, share in self._shares.items() if pid in private}
        begun_ns = time.perf_counter_ns()
        for pid in sorted(private, key=lambda pid: self._shares.get(pid, (0, 0))):
            due_ns, _share = self._shares.get(pid, (0, 0))
            if due_ns > now_ns or time.perf_counter_ns() - begun_ns > _PSS_BUDGET_NS:
                return
            resident, own = private[pid]
            pss = self._read_pss(pid) if resident <= _PSS_MAX_BYTES else None
            self._shares[pid] = now_ns + _PSS_PERIOD_NS, pss - own if pss is not None else 0

    def _read_pss(self, pid: int) -> int | None:
        rollup = read_bytes(f"{self._proc}/{pid}/smaps_rollup") or b""
        for line in rollup.splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
        return None


def count_usable_cores(cgroup: Path = Path("/sys/fs/cgroup/cpu.max")) -> float:
    """Cores that the run may use: those it may be scheduled on, or less where a container's quota says so.

    Source: cgroup v2, `cpu.max` holds "<quota> <period>" in microseconds, or "max <period>".
    """
    num_cores = float(len(os.sched_getaffinity(0)))
    fields = (read_bytes(str(cgroup)) or b"").split()
    if len(fields) == 2 and fields[0].isdigit():
        return min(num_cores, int(fields[0]) / int(fields[1]))
    return num_cores
