"""The Python interface of flash_attn 2.x on PyTorch's own flash-attention kernels.

Needs torch >= 2.10 (torch.nn.attention.varlen).

Causal or full attention only: no dropout, alibi, softcap or key-value cache. Its times need not be those of the real
package, so a run's fingerprint names it (`flash_attn: stand-in`), and its baselines are apart.
Source of the signatures: flash_attn 2.8.3, flash_attn/flash_attn_interface.py.
"""
# ruff: noqa: ARG001  (the signatures are flash_attn's)

import torch
from torch.nn.attention.varlen import varlen_attn


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    """Attention over packed sequences: q (tokens, heads, head size), k and v with as many or fewer heads."""
    if dropout_p or softcap or alibi_slopes is not None or return_attn_probs or block_table is not None:
        raise NotImplementedError("the flash-attn stand-in has plain causal or full attention only: install flash-attn")
    return varlen_attn(
        q,
        k,
        v,
        cu_seqlens_q.to(torch.int32),
        cu_seqlens_k.to(torch.int32),
        int(max_seqlen_q),
        int(max_seqlen_k),
        scale=softmax_scale,
        window_size=_resolve_window(causal, window_size),
    )


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """Attention over a padded batch: q (batch, length, heads, head size)."""
    batch, length_q = q.shape[:2]
    length_k = k.shape[1]
    out = flash_attn_varlen_func(
        q.reshape(batch * length_q, *q.shape[2:]),
        k.reshape(batch * length_k, *k.shape[2:]),
        v.reshape(batch * length_k, *v.shape[2:]),
        _count_up(batch, length_q, q.device),
        _count_up(batch, length_k, q.device),
        length_q,
        length_k,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )
    return out.reshape(batch, length_q, *out.shape[1:])


def flash_attn_with_kvcache(*args, **kwargs):
    """Not there: rollout engines bring their own kernels."""
    raise NotImplementedError("the flash-attn stand-in has no key-value cache: install flash-attn")


def _resolve_window(causal, window_size):
    left, right = (-1, -1) if window_size is None else tuple(window_size)
    return int(left), 0 if causal else int(right)


def _count_up(batch, length, device):
    return torch.arange(0, (batch + 1) * length, length, dtype=torch.int32, device=device)
