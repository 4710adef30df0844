"""FSDP2 engine for verl's "cpu" platform.

verl registers FSDP engines for "cuda" and "npu" only, and builds forward-only FSDP2 modules (the reference model) with
CPUOffloadPolicy(pin_memory=True), which needs an accelerator ("Cannot access accelerator device when none is
available"). Here the reference model is a resident one. Loaded through `actor_rollout_ref.model.external_lib`.
"""

from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")
class CPUFSDPEngine(FSDPEngineWithLMHead):
    """verl's FSDP2 engine, without pinned memory."""

    def _build_fsdp_module(self, module):
        forward_only = self.engine_config.forward_only
        self.engine_config.forward_only = False
        try:
            return super()._build_fsdp_module(module)
        finally:
            self.engine_config.forward_only = forward_only
