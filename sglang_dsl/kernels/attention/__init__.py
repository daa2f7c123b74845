"""Attention over paged pools, packed rows and shared levels. `store` and `attend` are the door: shapes are checked here.

plan = plan_step(rows, shared, page_size=1, device=device)        # once per step
store(k, v, keys, values, plan)                                   # per layer: every new key first,
out = attend(q, k, v, keys, values, plan, LayerAttention(scale))  # then attention
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from . import reference
from .cascade import BlockVisit, Cascade, attend_blocks, partial_cpu, partial_portable, supports
from .cascade import plan_blocks as plan_visits
from .plan import AttentionPlan, ExtraWrite, QueryRow, SharedKeys, plan_step, slots_of

__all__ = [
    "AttentionPlan",
    "BlockVisit",
    "ExtraWrite",
    "LayerAttention",
    "QueryRow",
    "SharedKeys",
    "attend",
    "attend_invariant",
    "plan_step",
    "plan_visits",
    "slots_of",
    "store",
]


class LayerAttention(NamedTuple):
    """What a layer asks for beyond scaled dot products. See `reference.attend` for the meaning of each."""

    scale: float
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None


def store(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan) -> None:
    """Write the step's keys [T, G, D] and values [T, G, E] into the layer's pools, extra places included."""
    if plan.write_tokens is not None:
        k, v = k.index_select(0, plan.write_tokens), v.index_select(0, plan.write_tokens)
    keys.index_copy_(0, plan.write_slots, k)
    values.index_copy_(0, plan.write_slots, v)


def attend(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan, layer: LayerAttention
) -> Tensor:
    """Attention of the step's queries [T, H, D] over all keys their rows see; [T, H, E]. Call `store` first.

    Score soft-capping has no fused kernel here and runs on the reference; windows and chunks run masked; sinks are exact in every path.

    Raises:
        ValueError: shapes or dtypes of queries, keys and pools do not fit together.
    """
    _check(q, k, v, keys, values, plan)
    if layer.softcap:
        return reference.attend(q, keys, values, plan, scale=layer.scale, window=layer.window, chunk=layer.chunk, softcap=layer.softcap, sinks=layer.sinks)  # fmt: skip
    partial = partial_cpu if supports(q, v) else partial_portable
    out, lse = Cascade(q, k, v, keys, values, plan, layer.scale, partial).run(layer.window, layer.chunk)
    return _with_sinks(out, lse, layer.sinks)


def attend_invariant(
    q: Tensor, keys: Tensor, values: Tensor, visits: Sequence[BlockVisit], layer: LayerAttention
) -> Tensor:
    """As `attend`, over fixed blocks of keys (`plan_visits`): bitwise the same for a token in any batch.

    Raises:
        ValueError: the layer caps its scores softly, which has no invariant path.
    """
    if layer.softcap:
        raise ValueError("soft-capped attention scores have no batch-invariant path")
    partial = partial_cpu if supports(q, values) else partial_portable
    out, lse = attend_blocks(q, keys, values, visits, scale=layer.scale, partial=partial)
    return _with_sinks(out, lse, layer.sinks)


def _with_sinks(out: Tensor, lse: Tensor, sinks: Tensor | None) -> Tensor:
    """A sink adds exp(sink) to the sum under the softmax and nothing to the values."""
    if sinks is None:
        return out
    share = 1 / (1 + torch.exp(sinks.to(lse.dtype) - lse))
    return out * share.unsqueeze(-1).to(out.dtype)


def _check(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan) -> None:
    if q.shape[0] != plan.tokens or k.shape[0] != plan.tokens or v.shape[0] != plan.tokens:
        raise ValueError(f"the plan is for {plan.tokens} tokens; q, k, v have {q.shape[0]}, {k.shape[0]}, {v.shape[0]}")
    if k.shape[1:] != keys.shape[1:] or v.shape[1:] != values.shape[1:] or q.shape[1] % k.shape[1]:
        raise ValueError(f"heads do not fit: q {q.shape}, k {k.shape}, v {v.shape}, pools {keys.shape} {values.shape}")
    if not q.dtype == k.dtype == v.dtype == keys.dtype == values.dtype:
        raise ValueError(f"dtypes differ: q {q.dtype}, k {k.dtype}, v {v.dtype}, pools {keys.dtype} {values.dtype}")
