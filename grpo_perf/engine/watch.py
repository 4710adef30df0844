"""Follows a run while it goes: steps as verl logs them, and the two deadlines that turn a hang into a verdict."""

import json
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from grpo_perf.record import Status

POLL_S = 0.1
END_GRACE_S = 1.0
"""Between the last step and the end of the run: verl has nothing left to record, only to take down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended."""

    status: Status
    reason: str | None = None
    hung: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a run is given up."""

    start_up_s: float
    """From launch to the end of the first step."""
    step_s: float
    """From one step's end to the next."""
    num_steps: int


class StepTail:
    """New lines of verl's file log; an unfinished line waits for its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0

    def read(self) -> list[tuple[int, float | None]]:
        """(step, verl's timing_s/step in seconds) of each line that appeared since the last call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                chunk = file.read()
        except FileNotFoundError:
            return []
        whole = chunk[: chunk.rfind(b"\n") + 1]
        self.offset += len(whole)
        rows = [json.loads(line) for line in whole.splitlines()]
        return [(row["step"], row["data"].get("timing_s/step")) for row in rows]


def watch(process: subprocess.Popen[bytes], run_dir: Path, limits: Limits, progress: Callable[[str], None]) -> Outcome:
    """Block until the run has all its steps, ends by itself or exceeds a deadline."""
    tail = StepTail(run_dir / "steps.jsonl")
    start = last = time.monotonic()
    num_seen = 0
    while True:
        ended = process.poll() is not None
        for step, duration_s in tail.read():
            last = time.monotonic()
            num_seen += 1
            if num_seen == 1:
                progress(f"first step after {last - start:.0f} s")
            spent = "" if duration_s is None else f"  {duration_s:.1f} s"
            progress(f"step {step}/{limits.num_steps}{spent}")
        if num_seen >= limits.num_steps:
            if not ended:
                time.sleep(END_GRACE_S)
            return Outcome(status="complete")
        if ended:
            return Outcome(status="failed", reason=explain_end(process.returncode, num_seen, run_dir / "log.txt"))
        allowed_s = limits.step_s if num_seen else limits.start_up_s
        waited_s = time.monotonic() - last
        if waited_s > allowed_s:
            what = f"step {num_seen + 1}" if num_seen else "the first step"
            reason = f"hang: no end of {what} within {allowed_s:.0f} s; stacks of its processes are in stacks.txt"
            return Outcome(status="failed", reason=reason, hung=True)
        time.sleep(POLL_S)


_ERROR_LINE = re.compile(r"(?:^|\s|\x1b\[\d+m)([A-Za-z_.]*(?:Error|Exception|Interrupt|Exit)\b(?:: .*)?)$")


def explain_end(code: int, num_steps: int, log: Path) -> str:
    """Why a run ended early, with the last error that its log names."""
    after = f"after {num_steps} steps" if num_steps else "before its first step"
    error = last_error(log)
    return f"verl ended with exit code {code} {after}" + (f": {error}" if error else "")


def last_error(log: Path, tail_bytes: int = 256 * 1024) -> str | None:
    """The last line of the log that reads like a Python error, shortened to 300 characters; None without one."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - tail_bytes))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return None
    found = [match[1] for line in text.splitlines() if (match := _ERROR_LINE.search(line.rstrip()))]
    return found[-1][:300] if found else None
