"""GPU work of which the busy time is known, from the kernels' own clock. Needs torch with CUDA, nothing else.

    python -m grpo_perf_loads OUT.json SECONDS LOAD...          e.g. duty:25:10 (25 % of every 10 ms), h2d, graph:50:10

    host     launch        launch        launch              every period, by a spinning host
    GPU      ██████        ██████        ██████              a kernel that spins until its duty is over
             ^    ^                                          and writes both ends by %globaltimer

Each load is `SECONDS` long. OUT.json: one object a load, its window and intervals in monotonic ns of this machine.
"""

import ctypes
import json
import os
import sys
import time

import torch

SPIN = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 stamps, .param .u64 used, .param .u64 duration_ns)
{
  .reg .pred %over;
  .reg .b32 %slot;
  .reg .b64 %stamps, %used, %duration, %begin, %now, %passed, %at;
  ld.param.u64 %stamps, [stamps];
  ld.param.u64 %used, [used];
  ld.param.u64 %duration, [duration_ns];
  cvta.to.global.u64 %stamps, %stamps;
  cvta.to.global.u64 %used, %used;
  mov.u64 %begin, %globaltimer;
  mov.u64 %now, %begin;
again:
  sub.s64 %passed, %now, %begin;
  setp.ge.s64 %over, %passed, %duration;
  @%over bra done;
  mov.u64 %now, %globaltimer;
  bra again;
done:
  atom.global.add.u32 %slot, [%used], 1;
  mul.wide.u32 %at, %slot, 16;
  add.s64 %at, %at, %stamps;
  st.global.u64 [%at], %begin;
  st.global.u64 [%at+8], %now;
  ret;
}
"""
"""PTX, which every driver compiles for the GPU at hand: no compiler need be installed."""
CAPACITY = 1 << 18
NODES_PER_GRAPH = 20
COPY_BYTES = 1 << 30
NUM_CALIBRATIONS = 300
PAUSE_S = 0.3
"""Between loads, so that no sample mixes two."""


class Driver:
    """CUDA's driver API as far as one kernel needs it."""

    def __init__(self):
        torch.zeros(1, device="cuda")  # makes the primary context current
        self.cuda = ctypes.CDLL("libcuda.so.1")
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.cuda.cuModuleLoadData(ctypes.byref(module), SPIN))
        self.check(self.cuda.cuModuleGetFunction(ctypes.byref(self.function), module, b"spin"))

    def launch(self, stamps, used, duration_ns):
        """One thread that spins `duration_ns` on torch's current stream."""
        values = (
            ctypes.c_void_p(stamps.data_ptr()), ctypes.c_void_p(used.data_ptr()), ctypes.c_longlong(int(duration_ns))
        )  # fmt: skip
        pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.check(self.cuda.cuLaunchKernel(self.function, 1, 1, 1, 1, 1, 1, 0, stream, pointers, None))

    def set_memory(self, buffer):
        """Zero a tensor of bytes on torch's current stream; torch itself would launch a kernel."""
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        at, size = ctypes.c_uint64(buffer.data_ptr()), ctypes.c_size_t(buffer.numel())
        self.check(self.cuda.cuMemsetD8Async(at, ctypes.c_ubyte(0), size, stream))

    @staticmethod
    def check(code):
        """Raise for an error code of the driver."""
        if code:
            raise RuntimeError(f"CUDA driver error {code}")


class Bench:
    """Runs loads and keeps what the kernels stamped."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.driver = Driver()
        self.stamps = torch.zeros(2 * CAPACITY, dtype=torch.int64, device="cuda")
        self.used = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.spin(1000)
        torch.cuda.synchronize()

    def spin(self, duration_ns):
        """Enqueue one spinning kernel."""
        self.driver.launch(self.stamps, self.used, duration_ns)

    def read_offset(self):
        """Nanoseconds from the GPU's clock to the host's monotonic one, from the fastest of many round trips."""
        best = None
        for _ in range(NUM_CALIBRATIONS):
            self.used.zero_()
            torch.cuda.synchronize()
            t0 = time.monotonic_ns()
            self.spin(0)
            torch.cuda.synchronize()
            t1 = time.monotonic_ns()
            if best is None or t1 - t0 < best[0]:
                best = (t1 - t0, (t0 + t1) // 2 - int(self.stamps[0]))
        return best[1], best[0]

    def run(self, load):
        """One load: its window, the intervals of its kernels and of its copies, in monotonic ns."""
        kind, *numbers = load.split(":")
        duty, period_ms = (float(numbers[0]) / 100, float(numbers[1])) if numbers else (0.5, 100.0)
        offset_before, round_trip_ns = self.read_offset()
        self.used.zero_()
        burst = getattr(self, f"make_{kind}")(duty * period_ms * 1e6)
        self.used.zero_()
        torch.cuda.synchronize()
        t0_ns, t1_ns = self.drive(burst, period_ms * 1e6)
        num_stamps = int(self.used)
        pairs = self.stamps[: 2 * num_stamps].view(-1, 2).cpu()
        offset_after, _ = self.read_offset()
        drift_ns = offset_after - offset_before
        to_host = [[int(a) + offset_before, int(b) + offset_before] for a, b in pairs.tolist()]
        to_host = [[at + int(drift_ns * (at - t0_ns) / max(t1_ns - t0_ns, 1)) for at in pair] for pair in to_host]
        to_host.sort()
        is_copy = kind in ("h2d", "d2d", "memset")
        return {
            "load": load,
            "t0_ns": t0_ns,
            "t1_ns": t1_ns,
            "round_trip_ns": round_trip_ns,
            "drift_ns": drift_ns,
            "kernels": [] if is_copy else to_host,
            # A copy lies between two kernels of no length: after the end of the one, before the start of the other.
            "copies": [[a[1], b[0]] for a, b in zip(to_host[::2], to_host[1::2])] if is_copy else [],
        }

    def drive(self, burst, period_ns):
        """Call `burst` at every period until the time is over; the host spins, so that it is never late by a sleep."""
        begin = due = time.monotonic_ns()
        end = begin + int(self.seconds * 1e9)
        while due < end:
            burst()
            due += int(period_ns)
            while time.monotonic_ns() < due:
                pass
        torch.cuda.synchronize()
        return begin, time.monotonic_ns()

    def make_duty(self, on_ns):
        """Kernels alone."""
        return lambda: self.spin(on_ns)

    def make_graph(self, on_ns):
        """The same time as the nodes of one CUDA graph."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(NODES_PER_GRAPH):
                self.spin(on_ns / NODES_PER_GRAPH)
        return graph.replay

    def make_h2d(self, on_ns):
        """Copies from pinned host memory."""
        source = torch.empty(COPY_BYTES // 4, dtype=torch.uint8, pin_memory=True)
        into = torch.empty_like(source, device="cuda")
        return self.fill(on_ns, lambda: into.copy_(source, non_blocking=True))

    def make_d2d(self, on_ns):
        """Copies within the GPU's memory."""
        source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
        into = torch.empty_like(source)
        return self.fill(on_ns, lambda: into.copy_(source))

    def make_memset(self, on_ns):
        """Setting the GPU's memory to zero."""
        buffer = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
        return self.fill(on_ns, lambda: self.driver.set_memory(buffer))

    def fill(self, on_ns, copy):
        """As many copies as take `on_ns`, between two kernels that stamp their ends."""
        copy()
        torch.cuda.synchronize()
        t0 = time.monotonic_ns()
        for _ in range(10):
            copy()
        torch.cuda.synchronize()
        num_copies = max(1, round(10 * on_ns / (time.monotonic_ns() - t0)))

        def burst():
            self.spin(0)
            for _ in range(num_copies):
                copy()
            self.spin(0)

        return burst


def wait_for_others(out):
    """Say that this process is ready, and wait for the file that starts all of them."""
    with open(out.removesuffix(".json") + ".ready", "w"):
        pass
    go = os.environ.get("GRPO_PERF_GO")
    while go and not os.path.exists(go):
        time.sleep(0.01)


def main():
    """Run the loads of the command line."""
    out, seconds, *loads = sys.argv[1:]
    bench = Bench(float(seconds))
    wait_for_others(out)
    found = []
    for load in loads:
        found.append(bench.run(load))
        time.sleep(PAUSE_S)
    with open(out, "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
