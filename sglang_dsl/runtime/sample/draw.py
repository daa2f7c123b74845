"""One token from one row of logits: temperature, then top-k, top-p, min-p, then the inverse of the cumulative sum."""

from __future__ import annotations

import torch
from torch import Tensor

from ...ir.specs import SamplingSpec
from .order import largest

GREEDY_BELOW = 1e-5  # a smaller temperature is greedy: what it leaves to other tokens is below float32 resolution
_NUCLEUS_GUESS = 256  # most nuclei are smaller; a larger one is found by trying again with more


def is_greedy(spec: SamplingSpec) -> bool:
    """Whether the most likely token is taken, ties by lowest id."""
    return spec.temperature < GREEDY_BELOW or spec.top_k == 1 or spec.top_p == 0 or spec.min_p == 1


def draw(row: Tensor, spec: SamplingSpec, uniform: float) -> int:
    """The token at `uniform` in [0, 1) of the distribution left by `spec`. row [V]: finite or -inf, not all -inf.

    Weights are float64 and relative to the largest, so no temperature overflows. Each filter sees the distribution the one
    before it left. Kept tokens lie in order of id.
    """
    peak = row.max()
    weights = torch.exp((row - peak).double() / spec.temperature)
    ids = _filtered(row, weights, spec)
    kept = weights if ids is None else weights[ids]
    total = kept.cumsum(0)
    place = int(torch.searchsorted(total, total[-1] * uniform, right=True))
    place = min(place, int(torch.nonzero(kept)[-1]))  # rounding must not step past the last possible token
    return place if ids is None else int(ids[place])


def _filtered(row: Tensor, weights: Tensor, spec: SamplingSpec) -> Tensor | None:
    """Ids that are left, ascending; None if all are."""
    ids: Tensor | None = None
    if 0 < spec.top_k < row.numel():
        ids = largest(row, spec.top_k)
    if spec.top_p < 1:
        ids = _nucleus(row, weights, ids, spec.top_p)
    if spec.min_p > 0:
        ids = torch.arange(row.numel(), device=row.device) if ids is None else ids
        ids = ids[weights[ids] >= spec.min_p]
    return None if ids is None else ids.sort().values


def _nucleus(row: Tensor, weights: Tensor, ids: Tensor | None, top_p: float) -> Tensor:
    """The fewest most likely tokens whose weights reach `top_p` of the total; always at least one."""
    goal = top_p * (weights.sum() if ids is None else weights[ids].sum())
    guess = _NUCLEUS_GUESS
    while True:
        ordered = largest(row, min(guess, row.numel())) if ids is None else ids
        before = weights[ordered].cumsum(0) - weights[ordered]
        count = int((before < goal).sum())
        if ids is not None or count < ordered.numel() or guess >= row.numel():
            return ordered[: max(count, 1)]
        guess *= 16
