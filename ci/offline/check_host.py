"""Checks on the GPU host that the unpacked stack works: versions, attention against float32, a kernel of vLLM's.

Takes some seconds; exit code 1 where something is wrong.
"""

import importlib.metadata
import sys

MAX_ERROR = 1e-2
"""Relative; bfloat16 has 8 bits of mantissa (2^-8 = 4e-3), and sums of many terms lose a little more."""
SHOWN = ("torch", "verl", "vllm", "transformers", "ray", "tensordict", "flash-attn", "numpy", "pytest", "grpo-perf")
LENGTHS = (100, 37, 513, 1)
"""Packed sequences: long, short, of length one, none a multiple of a kernel's block."""


def check_attention():
    """Largest relative error of flash_attn's packed causal attention and its gradients, over two head shapes."""
    import torch
    from flash_attn import flash_attn_varlen_func

    torch.manual_seed(0)
    bounds = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
    worst = 0.0
    for num_heads, num_kv_heads, head_size in ((14, 2, 64), (12, 2, 128)):
        inputs = [
            torch.randn(sum(LENGTHS), heads, head_size, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            for heads in (num_heads, num_kv_heads, num_kv_heads)
        ]
        scale = head_size**-0.5
        found = flash_attn_varlen_func(
            *inputs, bounds, bounds, max(LENGTHS), max(LENGTHS), causal=True, softmax_scale=scale
        )
        upstream = torch.randn_like(found)
        exact_inputs = [tensor.detach().float().requires_grad_() for tensor in inputs]
        exact = attend_exactly(*exact_inputs, num_heads // num_kv_heads)
        pairs = [(found, exact)]
        pairs += zip(
            torch.autograd.grad(found, inputs, upstream),
            torch.autograd.grad(exact, exact_inputs, upstream.float()),
            strict=True,
        )
        worst = max(worst, *(relative_error(got, want) for got, want in pairs))
    return worst


def attend_exactly(q, k, v, group):
    """Causal attention of each sequence alone, in float32."""
    import torch

    outputs = []
    for q_one, k_one, v_one in zip(*(tensor.split(LENGTHS) for tensor in (q, k, v)), strict=True):
        heads_first = [tensor.transpose(0, 1)[None] for tensor in (q_one, k_one, v_one)]
        out = torch.nn.functional.scaled_dot_product_attention(
            heads_first[0], *(tensor.repeat_interleave(group, 1) for tensor in heads_first[1:]), is_causal=True
        )
        outputs.append(out[0].transpose(0, 1))
    return torch.cat(outputs)


def check_vllm_kernel():
    """Relative error of vLLM's own RMS norm: its compiled library loads, and has code for this GPU."""
    import torch
    import vllm._C_stable_libtorch  # noqa: F401
    from vllm import _custom_ops

    x = torch.randn(8, 896, device="cuda", dtype=torch.bfloat16)
    found = torch.empty_like(x)
    _custom_ops.rms_norm(found, x, torch.ones(896, device="cuda", dtype=torch.bfloat16), 1e-6)
    exact = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    return relative_error(found, exact)


def relative_error(found, exact):
    """|found - exact| / |exact|."""
    return ((found.float() - exact).norm() / exact.norm()).item()


def main():
    """Print what is there; return the exit code."""
    for name in SHOWN:
        try:
            print(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            print(f"{name} is missing")
    errors = {"flash-attn": check_attention(), "vllm": check_vllm_kernel()}
    for name, error in errors.items():
        print(f"{name}: relative error {error:.1e}, {'ok' if error < MAX_ERROR else f'more than {MAX_ERROR}'}")
    return 0 if all(error < MAX_ERROR for error in errors.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
