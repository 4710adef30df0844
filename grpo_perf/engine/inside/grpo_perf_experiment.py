"""Changes what is watched in mid-run, step by step, so that watching itself can be measured. Standard library only.

    alternate    spans and the sampler are off in every other step, in the order on off off on: what do they cost?
    trace:6      every process that uses the GPU records its kernels in step 6: do the samples tell the truth?

The trainer decides at each step's start and writes one byte that all processes of the run have mapped. Torch is used in
processes that have loaded it already, and only for traces.
"""

import glob
import json
import mmap
import os
import signal
import sys
import threading
import time

WATCHED, UNWATCHED, TRACED = 0, 1, 2
POLL_S = 0.01
TRACE_TIMEOUT_S = 60.0
WARM_TRACE_STEPS = 2
"""The first trace of a process starts CUPTI, which takes seconds: it is made this many steps before and thrown away."""


class Experiment:
    """What one process does; `kind` is `alternate` or `trace`."""

    def __init__(self, text, folder):
        self.kind, _, number = text.partition(":")
        if self.kind not in ("alternate", "trace") or (self.kind == "trace" and not number.isdigit()):
            raise ValueError(f"experiment {text!r} is neither alternate nor trace:STEP")
        self.traced_step = int(number or 0)
        self.folder = folder
        self.num_steps = 0
        file = os.open(os.path.join(folder, "control.bin"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        os.ftruncate(file, 1)
        self.control = mmap.mmap(file, 1)
        os.close(file)
        if self.kind == "trace":
            threading.Thread(target=self.trace_when_told, name="grpo-perf-trace", daemon=True).start()

    @property
    def is_watching(self):
        """Whether spans are recorded now; those of whole steps always are."""
        return self.control[0] != UNWATCHED

    def begin_step(self):
        """Called by the trainer when the timer `step` starts."""
        self.num_steps += 1
        if self.kind == "alternate":
            self.watch(self.num_steps % 4 in (0, 1))
            return
        wanted = self.num_steps in (self.traced_step, self.traced_step - WARM_TRACE_STEPS)
        if self.control[0] == TRACED and not wanted:
            self.control[0] = WATCHED
            self.wait_for_traces()
        if wanted:
            self.control[0] = TRACED

    def watch(self, is_on):
        """Spans and sampler on or off."""
        self.control[0] = WATCHED if is_on else UNWATCHED
        try:
            with open(os.path.join(self.folder, "sampler.pid")) as file:
                os.kill(int(file.read()), signal.SIGCONT if is_on else signal.SIGSTOP)
        except (OSError, ValueError):
            pass  # the samples then show no pause, and the comparison says so

    def wait_for_traces(self):
        """Hold the trainer until every trace is on disk: writing one would slow the next step down."""
        deadline = time.monotonic() + TRACE_TIMEOUT_S
        time.sleep(10 * POLL_S)
        while glob.glob(os.path.join(self.folder, "tracing-*")) and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def trace_when_told(self):
        """The thread of every process: record kernels while the byte says so."""
        while True:
            time.sleep(POLL_S)
            if self.control[0] == TRACED and uses_gpu():
                self.trace()

    def trace(self):
        """One trace, from now until the byte changes; its file is named by the time of its end."""
        import torch

        marker = os.path.join(self.folder, f"tracing-{os.getpid()}")
        with open(marker, "w"):
            pass
        try:
            profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            profiler.start()
            t0_ns = time.monotonic_ns()
            while self.control[0] == TRACED:
                time.sleep(POLL_S)
            t1_ns, wall_ns, monotonic_ns = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
            torch.cuda.synchronize()
            profiler.stop()
            name = os.path.join(self.folder, f"trace-{os.getpid()}-{t1_ns}")
            profiler.export_chrome_trace(name + ".trace.json")
            window = {
                "pid": os.getpid(), "t0_ns": t0_ns, "t1_ns": t1_ns, "wall_ns": wall_ns, "monotonic_ns": monotonic_ns
            }  # fmt: skip
            with open(name + ".window.json", "w") as file:
                json.dump(window, file)
        except Exception as error:
            print(f"grpo-perf: process {os.getpid()} could not be traced: {error!r}", file=sys.stderr, flush=True)
        finally:
            os.unlink(marker)


def uses_gpu():
    """Whether this process has a CUDA context; torch is not imported for the question."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return bool(cuda is not None and getattr(cuda, "is_initialized", lambda: False)())
