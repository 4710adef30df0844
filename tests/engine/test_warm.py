"""The fork server and its launcher, with the standard library in place of verl's stack."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_perf.engine.environment import INSIDE

WARM = INSIDE / "grpo_perf_warm.py"
SERVE = """
import sys
sys.path.insert(0, {inside!r})
import grpo_perf_warm
grpo_perf_warm.PRELOADED = {preloaded!r}
sys.argv = ["grpo_perf_warm.py", "serve", {socket!r}, {launcher!r}]
grpo_perf_warm.main()
"""


class Warm:
    """A server in a folder, and the launcher that stands for python."""

    def __init__(self, folder: Path, preloaded: tuple[str, ...]) -> None:
        self.socket, self.launcher = folder / "warm.sock", folder / "python"
        self.launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {WARM} run {self.socket} "$@"\n')
        self.launcher.chmod(0o755)
        code = SERVE.format(
            inside=str(INSIDE), preloaded=preloaded, socket=str(self.socket), launcher=str(self.launcher)
        )
        self.server = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)

    def run(self, *arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
        command = [str(self.launcher), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, **options)  # type: ignore[call-overload,no-any-return]


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[Warm]:
    started = Warm(tmp_path, ("decimal",))
    yield started
    started.server.kill()
    started.server.communicate()


def test_code_runs_in_a_fork_that_has_the_imports(warm: Warm, tmp_path: Path) -> None:
    code = "import os, sys; print('decimal' in sys.modules, os.getppid(), sys.argv, os.getcwd(), os.environ['A'])"
    done = warm.run("-u", "-c", code, "x", "y z", cwd=tmp_path, env={"A": "1"})
    assert done.stdout == f"True {warm.server.pid} ['-c', 'x', 'y z'] {tmp_path} 1\n"
    assert done.returncode == 0


def test_modules_and_files_run_as_main(warm: Warm, tmp_path: Path) -> None:
    source = "import sys; print(__name__, __file__, sys.argv[1:], sys.path[0])"
    (tmp_path / "beside.py").write_text(source)
    assert warm.run("-m", "beside", "1", cwd=tmp_path).stdout.split() == [
        "__main__", str(tmp_path / "beside.py"), "['1']", str(tmp_path),
    ]  # fmt: skip
    found = warm.run(str(tmp_path / "beside.py"), "2", cwd="/").stdout.split()
    assert found == ["__main__", str(tmp_path / "beside.py"), "['2']", str(tmp_path)]


def test_the_launcher_ends_as_its_process_does(warm: Warm) -> None:
    assert warm.run("-c", "import sys; sys.exit(7)").returncode == 7
    failed = warm.run("-c", "raise ValueError('told')")
    assert failed.returncode == 1
    assert "ValueError: told" in failed.stderr
    assert warm.run("-c", "import os; os.kill(os.getpid(), 9)").returncode == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_launcher_reaches_its_process(warm: Warm, tmp_path: Path, number: int) -> None:
    marker = tmp_path / "pid"
    code = f"import os, time; open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    process = subprocess.Popen([str(warm.launcher), "-c", code])
    deadline = time.monotonic() + 20
    while not (marker.exists() and marker.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(20) == -number
    deadline = time.monotonic() + 20
    while Path("/proc", marker.read_text()).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path("/proc", marker.read_text()).exists()


def test_atexit_runs_and_random_numbers_are_not_those_of_a_sibling(warm: Warm) -> None:
    code = "import atexit, random; atexit.register(print, 'bye'); print(random.random())"
    first, second = (warm.run("-c", code).stdout.split() for _ in range(2))
    assert first[1] == second[1] == "bye"
    assert first[0] != second[0]


def test_open_files_are_where_they_were(warm: Warm) -> None:
    read, write = os.pipe()
    done = warm.run("-c", f"import os; os.write({write}, b'through')", pass_fds=[write])
    os.close(write)
    assert done.returncode == 0, done.stderr
    assert os.read(read, 100) == b"through"
    os.close(read)


SPAWN = """
import multiprocessing, os

def work(queue):
    queue.put((os.getppid(), "decimal" in __import__("sys").modules))

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    print(*queue.get(timeout=20))
    process.join(20)
    print(process.exitcode)
"""


def test_spawned_processes_are_forks_too(warm: Warm, tmp_path: Path) -> None:
    (tmp_path / "spawn.py").write_text(SPAWN)
    done = warm.run(str(tmp_path / "spawn.py"))
    assert done.stdout.split() == [str(warm.server.pid), "True", "0"], done.stderr


def test_what_must_not_be_imported_is_not_and_the_rest_stays(tmp_path: Path) -> None:
    (tmp_path / "wants_ray.py").write_text(
        "import fractions\ntry:\n    import ray\nexcept ImportError:\n    ray = None\n"
    )
    code = (
        f"import sys; sys.path[:0] = [{str(INSIDE)!r}, {str(tmp_path)!r}]; import grpo_perf_warm as warm\n"
        "warm.PRELOADED = ('wants_ray', 'no_such_module', 'decimal'); warm.preload()\n"
        "print('wants_ray' in sys.modules, 'fractions' in sys.modules, 'decimal' in sys.modules, len(sys.meta_path))"
    )
    plain = subprocess.run(
        [sys.executable, "-c", "import sys; print(len(sys.meta_path))"], capture_output=True, text=True
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True", plain.stdout.strip()]


def test_threads_make_a_cold_start(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(
        "import threading, time; threading.Thread(target=time.sleep, args=(9,), daemon=True).start()"
    )
    sys_path = os.environ | {"PYTHONPATH": str(tmp_path)}
    code = SERVE.format(
        inside=str(INSIDE), preloaded=("busy",), socket=str(tmp_path / "s"), launcher=str(tmp_path / "python")
    )
    done = subprocess.run([sys.executable, "-c", code], env=sys_path, capture_output=True, text=True, check=False)
    assert "no warm start: an import left threads running" in done.stderr
    client = [sys.executable, "-I", "-S", str(WARM), "run", str(tmp_path / "s"), "-c", "print('cold')"]
    assert subprocess.run(client, capture_output=True, text=True, check=False).stdout == "cold\n"
