"""The truth the fast paths are tested against: dense attention, one row at a time, from the row's own page table only."""

from __future__ import annotations

import torch
from torch import Tensor

from .plan import AttentionPlan, QueryRow, oldest_visible, slots_of


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    plan: AttentionPlan,
    *,
    scale: float,
    window: int | None = None,
    chunk: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    accumulate: torch.dtype = torch.float32,
) -> Tensor:
    """Attention of q [T, H, D] over pools [N, G, D] and [N, G, E] that already hold the step's keys; [T, H, E].

    Levels of the plan are ignored: each row reads all its keys through its pages. Scores, softmax and sums are computed in
    `accumulate` (float64 makes it the oracle). window: a token sees this many keys, itself included. chunk: it sees no
    key before its own block of so many positions. softcap c: scores
    become c * tanh(score / c). sinks [H]: a score per head that takes part in the softmax and adds no value.
    """
    firsts = plan.first_tokens()
    out = q.new_empty(*q.shape[:2], values.shape[-1])
    for row, first in zip(plan.rows, firsts, strict=False):
        slots = torch.from_numpy(slots_of(row.pages, 0, row.end, plan.page_size)).to(q.device)
        scores = _scores(q[first : first + row.tokens].to(accumulate), keys[slots].to(accumulate), scale, softcap)
        scores.masked_fill_(~visible(row, window, q.device, chunk), -torch.inf)
        weights = _softmax(scores, sinks)
        out[first : first + row.tokens] = _mix(weights, values[slots].to(accumulate)).to(out.dtype)
    return out


def visible(row: QueryRow, window: int | None, device: torch.device, chunk: int | None = None) -> Tensor:
    """Which keys [0, end) each new token of a row sees: bool [tokens, end]."""
    query = torch.arange(row.start, row.end, device=device).unsqueeze(1)
    key = torch.arange(row.end, device=device)
    seen: Tensor = (key <= query) & (key >= oldest_visible(query, window, chunk))
    return seen


def _scores(q: Tensor, k: Tensor, scale: float, softcap: float | None) -> Tensor:
    """[H, t, L] from q [t, H, D] and k [L, G, D]; query head h reads key head h // (H // G)."""
    repeated = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = torch.einsum("thd,lhd->htl", q, repeated) * scale
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    if sinks is None:
        return scores.softmax(dim=-1)
    extra = sinks.to(scores.dtype).view(-1, 1, 1).expand(-1, scores.shape[1], 1)
    return torch.cat([scores, extra], dim=-1).softmax(dim=-1)[..., :-1]


def _mix(weights: Tensor, v: Tensor) -> Tensor:
    repeated = v.repeat_interleave(weights.shape[0] // v.shape[1], dim=1)
    return torch.einsum("htl,lhe->the", weights, repeated)
