"""The probe, loaded as verl loads it, in a process of its own: spans of every timer, marks, faults; inert otherwise."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from grpo_perf.engine.environment import INSIDE
from grpo_perf.timeline.trace import read_traces

TIMER = """
import math, time
from dataclasses import dataclass, field

@dataclass
class Timer:
    name: str = None
    last: float = field(default=math.nan, init=False)
    def start(self): self.t0 = time.perf_counter()
    def stop(self):
        self.last = time.perf_counter() - self.t0
        return self.last
    def __enter__(self):
        self.start()
        return self
    def __exit__(self, *_): self.stop()
"""

TRACKING = """
class Tracking:
    def log(self, data, step): return ("logged", step)
"""


def run(tmp_path: Path, code: str, **environment: str) -> list[dict[str, Any]]:
    """Spans that a process left, with codetiming and verl.utils.tracking replaced by small stand-ins."""
    site, parts = tmp_path / "site", tmp_path / "parts"
    (site / "verl" / "utils").mkdir(parents=True)
    parts.mkdir()
    (site / "codetiming.py").write_text(TIMER)
    (site / "verl" / "__init__.py").write_text("")
    (site / "verl" / "utils" / "__init__.py").write_text("")
    (site / "verl" / "utils" / "tracking.py").write_text(TRACKING)
    variables = {**os.environ, "PYTHONPATH": f"{INSIDE}:{site}", "GRPO_PERF_PARTS": str(parts), **environment}
    subprocess.run([sys.executable, "-c", "import grpo_perf_probe\n" + code], env=variables, check=True, timeout=30)
    lines = [line for part in parts.glob("*.jsonl") for line in part.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def spans(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {row["name"]: (row["t1_ns"] - row["t0_ns"]) / 1e9 for row in rows if "name" in row}


STEP = """
from codetiming import Timer
import time
with Timer(name="step") as step:
    with Timer(name="gen") as gen:
        time.sleep(0.05)
print(gen.last)
"""


def test_every_timer_is_a_span_with_clocks_beside(tmp_path: Path) -> None:
    rows = run(tmp_path, STEP, RANK="3")
    found = spans(rows)
    assert found.keys() == {"step", "gen"}
    assert 0.05 <= found["gen"] <= found["step"]
    assert {row["rank"] for row in rows if "name" in row} == {3}
    assert sum("clock" in row for row in rows) == 2  # at start and at exit


def test_verls_own_duration_agrees_with_the_span(tmp_path: Path) -> None:
    code = (
        STEP + "\nimport pathlib, os\npathlib.Path(os.environ['GRPO_PERF_PARTS'], 'last').write_text(str(gen.last))\n"
    )
    found = spans(run(tmp_path, code))
    last = float((tmp_path / "parts" / "last").read_text())
    assert abs(found["gen"] - last) < 0.005


def test_fault_lengthens_its_phase_of_the_trainer(tmp_path: Path) -> None:
    found = spans(run(tmp_path, STEP, GRPO_PERF_RUN_FAULTS="gen:+200%"))
    assert 0.15 <= found["gen"] < 0.3


def test_fault_leaves_the_same_name_in_other_processes_alone(tmp_path: Path) -> None:
    code = "from codetiming import Timer\nimport time\nwith Timer(name='gen'):\n    time.sleep(0.05)"
    assert spans(run(tmp_path, code, GRPO_PERF_RUN_FAULTS="gen:+1000%"))["gen"] < 0.3


def test_untimed_functions_are_marked_when_their_module_is_imported(tmp_path: Path) -> None:
    code = "from verl.utils.tracking import Tracking\nassert Tracking().log({}, 4) == ('logged', 4)"
    assert "logging" in spans(run(tmp_path, code))


def test_inert_without_its_variable(tmp_path: Path) -> None:
    assert run(tmp_path, STEP, GRPO_PERF_PARTS="") == []


def test_interleaved_timers_of_one_thread_are_all_kept(tmp_path: Path) -> None:
    code = """
from codetiming import Timer
first, second = Timer(name="generate_sequences"), Timer(name="generate_sequences")
first.start(); second.start(); first.stop(); second.stop()
"""
    assert sum(row.get("name") == "generate_sequences" for row in run(tmp_path, code)) == 2


STEPS = """
import os, time
from codetiming import Timer
for _ in range(9):
    with Timer(name="step"):
        with Timer(name="gen"):
            time.sleep(0.01)
"""


def test_alternation_leaves_two_of_four_steps_unwatched(tmp_path: Path) -> None:
    rows = run(tmp_path, STEPS, GRPO_PERF_EXPERIMENT="alternate")
    names = [row["name"] for row in rows if "name" in row]
    watched, unwatched = ["gen", "step"], ["step"]
    assert names == [*watched, *unwatched, *unwatched, *watched, *watched, *unwatched, *unwatched, *watched, *watched]


TORCH = """
import json, sys, time, types

class Profile:
    def __init__(self, activities): assert activities == ["CUDA"]
    def start(self): self.t0_ns = time.time_ns()
    def stop(self): self.t1_ns = time.time_ns()
    def export_chrome_trace(self, path):
        kernel = {"cat": "kernel", "ts": self.t0_ns / 1000, "dur": (self.t1_ns - self.t0_ns) / 1000}
        with open(path, "w") as file:
            json.dump({"traceEvents": [kernel]}, file)

torch = types.ModuleType("torch")
torch.profiler = types.SimpleNamespace(profile=Profile, ProfilerActivity=types.SimpleNamespace(CUDA="CUDA"))
torch.cuda = types.SimpleNamespace(is_initialized=lambda: True, synchronize=lambda: None)
sys.modules["torch"] = torch
"""


def test_a_trace_covers_its_step_and_is_on_disk_before_the_next(tmp_path: Path) -> None:
    code = TORCH + STEPS.replace("0.01)", "0.1)")
    found = [row for row in run(tmp_path, code, GRPO_PERF_EXPERIMENT="trace:5") if row.get("name") == "step"]
    trace = read_traces(tmp_path / "parts")
    traced, after = found[4], found[5]
    assert traced["t0_ns"] <= trace.t0_ns < trace.t1_ns <= after["t0_ns"]
    assert trace.t1_ns - trace.t0_ns > 80_000_000
    assert len(list((tmp_path / "parts").glob("*.trace.json"))) == 2  # the first one starts CUPTI and is thrown away
    assert not list((tmp_path / "parts").glob("tracing-*"))
