"""Partial attention in plain tensor operations: any device, any head sizes."""

from __future__ import annotations

import torch
from torch import Tensor


def partial(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = False, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As `cpu.partial`. Scores and softmax are float32 (float64 for float64 inputs), sums in the inputs' type."""
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = torch.matmul(q, k.transpose(-1, -2)).to(wide) * scale
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores.masked_fill_(future, -torch.inf)
    if mask is not None:
        scores += mask
    lse = scores.logsumexp(dim=-1)
    return torch.matmul((scores - lse.unsqueeze(-1)).exp().to(v.dtype), v), lse
