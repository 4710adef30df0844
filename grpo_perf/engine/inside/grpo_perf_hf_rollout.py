"""Rollout backend "hf" for verl 0.9: transformers.generate in one Ray actor, for processors that vLLM cannot use.

Not the engine that people train with: its runs have baselines of their own (hardware key `cpu-hf`). Registers itself in
verl's two rollout registries; selected by `rollout.name=hf`, loaded through `model.external_lib`.
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

WINDOW_S = 0.01
"""Requests that arrive within this time are generated together."""


class HFServer:
    """A batch at a time: requests wait for each other for WINDOW_S, then for one generate() call."""

    def __init__(self, config, model_config):
        from transformers import AutoModelForCausalLM

        self.config = config
        self.ignore_eos = bool(config.get("ignore_eos", False))
        model_config = omega_conf_to_dataclass(model_config, dataclass_type=HFModelConfig)
        self.model = AutoModelForCausalLM.from_pretrained(model_config.local_path, dtype=torch.float32).eval()
        self.tokenizer = model_config.tokenizer
        if self.ignore_eos:
            self.model.generation_config.eos_token_id = None
        self.global_steps = None
        self.queue = []
        self.wakeup = None

    async def generate(self, request_id, prompt_ids, sampling_params, **_):
        """The response of one request."""
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
            await asyncio.sleep(WINDOW_S)
            self.wakeup.clear()
            batch, self.queue = self.queue, []
            if batch:
                await self._answer(batch)

    async def _answer(self, batch):
        try:
            outputs = await asyncio.to_thread(self._run, batch)
        except Exception as error:  # the callers raise it; a server that dies would leave them waiting
            for _, _, done in batch:
                done.set_exception(error)
            return
        for (_, _, done), output in zip(batch, outputs):
            done.set_result(output)

    @torch.no_grad()
    def _run(self, batch):
        params = batch[0][1]
        temperature = float(params.get("temperature", 1.0))
        width = max(len(prompt) for prompt, _, _ in batch)
        pad = self.tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt, _, _ in batch])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt, _, _ in batch])
        generated = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=params.get("max_tokens") or self.config.response_length,
            do_sample=temperature > 0,
            temperature=temperature if temperature > 0 else None,
            top_k=0,
            top_p=1.0,
            return_dict_in_generate=True,
            output_logits=True,
            pad_token_id=pad,
        )
        tokens = generated.sequences[:, width:]
        logits = torch.stack(generated.logits, 1).float() / (temperature or 1.0)
        log_probs = logits.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        return [self._output(*row) for row in zip(tokens.tolist(), log_probs.tolist())]

    def _output(self, tokens, log_probs):
        eos = self.tokenizer.eos_token_id
        length = tokens.index(eos) + 1 if eos in tokens and not self.ignore_eos else len(tokens)
        return TokenOutput(
            token_ids=tokens[:length],
            log_probs=log_probs[:length],
            stop_reason="completed",
            extra_fields={"global_steps": self.global_steps},
        )

    async def load_weights(self, weights, global_steps):
        """Take the actor's weights over."""
        self.model.load_state_dict(weights, strict=False)
        if global_steps is not None:
            self.global_steps = global_steps

    async def _noop(self, *_, **__):
        return None

    wake_up = sleep = resume_generation = clear_kv_cache = release_kv_cache = resume_kv_cache = _noop
    start_profile = stop_profile = wait_for_requests_to_drain = _noop

    async def abort_all_requests(self, *_, **__):
        """Nothing is ever running when verl asks: the synchronous trainer waits for all responses."""
        return {"aborted_count": 0, "request_ids": []}


class HFReplica(RolloutReplica):
    """One server a replica."""

    async def launch_servers(self):
        """Start the Ray actor."""
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
    """The trainer's side: hands the weights over."""

    def __init__(self, config, model_config, device_mesh, replica_rank=-1):
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self.server = None

    async def resume(self, tags):
        """Nothing was released."""

    async def release(self):
        """Nothing to release: the model is resident."""

    async def update_weights(self, weights, global_steps=None, **_):
        """Send a copy of the weights to the server."""
        if self.server is None:
            self.server = ray.get_actor(f"hf_server_{self.replica_rank}_0")
        state = {name: tensor.detach().clone() for name, tensor in weights}
        await self.server.load_weights.remote(state, global_steps)


RolloutReplicaRegistry.register("hf", lambda: HFReplica)
rollout_base._ROLLOUT_REGISTRY[("hf", "async")] = "grpo_perf_hf_rollout.ServerAdapter"
