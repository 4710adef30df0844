"""Lengths of the long-tail workload, with verl's agent loop replaced by a stand-in that keeps what it is asked for."""

import subprocess
import sys
from pathlib import Path

from grpo_perf.engine.environment import INSIDE

STAND_IN = """
class SingleTurnAgentLoop:
    def __init__(self, *args, **kwargs): self.given = kwargs
    async def run(self, sampling_params, **kwargs): return sampling_params, kwargs, self.given
"""

CODE = """
import asyncio, statistics
from grpo_perf_long_tail import LongTailAgentLoop, draw_length

settings = {"median": 350, "sigma": 0.75, "minimum": 64, "maximum": 2048}
lengths = [draw_length(0, f"prompt {prompt}", number, **settings) for prompt in range(1000) for number in range(8)]
assert 340 < statistics.median(lengths) < 360, statistics.median(lengths)
assert (min(lengths), max(lengths)) == (64, 2048)
assert 0.005 < sum(length == 2048 for length in lengths) / len(lengths) < 0.015
assert lengths[:8] == [draw_length(0, "prompt 0", number, **settings) for number in range(8)]
assert len(set(lengths[:8])) > 4

loop = LongTailAgentLoop(1, seed=0, tools=[], **settings)
prompt = [{"role": "user", "content": "1 + 1"}]
asked = {"temperature": 1.0}
found, passed, given = asyncio.run(loop.run(asked, raw_prompt=prompt, session_id=3))
assert found == {"temperature": 1.0, "max_tokens": draw_length(0, prompt, 3, **settings)}
assert asked == {"temperature": 1.0}  # shared by the responses of a group
assert passed["raw_prompt"] == prompt
assert given == {"tools": []}
"""


def test_lengths_are_log_normal_and_the_same_in_every_run(tmp_path: Path) -> None:
    package = tmp_path / "verl" / "experimental" / "agent_loop"
    package.mkdir(parents=True)
    (package / "single_turn_agent_loop.py").write_text(STAND_IN)
    path = f"{INSIDE}:{tmp_path}"
    done = subprocess.run(
        [sys.executable, "-c", CODE], env={"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
