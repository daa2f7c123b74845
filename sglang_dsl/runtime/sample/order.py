"""The largest entries of a row, ties always by lowest id."""

from __future__ import annotations

import torch
from torch import Tensor


def largest(row: Tensor, k: int) -> Tensor:
    """Ids of the k largest entries of row [V], largest first, equal ones by ascending id. k is at most V.

    `torch.topk` alone leaves the order among equals, and which of them are in, undefined.
    """
    threshold = torch.topk(row, k, sorted=False).values.min()
    candidates = torch.nonzero(row >= threshold).squeeze(1)
    order = torch.sort(row[candidates], descending=True, stable=True).indices
    return candidates[order[:k]]
