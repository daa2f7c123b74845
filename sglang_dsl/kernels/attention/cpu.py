"""Partial attention through PyTorch's CPU flash kernel, which also returns the log-sum-exp."""

from __future__ import annotations

import torch
from torch import Tensor


def partial(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = False, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Softmax-weighted values and natural log-sum-exp: [N, h, t, D] and [N, h, t].

    k and v are [N, h, L, D] (any strides with a dense last dimension; a repeated head may have stride 0). causal: token i
    sees keys 0..i, so t == L. mask is added to the scores; every query has to keep one visible key.
    """
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=mask, scale=scale
    )
    return out, lse


def supports(q: Tensor, v: Tensor) -> bool:
    """The kernel wants equal head sizes of keys and values, on the CPU."""
    return q.device.type == "cpu" and q.shape[-1] == v.shape[-1]
