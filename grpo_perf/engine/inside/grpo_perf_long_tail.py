"""Responses with a real tail: verl's single-turn agent loop with a drawn length for each response.

Random weights never end a response by themselves, and with `ignore_eos` all are equally long, so that no request waits
for another. Here each response ends after a number of tokens drawn from a log-normal distribution by seed, prompt and
number in its group: the same in every run, whatever the tier and whichever worker asks.

Selected through verl's own `rollout.agent.agent_loop_config_path` (grpo_perf_long_tail.yaml) and `default_agent_loop`.
"""

import math
import random

from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop


def draw_length(seed, prompt, number, *, median, sigma, minimum, maximum):
    """Tokens of one response, in [minimum, maximum]; `sigma` is the deviation of the logarithm."""
    length = random.Random(f"{seed}/{prompt}/{number}").lognormvariate(math.log(median), sigma)
    return max(minimum, min(maximum, round(length)))


class LongTailAgentLoop(SingleTurnAgentLoop):
    """Single turn, with `max_tokens` of each request drawn."""

    def __init__(self, *args, seed, median, sigma, minimum, maximum, **kwargs):
        super().__init__(*args, **kwargs)
        self.draw = {"median": median, "sigma": sigma, "minimum": minimum, "maximum": maximum}
        self.seed = seed

    async def run(self, sampling_params, **kwargs):
        """verl's own run, ended after the drawn number of tokens."""
        length = draw_length(self.seed, list(kwargs["raw_prompt"]), kwargs["session_id"], **self.draw)
        return await super().run({**sampling_params, "max_tokens": length}, **kwargs)
