"""Runs unmodified verl under the supervisor, with the sampler beside it, and leaves a run folder behind.

RunRequest -> assets -> Hydra overrides, checked against the measured verl -> supervisor + sampler -> run folder
"""

import os
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from grpo_perf.catalog import Paths, compose, hash_workload
from grpo_perf.engine import schema
from grpo_perf.engine.assets import build_assets
from grpo_perf.engine.base import RunRequest
from grpo_perf.engine.environment import INSIDE, build_environment, describe_changes
from grpo_perf.engine.fingerprint import build_fingerprint
from grpo_perf.engine.stacks import dump_stacks
from grpo_perf.engine.watch import Limits, Outcome, watch
from grpo_perf.errors import EngineError
from grpo_perf.record import RunMeta, close_run, read_lines, save_meta
from grpo_perf.telemetry import start_sampler
from grpo_perf.types import Scalar

SUPERVISOR = Path(__file__).with_name("supervisor.py")
WARM = INSIDE / "grpo_perf_warm.py"
END_LIMIT_S = 60.0
"""For the supervisor to end every process; it needs a few seconds."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launch:
    """Everything that is fixed before verl starts."""

    run_dir: Path
    scratch: Path
    environment: dict[str, str]
    meta: RunMeta


class VerlEngine:
    """The engine that measures: `python -m verl.trainer.main_ppo` of the requested interpreter."""

    def run(self, request: RunRequest, progress: Progress) -> Path:
        """The finished run folder; a run that failed is a folder that says so.

        Raises:
            UsageError: the request itself is wrong (unknown key, verl missing), found before anything started.
            EngineError: the run folder cannot be written or the supervisor cannot start.
        """
        launch = prepare(request, progress)
        save_meta(launch.run_dir, launch.meta)
        process = _start_supervisor(request, launch)
        sampler = start_sampler(
            launch.run_dir, run_id=launch.meta.run_id, root_pid=process.pid, hardware=request.hardware
        )
        if request.experiment:
            (launch.run_dir / "parts" / "sampler.pid").write_text(str(sampler.pid))
        outcome = Outcome(status="partial", reason="interrupted in mid-run")
        try:
            with _terminate_as_interrupt():
                outcome = watch(process, launch.run_dir, _limits(request), progress)
                if outcome.hung:
                    dump_stacks(process.pid, launch.meta.run_id, launch.run_dir / "stacks.txt")
        finally:
            if request.experiment:
                with suppress(ProcessLookupError):  # it may have been left stopped
                    os.kill(sampler.pid, signal.SIGCONT)
            telemetry = sampler.stop()
            _end(process)
            _close(launch, outcome, telemetry)
        return launch.run_dir


def prepare(request: RunRequest, progress: Progress) -> _Launch:
    """Everything that can be found wrong without starting verl: versions, assets, overrides, folder."""
    cell = request.cell
    versions = schema.inspect_python(request.python)
    run_id = new_run_id(cell.name)
    run_dir = request.runs_dir / run_id
    scratch = _make_folders(run_dir)
    environment = build_environment(
        base=os.environ,
        device=request.hardware.device,
        python=request.python,
        run_id=run_id,
        run_dir=run_dir,
        scratch=scratch,
        cache_dir=request.cache_dir,
        faults=request.faults,
        experiment=request.experiment,
        versions=versions,
    )
    assets = build_assets(request.python, cell.workload, request.cache_dir, environment, progress)
    paths = Paths(
        model=assets.model, train=assets.train, val=assets.val, inside=INSIDE, checkpoints=scratch / "checkpoints"
    )
    overrides = compose(cell, paths, rollout_engine=request.rollout_engine)
    overrides.append(f"+ray_kwargs.ray_init._temp_dir={scratch}")
    if request.warm_start:
        launcher = _write_launcher(scratch, request.python)
        overrides.append(f"+ray_kwargs.ray_init.runtime_env.py_executable={launcher}")
    resolved = schema.resolve(request.python, overrides, environment)
    meta = RunMeta(
        run_id=run_id,
        status="running",
        workload=cell.workload,
        tier=cell.tier,
        hardware=request.hardware,
        targets=cell.targets,
        cell_overrides=cell.overrides,
        hydra_overrides=overrides,
        not_translated=cell.not_translated,
        resolved_config=resolved,
        fingerprint=build_fingerprint(
            cell=cell,
            hardware=request.hardware,
            versions=versions,
            workload_hash=hash_workload(cell.workload),
            rollout_engine=request.rollout_engine,
            environment=describe_changes(environment, os.environ),
        ),
        faults=list(request.faults),
        experiment=request.experiment,
        warm_start=request.warm_start,
        created_unix_s=time.time(),
        launched_ns=time.monotonic_ns(),
    )
    return _Launch(run_dir=run_dir, scratch=scratch, environment=environment, meta=meta)


def new_run_id(cell_name: str) -> str:
    """A name that sorts by time and says which cell: `20261201-003012-cpu-tiny-untuned-1f2e`."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return f"{stamp}-{cell_name.replace('/', '-')}-{secrets.token_hex(2)}"


def _make_folders(run_dir: Path) -> Path:
    """Create the run folder; return a short scratch folder (Ray's sockets allow about 100 characters)."""
    try:
        (run_dir / "parts").mkdir(parents=True)
        return Path(tempfile.mkdtemp(prefix="gp-"))
    except OSError as error:
        raise EngineError(f"Cannot write {run_dir}: {error}. Choose another place: --perf-runs DIR") from error


def _start_supervisor(request: RunRequest, launch: _Launch) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", str(SUPERVISOR), "--run-id", launch.meta.run_id]
    command += ["--run-dir", str(launch.run_dir.resolve()), "--scratch", str(launch.scratch), "--"]
    command += [*_python_command(request, launch), "-m", "verl.trainer.main_ppo", *launch.meta.hydra_overrides]
    try:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, env=launch.environment, cwd=launch.scratch, start_new_session=True
        )
    except OSError as error:
        raise EngineError(f"Cannot start the supervisor of {launch.meta.run_id}: {error}") from error


def _python_command(request: RunRequest, launch: _Launch) -> list[str]:
    """What stands for `python` in the driver's command line."""
    if not request.warm_start:
        return [str(request.python)]
    server = [
        str(request.python),
        str(WARM),
        "serve",
        str(_warm_socket(launch.scratch)),
        str(_launcher(launch.scratch)),
    ]
    return ["sh", "-c", f'{shlex.join(server)} & exec "$0" "$@"', str(_launcher(launch.scratch))]


def _write_launcher(scratch: Path, python: Path) -> Path:
    path = _launcher(scratch)
    client = [str(python), "-I", "-S", str(WARM), "run", str(_warm_socket(scratch))]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n')
    path.chmod(0o755)
    return path


def _launcher(scratch: Path) -> Path:
    return scratch / "python"


def _warm_socket(scratch: Path) -> Path:
    return scratch / "warm.sock"


def _limits(request: RunRequest) -> Limits:
    workload = request.cell.workload
    return Limits(
        start_up_s=workload.start_up_timeout_s,
        step_s=workload.step_timeout_s,
        num_steps=workload.num_warmup_steps + workload.num_steady_steps,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Tell the supervisor to end the run and wait until nothing of it is left."""
    if process.stdin is not None:
        try:
            process.stdin.write(b"end\n")
            process.stdin.close()
        except BrokenPipeError:
            pass  # it ended by itself
    try:
        process.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        process.kill()
        raise EngineError(f"The supervisor (process {process.pid}) did not end within {END_LIMIT_S:.0f} s") from error


def _close(launch: _Launch, outcome: Outcome, telemetry: dict[str, Scalar]) -> None:
    rows, _ = read_lines(launch.run_dir / "supervisor.json")
    report = rows[0] if rows else {}
    meta = replace(
        launch.meta,
        status=outcome.status,
        reason=outcome.reason,
        next_command=None if outcome.status == "complete" else f"less {launch.run_dir / 'log.txt'}",
        telemetry=telemetry,
        ended_ns=report.get("ended_ns"),
        exit_code=report.get("exit_code"),
    )
    close_run(launch.run_dir, meta)


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """SIGTERM ends the run the way Ctrl-C does: record kept, nothing left running."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt("SIGTERM")

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
