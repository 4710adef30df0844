"""`python -m grpo_perf.telemetry.sampler`: the process beside the run that writes its device samples.

It ends on SIGTERM, and when its stdin ends: whoever started it is gone then. `process.py` starts it.
"""

import argparse
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from grpo_perf.record import write_json
from grpo_perf.telemetry.gpus import GpuMeter, Row
from grpo_perf.telemetry.hardware import list_visible
from grpo_perf.telemetry.host import HostMeter, count_usable_cores
from grpo_perf.telemetry.nvml import Nvml, NvmlError, PynvmlDevices
from grpo_perf.telemetry.processes import RunProcesses
from grpo_perf.telemetry.stream import SampleStream
from grpo_perf.types import Scalar
from grpo_perf.units import NS_PER_S

_FLUSH_PERIOD_NS = NS_PER_S
_HOST_DEVICE = -1

Wait = Callable[[float], bool]
"""Sleeps so many seconds; True where the sampler shall end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line."""

    run_dir: Path
    run_id: str
    root_pid: int
    period_s: float
    source: str
    """`gpm`, `nvml` or `host`."""


class Sampler:
    """Polls host and GPUs every period and appends what they say."""

    def __init__(self, *, stream: SampleStream, host: HostMeter, gpus: GpuMeter | None, period_s: float) -> None:
        self._stream = stream
        self._host = host
        self._gpus = gpus
        self._period_s = period_s
        self._rows: list[Row] = []

    def run(self, wait: Wait) -> None:
        """Sample until `wait` says so; what was sampled is written, however this ends.

        Raises:
            OSError: the samples cannot be written.
        """
        flush_due_ns = time.monotonic_ns() + _FLUSH_PERIOD_NS
        try:
            self._poll()
            # The period is slept after each pass, not up to a grid: GPM answers only for intervals over 100 ms.
            while not wait(self._period_s):
                self._poll()
                if time.monotonic_ns() + self._period_s * NS_PER_S > flush_due_ns:
                    self._flush()
                    flush_due_ns = time.monotonic_ns() + _FLUSH_PERIOD_NS
        finally:
            self._flush()

    def _poll(self) -> None:
        rows = self._gpus.poll() if self._gpus is not None else []
        reading = self._host.poll(time.monotonic_ns())
        if reading is not None:
            rows.append(
                {
                    "t0_ns": reading.t0_ns,
                    "t1_ns": reading.t1_ns,
                    "device": _HOST_DEVICE,
                    "host_busy_fraction": reading.busy_fraction,
                    "memory_used_gib": reading.memory_gib,
                }
            )
        cpu_s = time.process_time()
        self._rows += [row | {"sampler_cpu_s": cpu_s} for row in rows]

    def _flush(self) -> None:
        rows, self._rows = self._rows, []  # forgotten even where writing fails: memory stays constant
        if rows:
            self._stream.append(rows)


class Ending:
    """When to end: SIGTERM, end of stdin, or another parent than at the start."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN | select.POLLHUP)
        self._parent = os.getppid()
        self._is_asked = False
        signal.signal(signal.SIGTERM, self._ask)
        # Ctrl-C goes to a whole terminal; who started us decides what it means.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait(self, seconds: float) -> bool:
        """Sleep, shorter only where stdin ends; True where the sampler shall end."""
        if self._is_asked:
            return True
        # A fork of our parent may hold the pipe open after its death: then the change of parent tells.
        if self._poll.poll(seconds * 1000) and not os.read(self._descriptor, 4096):
            return True
        return self._is_asked or os.getppid() != self._parent

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._is_asked = True


def sample(options: Options, wait: Wait, nvml: Nvml | None = None) -> dict[str, Scalar]:
    """Sample until `wait` says so and return what sampler.json holds."""
    begun_ns = time.monotonic_ns()
    processes = RunProcesses(run_id=options.run_id, root_pid=options.root_pid)
    host = HostMeter(processes, num_cores=count_usable_cores())
    gpus, problem = _open_gpus(options, nvml if nvml is not None else PynvmlDevices(), processes)
    problems = [problem]
    num_rows = 0
    path = options.run_dir / "samples.arrow"
    try:
        stream = SampleStream(path)
        try:
            Sampler(stream=stream, host=host, gpus=gpus, period_s=options.period_s).run(wait)
        finally:
            num_rows = stream.num_rows
            stream.close()
    except OSError as error:
        problems.append(f"{path} cannot be written: {error.strerror}. Look: df -h {options.run_dir}")
    problems.append(gpus.problem if gpus is not None else None)
    return {
        "source": options.source if gpus is not None else "host",
        "period_s": options.period_s,
        "num_rows": num_rows,
        "sampler_cpu_s": time.process_time(),
        "sampler_wall_s": (time.monotonic_ns() - begun_ns) / NS_PER_S,
        "problem": "; ".join(text for text in problems if text) or None,
    }


def _open_gpus(options: Options, nvml: Nvml, processes: RunProcesses) -> tuple[GpuMeter | None, str | None]:
    if options.source == "host":
        return None, None
    try:
        nvml.open()
        indices = list_visible(nvml, os.environ)
    except NvmlError as error:
        return None, f"no GPU could be sampled: {error}. Look: nvidia-smi"
    return GpuMeter(nvml, indices, use_gpm=options.source == "gpm", owns=processes.owns), None


def parse_options(arguments: Sequence[str]) -> Options:
    """The command line as `process.py` writes it."""
    parser = argparse.ArgumentParser(prog="python -m grpo_perf.telemetry.sampler", description=__doc__)
    parser.add_argument(
        "--run-dir", type=Path, required=True, help="run folder; samples.arrow and sampler.json go here"
    )
    parser.add_argument("--run-id", required=True, help="value of GRPO_PERF_RUN_ID in the run's processes")
    parser.add_argument("--root-pid", type=int, required=True, help="process whose descendants are of the run")
    parser.add_argument("--period-s", type=float, default=0.1, help="seconds between samples")
    parser.add_argument("--source", choices=("gpm", "nvml", "host"), required=True, help="what the machine offers")
    return Options(**vars(parser.parse_args(arguments)))


def main() -> int:
    """Sample until told to end, then write sampler.json; 1 where something could not be written."""
    options = parse_options(sys.argv[1:])
    summary = sample(options, Ending(sys.stdin.fileno()).wait)
    try:
        write_json(options.run_dir / "sampler.json", summary)
    except OSError as error:
        print(f"{summary['problem'] or options.run_dir / 'sampler.json'}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
