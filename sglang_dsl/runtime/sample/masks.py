"""Which tokens a constraint allows, as bits, applied to logits."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ..constrain.protocol import Matcher


class TokenMatcher(Matcher, Protocol):
    """A matcher that can say which tokens may come next."""

    def fill_mask(self, row: Tensor) -> None:
        """Write into row int32 [ceil(V / 32)] bit i % 32 of word i // 32 = token i is allowed. The end tokens are among them
        only where the output may end."""


def empty_masks(rows: int, vocab_size: int) -> Tensor:
    """Bits for `rows` rows, int32 [rows, ceil(V / 32)], all allowed."""
    return torch.full((rows, -(-vocab_size // 32)), -1, dtype=torch.int32)


def apply_masks(logits: Tensor, masks: Tensor) -> None:
    """Set what the bits [n, ceil(V / 32)] forbid to -inf in logits [n, V], in place."""
    shifts = torch.arange(32, dtype=torch.int32, device=logits.device)
    forbidden = (masks.to(logits.device).unsqueeze(-1) >> shifts) & 1 == 0
    logits.masked_fill_(forbidden.flatten(1)[:, : logits.shape[1]], -torch.inf)
