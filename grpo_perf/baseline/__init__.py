"""Baselines: made from runs, kept in one file a cell, read back or refused."""

from grpo_perf.baseline.make import make_baseline
from grpo_perf.baseline.store import baseline_path, load_baseline, save_baseline

__all__ = ["baseline_path", "load_baseline", "make_baseline", "save_baseline"]
