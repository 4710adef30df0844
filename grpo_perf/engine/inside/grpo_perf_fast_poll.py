"""verl replay buffers that look for finished rollouts every 20 ms instead of every 2 s.

The stock ReplayBuffer sleeps poll_interval=2.0 s between looks (verl 0.9.1, trainer/ppo/v1/replay_buffer.py) and no
setting reaches that argument. Selected through verl's own option `trainer.v1.sampler.custom_sampler.path` and `.name`:
FastPollReplayBuffer for trainer_mode=sync, FastPollReplayBufferAsync for colocate_async and separate_async.
"""

from verl.trainer.ppo.v1 import replay_buffer

POLL_INTERVAL_S = 0.02


class FastPollReplayBuffer(replay_buffer.ReplayBuffer):
    """The buffer of the synchronous trainer."""

    def __init__(self, *args, **kwargs):
        kwargs.setdefault("poll_interval", POLL_INTERVAL_S)
        super().__init__(*args, **kwargs)


if hasattr(replay_buffer, "ReplayBufferAsync"):

    class FastPollReplayBufferAsync(replay_buffer.ReplayBufferAsync):
        """The buffer of the asynchronous trainers."""

        def __init__(self, *args, **kwargs):
            kwargs.setdefault("poll_interval", POLL_INTERVAL_S)
            super().__init__(*args, **kwargs)
