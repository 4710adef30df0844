"""Starts the sampler beside a run and ends it: the run never waits for it and never fails because of it."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

import grpo_perf
from grpo_perf.errors import PerfError, UsageError
from grpo_perf.record import read_samples
from grpo_perf.types import Hardware, Scalar

MIN_PERIOD_S = 0.1
"""GPM answers only for intervals over 100 ms."""

STOP_TIMEOUT_S = 5.0


class SamplerProcess:
    """A running sampler. It ends by itself when this process dies: its stdin is a pipe to us."""

    def __init__(self, process: subprocess.Popen[bytes], run_dir: Path, *, source: str, period_s: float) -> None:
        self._process = process
        self._run_dir = run_dir
        self._source = source
        self._period_s = period_s
        self._begun_s = time.monotonic()
        self._result: dict[str, Scalar] | None = None

    @property
    def pid(self) -> int:
        """Process id of the sampler."""
        return self._process.pid

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> dict[str, Scalar]:
        """End the sampler within `timeout_s` seconds (then it is killed) and return what it says of itself.

        Safe to repeat. A sampler that died on its own gives a result too: `problem` says why, the rest is computed
        from the rows that it left.
        """
        if self._result is None:
            has_died = self._process.poll() is not None
            was_killed, stderr = self._end(timeout_s)
            self._result = self._summarize(has_died, was_killed, stderr)
        return dict(self._result)

    def _end(self, timeout_s: float) -> tuple[bool, str]:
        self._process.terminate()
        try:
            stderr = self._process.communicate(timeout=timeout_s)[1]
            return False, stderr.decode(errors="replace")
        except subprocess.TimeoutExpired:
            self._process.kill()
            # A process stuck in the driver does not die before the driver answers: it is left to init then.
            with suppress(subprocess.TimeoutExpired):
                self._process.communicate(timeout=1)
            return True, ""

    def _summarize(self, has_died: bool, was_killed: bool, stderr: str) -> dict[str, Scalar]:
        try:
            told = msgspec.json.decode((self._run_dir / "sampler.json").read_bytes(), type=dict[str, Scalar])
        except (OSError, msgspec.DecodeError):
            told = self._count_rows()
        problem = told["problem"]
        if was_killed:
            problem = problem or "the sampler did not end in time after SIGTERM and was killed"
        elif not has_died and self._process.returncode == -signal.SIGTERM:
            problem = problem or "the run ended before the sampler had started"  # it handles SIGTERM once it samples
        elif has_died or self._process.returncode != 0:
            problem = problem or self._describe_death(stderr)
        return told | {"problem": problem}

    def _describe_death(self, stderr: str) -> str:
        lines = stderr.strip().splitlines()
        last = lines[-1] if lines else "it said nothing"
        return f"the sampler ended before the run, with exit code {self._process.returncode}: {last}"

    def _count_rows(self) -> dict[str, Scalar]:
        samples = read_samples(self._run_dir)
        return {
            "source": self._source,
            "period_s": self._period_s,
            "num_rows": samples.num_rows,
            "sampler_cpu_s": samples["sampler_cpu_s"][-1].as_py() if samples.num_rows else None,
            "sampler_wall_s": time.monotonic() - self._begun_s,
            "problem": None,
        }


def start_sampler(
    run_dir: Path, *, run_id: str, root_pid: int, hardware: Hardware, period_s: float = MIN_PERIOD_S
) -> SamplerProcess:
    """Start sampling a run into `run_dir`/samples.arrow, every `period_s` seconds.

    Args:
        run_dir: An existing run folder without samples.
        run_id: Value of GRPO_PERF_RUN_ID in the environment of the run's processes.
        root_pid: Process whose descendants, and itself, are of the run.

    Raises:
        UsageError: the period is shorter than GPM can answer.
        PerfError: the process cannot be started.
    """
    if period_s < MIN_PERIOD_S:
        raise UsageError(f"A sampling period of {period_s:g} s is too short: GPM needs {MIN_PERIOD_S:g} s or more.")
    source = hardware.telemetry if hardware.device == "gpu" else "host"
    run_dir = run_dir.resolve()
    # -P: the working folder must not shadow a module of ours or of the standard library.
    command = [sys.executable, "-P", "-m", "grpo_perf.telemetry.sampler", f"--run-dir={run_dir}", f"--run-id={run_id}"]
    command += [f"--root-pid={root_pid}", f"--period-s={period_s}", f"--source={source}"]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=_build_environment(),
            start_new_session=True,  # a Ctrl-C at the terminal is ours to pass on
        )
    except OSError as error:
        raise PerfError(
            f"The sampler cannot be started: {error}. Try: {sys.executable} -c 'import grpo_perf'"
        ) from error
    return SamplerProcess(process, run_dir, source=source, period_s=period_s)


def _build_environment() -> dict[str, str]:
    # Without the run's id, so that it is never taken for a process of the run.
    environment = {name: value for name, value in os.environ.items() if name != "GRPO_PERF_RUN_ID"}
    package_parent = str(Path(grpo_perf.__file__).parent.parent)
    paths = [package_parent, *filter(None, [environment.get("PYTHONPATH")])]
    return environment | {"PYTHONPATH": os.pathsep.join(paths)}
