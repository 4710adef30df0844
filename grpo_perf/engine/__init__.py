"""Runs verl and reads it: one request in, one run folder out."""

from grpo_perf.engine.base import Engine, Progress, RunRequest
from grpo_perf.engine.replay import ReplayEngine, find_runs
from grpo_perf.engine.verl import VerlEngine

__all__ = ["Engine", "Progress", "ReplayEngine", "RunRequest", "VerlEngine", "find_runs"]
