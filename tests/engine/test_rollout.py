"""Which rollout engine a CPU can run."""

from pathlib import Path

import pytest

from grpo_perf.engine.rollout import choose_rollout_engine, read_cpu_flags


@pytest.mark.parametrize("flags", [{"avx2"}, {"avx512f"}, {"sse2", "avx2", "avx512f"}])
def test_vllm_where_its_cpu_build_runs(flags: set[str]) -> None:
    assert choose_rollout_engine("x86_64", flags) == ("vllm", None)


def test_old_cpu() -> None:
    engine, reason = choose_rollout_engine("x86_64", {"sse2", "avx"})
    assert engine == "hf"
    assert reason == "vLLM's CPU build needs AVX2 or AVX-512, this CPU has neither: using the transformers rollout."


def test_other_machine() -> None:
    engine, reason = choose_rollout_engine("aarch64", {"asimd"})
    assert engine == "hf"
    assert reason is not None
    assert "this machine is aarch64" in reason


def test_flags_of_the_first_core(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu sse2 avx2\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert read_cpu_flags(cpuinfo) == {"fpu", "sse2", "avx2"}
    assert read_cpu_flags(tmp_path / "none") == set()
