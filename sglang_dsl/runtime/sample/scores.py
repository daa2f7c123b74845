"""Log-probabilities: raw, that is of the model's own logits, before masks, penalties and temperature."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...ir.execution import TokenScore
from .order import largest


def token_score(logits: Tensor, token_id: int, top: int, token_bytes: Callable[[int], bytes]) -> TokenScore:
    """The natural log-probability of a token under logits [V], with the `top` best alternatives, best first."""
    row = torch.log_softmax(logits.float(), dim=-1)
    best = tuple((i, lp, token_bytes(i)) for i, lp in _best(row, top))
    return TokenScore(token_id=token_id, logprob=float(row[token_id]), token_bytes=token_bytes(token_id), top=best)


def logprobs(
    logits: Tensor, token_ids: Sequence[int], top: int
) -> tuple[tuple[float, ...], tuple[tuple[int, float], ...]]:
    """Log-probabilities of `token_ids` under logits [V], and the `top` best (id, log-probability), best first."""
    row = torch.log_softmax(logits.float(), dim=-1)
    chosen = tuple(row[torch.tensor(list(token_ids), dtype=torch.long, device=row.device)].tolist())
    return chosen, tuple(_best(row, top))


def _best(row: Tensor, top: int) -> list[tuple[int, float]]:
    if top < 1:
        return []
    ids = largest(row, min(top, row.numel()))
    return list(zip(ids.tolist(), row[ids].tolist(), strict=True))
