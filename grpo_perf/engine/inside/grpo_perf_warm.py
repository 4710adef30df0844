"""One import for all processes of a run: a parent that has imported torch, vllm and the like forks what is started.

    supervisor ── serve ── imports once ── listens ─┬─ fork: driver            python -m verl.trainer.main_ppo
                              ^                     ├─ fork: each Ray worker   runtime_env's py_executable
    launcher (sh) ── run ─────┘                     └─ fork: vLLM's processes  multiprocessing's executable

The launcher stands in for `python`: it hands its arguments, environment, folder and open files to the server, stays
until the forked process has ended, and ends likewise. Where there is no server, it is `python`.

    python grpo_perf_warm.py serve SOCKET LAUNCHER
    python grpo_perf_warm.py run SOCKET [arguments of python]

Standard library only. A forked process differs from a fresh one in nothing that verl could see but the history of its
memory: random generators are seeded again, and no GPU is touched before the fork.
"""

import array
import contextlib
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
import types

PRELOADED = (
    "torch._dynamo",
    "torch._inductor.lowering",
    "torch.distributed.fsdp",
    "tensordict",
    "datasets",
    "peft",
    "hydra",
    "transformers.models.auto.modeling_auto",
    "transformers.models.qwen2.modeling_qwen2",
    "vllm.model_executor.models.qwen2",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.engine.async_llm",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.gpu_worker",
)
"""What costs seconds to import. Of those that want a module of NEVER, what can be had without it stays imported."""
NEVER = ("ray", "verl")
"""Ray reads its settings from the environment when it is imported, verl loads the probe: both once a process."""
FORK_SAFE_THREADS = ("jemalloc_bg_thd",)
"""pyarrow's allocator, which starts its thread again in a forked process."""
READY_TIMEOUT_S = 90.0
MAX_FDS = 250
HIGH_FD = 512
POLL_MS = 1000
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_HEADER = struct.Struct("!II")
_NUMBER = struct.Struct("!i")


# --- the server ---------------------------------------------------------------------------------------------------


def serve(path, launcher):
    """Import, then fork for each launcher; returns in a forked process only, with what it shall run."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARN")  # verl's default for its workers; vllm reads it when imported
    preload()
    import multiprocessing.spawn

    multiprocessing.spawn.set_executable(launcher)
    reason = find_obstacle()
    if reason:
        print(f"grpo-perf: no warm start: {reason}", file=sys.stderr, flush=True)
        return None
    import gc

    gc.collect()
    gc.freeze()  # what was imported is never looked at again by a collection, so its pages stay shared
    signal.signal(signal.SIGCHLD, reap)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path + ".new")
    listener.listen(64)
    os.rename(path + ".new", path)
    while True:
        wait_for_launcher(listener)
        connection, _ = listener.accept()
        try:
            request, descriptors = receive(connection)
        except (OSError, ValueError):
            connection.close()
            continue
        pid = os.fork()
        if pid == 0:
            listener.close()
            return become(request, descriptors, connection)
        for descriptor in descriptors:
            os.close(descriptor)
        _CONNECTIONS[pid] = connection
        with contextlib.suppress(OSError):
            connection.sendall(_NUMBER.pack(pid))


def wait_for_launcher(listener):
    """Until one asks. A launcher that was killed takes its process along, as if it were that process."""
    while True:
        ends = {connection.fileno(): pid for pid, connection in _CONNECTIONS.copy().items()}
        poll = select.poll()
        for descriptor in (listener.fileno(), *ends):
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(POLL_MS):
            if descriptor == listener.fileno():
                return
            pid = ends[descriptor]
            if pid in _CONNECTIONS:  # not reaped meanwhile: a launcher never sends, so this is its end
                _CONNECTIONS.pop(pid).close()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


_CONNECTIONS = {}


def reap(*_):
    """Tell each launcher how its process ended."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            connection = _CONNECTIONS.pop(pid, None)
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))
                connection.close()


class Unwanted(BaseException):
    """A module wants one of NEVER. No Exception, so that no `except ImportError` makes a module do without it."""


class Refusing:
    """A finder that stands before all others while modules are preloaded."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """None, or Unwanted."""
        if name.partition(".")[0] in NEVER:
            raise Unwanted(name)


def preload():
    """Import what the processes of a run import; what this machine lacks is left out."""
    sys.meta_path.insert(0, Refusing)
    for name in PRELOADED:
        with contextlib.suppress(Exception, Unwanted):
            importlib.import_module(name)
    sys.meta_path.remove(Refusing)


def list_threads():
    """Names of this process's threads, as the kernel has them."""
    names = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as file:
            names.append(file.read().strip())
    return names


def find_obstacle():
    """Why forking from here would not be safe; None where it is."""
    threads = [name for name in list_threads() if name not in FORK_SAFE_THREADS]
    if len(threads) > 1:
        return f"an import left threads running: {', '.join(threads)}"
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if "/dev/nvidia" in os.readlink(f"/proc/self/fd/{name}"):
                return "an import has opened the GPU"
    return None


def become(request, descriptors, connection):
    """Turn the forked process into the one that was asked for; returns its arguments."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _CONNECTIONS.clear()
    move(request["fds"], descriptors, connection)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    seed()
    if "OMP_NUM_THREADS" in os.environ:
        follow_num_threads()
    return request["argv"]


def move(targets, descriptors, connection):
    """Put the launcher's open files at the numbers they had there."""
    import fcntl

    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH_FD) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    # The server keeps the connection and tells the launcher when this process has ended.
    connection.close()
    for target, descriptor in zip(targets, high):
        os.dup2(descriptor, target, inheritable=True)
        os.close(descriptor)


def seed():
    """A fresh process seeds its generators from the system; a forked one would repeat its siblings' numbers."""
    import random

    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def follow_num_threads():
    """Give torch the number of threads that it would have taken from OMP_NUM_THREADS, had it been imported now."""
    torch = sys.modules.get("torch")
    if torch is not None:
        with contextlib.suppress(KeyError, ValueError):
            torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def follow_ray():
    """Ray sets OMP_NUM_THREADS of a worker right before the first task, which is before a cold worker imports torch."""
    from ray._private import utils

    original = utils.set_omp_num_threads_if_unset

    def set_and_follow():
        is_set = original()
        if is_set:
            follow_num_threads()
        return is_set

    utils.set_omp_num_threads_if_unset = set_and_follow


def execute(argv):
    """What `python ARGV` does, for the forms in which processes of a run are started."""
    import runpy

    kind, value, rest = parse(argv)
    if kind == "file" and os.path.basename(value) == "default_worker.py":
        follow_ray()
    if kind == "-m":
        sys.argv = [value, *rest]
        sys.path[0] = os.getcwd()
        runpy.run_module(value, run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest]
        sys.path[0] = ""
        main_module = types.ModuleType("__main__")
        main_module.__builtins__ = __builtins__
        sys.modules["__main__"] = main_module
        exec(compile(value, "<string>", "exec"), main_module.__dict__)
    else:
        sys.argv = [value, *rest]
        sys.path[0] = os.path.dirname(os.path.abspath(value))
        runpy.run_path(value, run_name="__main__")


def parse(argv):
    """(`-m`, module, rest), (`-c`, code, rest) or (`file`, path, rest); None for anything else."""
    rest = list(argv)
    while rest and rest[0] in ("-u", "-B", "-s", "-E", "-I", "-S", "-P"):
        rest.pop(0)
    if len(rest) >= 2 and rest[0] in ("-m", "-c"):
        return rest[0], rest[1], rest[2:]
    if rest and not rest[0].startswith("-"):
        return "file", rest[0], rest[1:]
    return None


# --- the launcher -------------------------------------------------------------------------------------------------


def run(path, argv):
    """Have the server fork, wait for the end, and end likewise; become python where that cannot be."""
    connection = connect(path) if parse(argv) is not None else None
    if connection is None:
        os.execv(sys.executable, [sys.executable, *argv])
    fds = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    fds = [fd for fd in fds if fd != connection.fileno() and is_open(fd)][:MAX_FDS]
    request = {"argv": argv, "cwd": os.getcwd(), "env": dict(os.environ), "fds": fds}
    send(connection, request, fds)
    pid = read_number(connection)
    if pid is not None:
        for number in PASSED_ON:
            signal.signal(number, lambda number, _: os.kill(pid, number))
    code = read_number(connection)
    if code is None:
        os._exit(1)  # the server is gone, and the run with it
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler to take away
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def read_number(connection):
    """A pid or an exit code; None where the server is gone."""
    data = connection.recv(_NUMBER.size, socket.MSG_WAITALL)
    return _NUMBER.unpack(data)[0] if len(data) == _NUMBER.size else None


def connect(path):
    """A connection to the server, waiting while it imports; None where it has given up or is gone."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
            return connection
        except OSError:
            connection.close()
        if os.path.exists(path + ".failed"):
            return None
        time.sleep(0.02)
    return None


def is_open(fd):
    """The listing itself had a descriptor that is closed by now."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def send(connection, request, fds):
    """Length and number of files, the files, then the request."""
    data = json.dumps(request).encode()
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
    connection.sendmsg([_HEADER.pack(len(data), len(fds))], [rights])
    connection.sendall(data)


def receive(connection):
    """The request and the files that came with it."""
    room = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
    header, ancillary, _, _ = connection.recvmsg(_HEADER.size, room)
    length, num_fds = _HEADER.unpack(header)
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    if len(descriptors) != num_fds:
        raise ValueError("files were lost on the way")
    chunks = b""
    while len(chunks) < length:
        chunk = connection.recv(length - len(chunks))
        if not chunk:
            raise ValueError("the launcher is gone")
        chunks += chunk
    return json.loads(chunks), list(descriptors)


def main():
    """`serve` or `run`."""
    command, path, *rest = sys.argv[1:]
    if command == "run":
        run(path, rest)
        return
    argv = None
    try:
        argv = serve(path, rest[0])
    finally:
        if argv is None:
            with open(path + ".failed", "w"):
                pass
    if argv is not None:
        execute(argv)


if __name__ == "__main__":
    main()
