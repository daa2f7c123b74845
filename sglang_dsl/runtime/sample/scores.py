"""Log-probabilities: raw, that is of the model's own logits, before masks, penalties and temperature; and apart from them the
share of a token among those a constraint allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...ir.execution import TokenScore
from .masks import TokenMatcher, apply_masks, empty_masks
from .order import largest


def token_score(
    logits: Tensor,
    token_id: int,
    top: int,
    token_bytes: Callable[[int], bytes],
    matcher: TokenMatcher | None = None,
) -> TokenScore:
    """The natural log-probability of a token under logits [V], with the `top` best alternatives, best first.

    matcher: the sequence's, before it has accepted the token: its share among what is allowed is told apart.
    """
    row = torch.log_softmax(logits.float(), dim=-1)
    best = tuple((i, lp, token_bytes(i)) for i, lp in _best(row, top))
    return TokenScore(
        token_id=token_id,
        logprob=float(row[token_id]),
        token_bytes=token_bytes(token_id),
        top=best,
        constrained_logprob=None if matcher is None else _among_allowed(row, token_id, matcher),
    )


def logprobs(
    logits: Tensor, token_ids: Sequence[int], top: int
) -> tuple[tuple[float, ...], tuple[tuple[int, float], ...]]:
    """Log-probabilities of `token_ids` under logits [V], and the `top` best (id, log-probability), best first."""
    row = torch.log_softmax(logits.float(), dim=-1)
    chosen = tuple(row[torch.tensor(list(token_ids), dtype=torch.long, device=row.device)].tolist())
    return chosen, tuple(_best(row, top))


def _among_allowed(row: Tensor, token_id: int, matcher: TokenMatcher) -> float:
    values, masks = row.clone().unsqueeze(0), empty_masks(1, row.numel())
    matcher.fill_mask(masks[0])
    apply_masks(values, masks, [0])
    return float(torch.log_softmax(values[0], dim=-1)[token_id])


def _best(row: Tensor, top: int) -> list[tuple[int, float]]:
    if top < 1:
        return []
    ids = largest(row, min(top, row.numel()))
    return list(zip(ids.tolist(), row[ids].tolist(), strict=True))
