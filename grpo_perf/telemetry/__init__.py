"""Samples devices and host beside a run, and says what the machine offers."""

from grpo_perf.telemetry.hardware import detect_hardware, explain_missing_gpu
from grpo_perf.telemetry.process import SamplerProcess, start_sampler

__all__ = ["SamplerProcess", "detect_hardware", "explain_missing_gpu", "start_sampler"]
