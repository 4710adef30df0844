"""The small Python programs that ci/lib.sh calls."""

import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.ci.sandbox import ROOT


def load(name: str) -> ModuleType:
    """A program of ci/ as a module: the folder is no package."""
    spec = importlib.util.spec_from_file_location(Path(name).name, ROOT / "ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


# --- pip's settings for uv


def read(*lines: str) -> dict[str, str]:
    settings: dict[str, str] = load("uv_settings").read_pip_settings(lines)
    return settings


def test_environment_wins_over_files_as_in_pip() -> None:
    assert read("global.find-links='/a'", ":env:.find-links='/b'") == {"find-links": "/b"}
    assert read(":env:.find-links='/b'", "global.find-links='/a'") == {"find-links": "/b"}
    assert read("install.find-links='/c'", "global.find-links='/a'") == {"find-links": "/c"}


def test_settings_of_other_commands_and_noise_are_left_out() -> None:
    assert read("download.find-links='/a'", "WARNING: something", "") == {}


def test_pip_settings_become_uv_variables_but_for_extra_indexes() -> None:
    settings = {"find-links": "/a /b", "extra-index-url": "u v", "index-url": "w", "cert": "/c.pem"}
    assert load("uv_settings").translate(settings, {"HOME": str(ROOT)}) == {
        "UV_FIND_LINKS": "/a,/b",
        "UV_DEFAULT_INDEX": "w",
        "SSL_CERT_FILE": "/c.pem",
        "UV_HTTP_TIMEOUT": "300",
        "UV_PYTHON_DOWNLOADS": "never",
    }


def test_what_is_set_for_uv_wins() -> None:
    translated = load("uv_settings").translate({"find-links": "/a"}, {"HOME": str(ROOT), "UV_FIND_LINKS": "/mine"})
    assert "UV_FIND_LINKS" not in translated


@pytest.mark.parametrize("env", [{}, {"HOME": "/nowhere"}])
def test_cache_stays_in_the_checkout_where_there_is_no_home(env: dict[str, str]) -> None:
    assert load("uv_settings").translate({}, env)["UV_CACHE_DIR"].endswith("/.cache/uv")


def test_exports_survive_the_shell(tmp_path: Path) -> None:
    script = f'eval "$({sys.executable} {ROOT}/ci/uv_settings.py)"; printf %s "$UV_FIND_LINKS"'
    done = subprocess.run(
        ["bash", "-c", script],
        input='global.find-links="/it\'s here/$(touch nothing)"\n',
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "/it's,here/$(touch,nothing)"
    assert list(tmp_path.iterdir()) == []


# --- is the environment what the lock says?


def test_lock_is_read() -> None:
    lines = ["# comment", "a==1.0", "b==2.0 ; sys_platform == 'win32'", ""]
    assert load("check_env").read_lock(lines) == {"a": "1.0"}


def test_missing_and_differing_distributions_are_named() -> None:
    version = importlib.metadata.version("pytest")
    find = load("check_env").find_differences
    assert find({"pytest": version}) == []
    assert find({"pytest": f"{version}+cpu"}) == []
    assert find({"pytest": "0.1", "no-such-thing": "1"}) == [
        f"pytest: want 0.1, found {version}",
        "no-such-thing: want 1, not installed",
    ]


def test_differing_environment_is_an_error_with_the_next_command(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("no-such-thing==1\n")
    command = [sys.executable, str(ROOT / "ci" / "check_env.py"), str(lock)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no-such-thing: want 1, not installed" in done.stderr
    assert f"rm -rf {sys.prefix}" in done.stderr


# --- which verl would be imported?


def which_verl(pythonpath: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "ci" / "which_verl.py")]
    return subprocess.run(
        command, env={"PYTHONPATH": str(pythonpath)}, capture_output=True, text=True, check=False, timeout=30
    )


def test_checkout_says_its_own_version(tmp_path: Path) -> None:
    package = tmp_path / "verl"
    (package / "version").mkdir(parents=True)
    (package / "version" / "version").write_text("0.10.0.dev\n")
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    assert which_verl(tmp_path).stdout == f"0.10.0.dev\t{sys.executable}\n"


def test_verl_without_a_version_is_said(tmp_path: Path) -> None:
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl" / "__init__.py").touch()
    assert which_verl(tmp_path).stdout.startswith("of unknown version\t")


def test_no_verl_is_an_exit_code(tmp_path: Path) -> None:
    (tmp_path / "verl").mkdir()  # a folder that is merely called verl
    done = which_verl(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
