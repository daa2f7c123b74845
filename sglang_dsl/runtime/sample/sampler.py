"""Logits of a step to one token per sequence, each row for itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import SamplingError
from .draw import draw, is_greedy
from .masks import apply_masks, empty_masks
from .noise import uniform
from .sequence import SampledSequence


class Draw(NamedTuple):
    """One sequence to sample: its place among the logits' rows, and how many tokens it has generated so far."""

    row: int
    sequence: SampledSequence
    generated: int


def sample(logits: Tensor, draws: Sequence[Draw]) -> list[int | SamplingError]:
    """A token per draw from logits [N, V], which are not changed. Several draws may share a row.

    A row that leaves no token gets its error; the others are not touched by it.
    """
    rows = torch.tensor([d.row for d in draws], device=logits.device)
    values = logits.index_select(0, rows).float()
    for i, d in enumerate(draws):
        if d.sequence.changes_logits:
            d.sequence.adjust(values[i])
    _mask(values, draws)
    for i, d in enumerate(draws):
        if d.sequence.changes_logits:
            d.sequence.ban(values[i], d.generated)
    return _choose(values, draws)


def _mask(values: Tensor, draws: Sequence[Draw]) -> None:
    constrained = [(i, d.sequence.matcher) for i, d in enumerate(draws) if d.sequence.matcher is not None]
    if not constrained:
        return
    masks = empty_masks(len(constrained), values.shape[1])
    for mask, (_, matcher) in zip(masks, constrained, strict=True):
        matcher.fill_mask(mask)
    if len(constrained) == len(draws):
        apply_masks(values, masks)
        return
    rows = torch.tensor([i for i, _ in constrained], device=values.device)
    part = values.index_select(0, rows)
    apply_masks(part, masks)
    values.index_copy_(0, rows, part)


def _choose(values: Tensor, draws: Sequence[Draw]) -> list[int | SamplingError]:
    peaks, best = (t.tolist() for t in values.max(dim=-1))
    chosen: list[int | SamplingError] = []
    for i, d in enumerate(draws):
        spec = d.sequence.spec
        if peaks[i] != peaks[i]:
            chosen.append(SamplingError("the model's logits are not numbers (NaN)", hint="try dtype='float32'"))
        elif peaks[i] == -torch.inf:
            chosen.append(SamplingError("every token is masked", hint="loosen the constraint or the bias"))
        elif is_greedy(spec) or peaks[i] == torch.inf:
            chosen.append(best[i])
        else:
            chosen.append(draw(values[i], spec, uniform(d.sequence.seed, d.generated)))
    return chosen
