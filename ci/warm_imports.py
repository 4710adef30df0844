"""Imports what a run's processes import, so that the bytecode of those modules lies on disk before the first run."""

import importlib
import sys
import warnings

MODULES = (
    "ray",
    "torch",
    "transformers",
    "transformers.models.qwen2.modeling_qwen2",
    "vllm",
    "vllm.v1.engine.async_llm",
    "vllm.entrypoints.openai.api_server",
    "verl.trainer.main_ppo",
    "verl.trainer.ppo.v1",
    "verl.workers.engine_workers",
    "verl.workers.rollout.vllm_rollout.vllm_async_server",
)

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name in MODULES:
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever a module wants that is not here, the others are worth compiling
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
