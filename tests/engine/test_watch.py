"""A run is followed step by step; a hang and a crash become reasons, not exceptions."""

import json
import subprocess
import sys
from pathlib import Path

from grpo_perf.engine.watch import Limits, StepTail, explain_end, last_error, watch


def start(code: str, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code, str(folder / "steps.jsonl")])


WRITE_STEPS = """
import json, sys, time
with open(sys.argv[1], "w", buffering=1) as file:
    for step in (1, 2):
        file.write(json.dumps({"step": step, "data": {"timing_s/step": 0.5}}) + "\\n")
        time.sleep(0.1)
"""


def test_all_steps_complete_the_run(tmp_path: Path) -> None:
    lines: list[str] = []
    with start(WRITE_STEPS, tmp_path) as process:
        outcome = watch(process, tmp_path, Limits(start_up_s=20, step_s=20, num_steps=2), lines.append)
    assert outcome.status == "complete"
    assert [line for line in lines if line.startswith("step")] == ["step 1/2  0.5 s", "step 2/2  0.5 s"]


def test_no_first_step_is_a_hang(tmp_path: Path) -> None:
    with start("import time; time.sleep(60)", tmp_path) as process:
        outcome = watch(process, tmp_path, Limits(start_up_s=0.5, step_s=20, num_steps=2), print)
        process.kill()
    assert outcome.status == "failed"
    assert outcome.hung
    assert outcome.reason is not None
    assert "no end of the first step within 0 s" in outcome.reason


def test_a_later_step_that_never_ends_is_a_hang(tmp_path: Path) -> None:
    with start(WRITE_STEPS + "\ntime.sleep(60)", tmp_path) as process:
        outcome = watch(process, tmp_path, Limits(start_up_s=20, step_s=1, num_steps=3), print)
        process.kill()
    assert outcome.hung
    assert outcome.reason is not None
    assert "no end of step 3 within 1 s" in outcome.reason


def test_a_crash_names_the_last_error_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(
        "Traceback (most recent call last):\n  File ...\n"
        "\x1b[36m(TaskRunner pid=7)\x1b[0m torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
        "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n"
    )
    with start("raise SystemExit(1)", tmp_path) as process:
        outcome = watch(process, tmp_path, Limits(start_up_s=20, step_s=20, num_steps=2), print)
    assert outcome.status == "failed"
    assert outcome.reason == (
        "verl ended with exit code 1 before its first step: "
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    )


def test_no_error_in_the_log_is_said_without_one(tmp_path: Path) -> None:
    assert last_error(tmp_path / "log.txt") is None
    assert explain_end(-9, 3, tmp_path / "log.txt") == "verl ended with exit code -9 after 3 steps"


def test_unfinished_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    tail = StepTail(path)
    assert tail.read() == []
    line = json.dumps({"step": 1, "data": {"timing_s/step": 2.0}})
    path.write_text(line[:10])
    assert tail.read() == []
    path.write_text(line + "\n")
    assert tail.read() == [(1, 2.0)]
    assert tail.read() == []
