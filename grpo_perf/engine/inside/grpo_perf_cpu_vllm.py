"""vLLM worker extension: verl's weight sync on vLLM's CPU build.

vLLM's CPU linear layers repack their weight after the first load and drop the original parameter
(dispatch_cpu_unquantized_gemm(remove_weight=True)), so verl's in-place load_weights() fails at the first sync with
"'Parameter' object has no attribute 'weight_loader'". vLLM's own reload path restores and repacks the layers. Selected
by `rollout.engine_kwargs.vllm.worker_extension_cls`.
"""

from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension


class CPUWorkerExtension(vLLMColocateWorkerExtension):
    """verl's worker extension with vLLM's reload in place of load_weights."""

    def update_weights_from_ipc(self, peft_config=None, base_sync_done=False, use_shm=False):
        """Receive all buckets, then reload the model once."""
        if peft_config and base_sync_done:
            return super().update_weights_from_ipc(peft_config, base_sync_done, use_shm)
        weights = []

        def collect(bucket, is_last):  # tensors are views of the shared bucket, which is reused: clone
            weights.extend((name, tensor.clone()) for name, tensor in bucket)

        receiver = BucketedWeightReceiver(zmq_handle=self._get_zmq_handle(), device=self.device, use_shm=use_shm)
        receiver.receive_weights(on_bucket_received=collect)
        return self.model_runner.reload_weights(weights_iterator=iter(weights))
