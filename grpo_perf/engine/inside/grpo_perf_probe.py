"""Records when each phase ran, from inside every process of a measured verl run. Standard library only.

    verl process --VERL_USE_EXTERNAL_MODULES--> this module
        codetiming.Timer.start/stop   the one timer that every verl release uses     -> spans named by verl
        a few untimed functions       dataloader, balance_batch, metrics, logging ... -> spans named by us

One file a process under $GRPO_PERF_PARTS, one line a span, written at once so that a kill loses nothing. Without that
variable the module does nothing.
"""

import atexit
import functools
import importlib.abc
import importlib.util
import json
import os
import sys
import threading
import time

PARTS_ENV = "GRPO_PERF_PARTS"
FAULTS_ENV = "GRPO_PERF_RUN_FAULTS"
EXPERIMENT_ENV = "GRPO_PERF_EXPERIMENT"

# What verl leaves outside its timers (verl 0.9.1 trainer_base.fit and, for use_v1=False, ray_trainer.fit).
MARKS = {
    "verl.trainer.ppo.v1.trainer_base": {
        "PPOTrainer": {
            "on_step_begin": "on_step_begin",
            "prepare_step": "prepare_step",
            "_fetch_one_gen_batch": "dataloader",
            "_balance_batch": "balance_batch",
            "_compute_metrics": "compute_metrics",
            "_validate": "validate",
        },
    },
    "verl.trainer.ppo.ray_trainer": {
        "RayPPOTrainer": {"_balance_batch": "balance_batch", "_validate": "validate"},
    },
    "verl.utils.tracking": {"Tracking": {"log": "logging"}},
}


class SpanFile:
    """Appends spans of this process; reopens itself after a fork."""

    def __init__(self, folder):
        self.folder = folder
        self.pid = None
        self.fd = None

    def write(self, row):
        """Append one JSON line with a single write call: lines of a killed process are whole or absent."""
        if self.pid != os.getpid():
            self._open()
        os.write(self.fd, (json.dumps(row) + "\n").encode())

    def _open(self):
        self.pid = os.getpid()
        path = os.path.join(self.folder, f"spans-{self.pid}.jsonl")
        self.fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        os.write(self.fd, (json.dumps({"clock": read_clocks()}) + "\n").encode())


def read_clocks():
    """Both clocks read together, and what tells whether two processes share the monotonic one."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot_id = file.read().strip()
        namespace = os.readlink("/proc/self/ns/time")
    except OSError:
        boot_id, namespace = "", ""
    return {
        "pid": os.getpid(),
        "boot_id": boot_id,
        "time_namespace": namespace,
        "monotonic_ns": time.monotonic_ns(),
        "wall_ns": time.time_ns(),
    }


class Recorder:
    """Turns timer calls into spans. `open_names` is the stack of running timers of a thread: faults need it."""

    def __init__(self, file, experiment=None):
        self.file = file
        self.experiment = experiment
        self.local = threading.local()

    def open_names(self):
        """Names of the timers running in this thread, outermost first."""
        if not hasattr(self.local, "names"):
            self.local.names = []
        return self.local.names

    def add(self, name, t0_ns, t1_ns):
        """Append one span of the calling thread."""
        if self.experiment is not None and not self.experiment.is_watching and name != "step":
            return
        rank = os.environ.get("RANK", "")
        self.file.write(
            {
                "name": str(name),
                "t0_ns": t0_ns,
                "t1_ns": t1_ns,
                "pid": os.getpid(),
                "tid": threading.get_native_id(),
                "rank": int(rank) if rank.isdigit() else None,
            }
        )


def wrap_timer(recorder, faults):
    """Make codetiming.Timer record a span from every start to its stop."""
    from codetiming import Timer

    start, stop = Timer.start, Timer.stop

    @functools.wraps(start)
    def recording_start(self):
        if self.name == "step" and recorder.experiment is not None:
            recorder.experiment.begin_step()
        start(self)
        self._grpo_perf_t0_ns = time.monotonic_ns()
        recorder.open_names().append(self.name)

    @functools.wraps(stop)
    def recording_stop(self):
        t0_ns = getattr(self, "_grpo_perf_t0_ns", None)
        names = recorder.open_names()
        if faults is not None and t0_ns is not None:
            faults.apply(self.name, names, (time.monotonic_ns() - t0_ns) / 1e9)
        last = stop(self)
        t1_ns = time.monotonic_ns()
        if self.name in names:  # asyncio interleaves timers of one thread: remove by name, not from the top
            names.remove(self.name)
        if t0_ns is not None and self.name:
            self._grpo_perf_t0_ns = None
            recorder.add(self.name, t0_ns, t1_ns)
        return last

    Timer.start, Timer.stop = recording_start, recording_stop


def mark(recorder, owner, attribute, name):
    """Record a span around a method that verl does not time; a method that this verl lacks is left alone."""
    original = owner.__dict__.get(attribute)
    if not callable(original):
        return

    @functools.wraps(original)
    def marked(*args, **kwargs):
        t0_ns = time.monotonic_ns()
        try:
            return original(*args, **kwargs)
        finally:
            recorder.add(name, t0_ns, time.monotonic_ns())

    setattr(owner, attribute, marked)


class MarkingFinder(importlib.abc.MetaPathFinder):
    """Marks methods of a module right after it was imported, so that nothing is imported on our account."""

    def __init__(self, recorder):
        self.recorder = recorder
        self.busy = set()

    def find_spec(self, fullname, path=None, target=None):
        """The spec that Python would find, with a loader that marks the module when it has run."""
        if fullname not in MARKS or fullname in self.busy:
            return None
        self.busy.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)  # asks the other finders: editable checkouts have their own
        finally:
            self.busy.discard(fullname)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_mark(module):
            run(module)
            mark_module(self.recorder, module)

        spec.loader.exec_module = run_and_mark
        return spec


def mark_module(recorder, module):
    """Mark what MARKS names in an imported module."""
    for class_name, methods in MARKS[module.__name__].items():
        owner = getattr(module, class_name, None)
        if owner is not None:
            for attribute, name in methods.items():
                mark(recorder, owner, attribute, name)


def activate(folder):
    """Start recording into `folder`; called once a process, at the end of `import verl`."""
    file = SpanFile(folder)
    experiment = None
    if os.environ.get(EXPERIMENT_ENV):
        import grpo_perf_experiment

        experiment = grpo_perf_experiment.Experiment(os.environ[EXPERIMENT_ENV], folder)
    recorder = Recorder(file, experiment)
    faults = None
    if os.environ.get(FAULTS_ENV):
        import grpo_perf_faults

        faults = grpo_perf_faults.Faults.parse(os.environ[FAULTS_ENV])
    wrap_timer(recorder, faults)
    for name in MARKS:
        if name in sys.modules:
            mark_module(recorder, sys.modules[name])
    sys.meta_path.insert(0, MarkingFinder(recorder))
    atexit.register(lambda: file.write({"clock": read_clocks()}))


if os.environ.get(PARTS_ENV):
    activate(os.environ[PARTS_ENV])
