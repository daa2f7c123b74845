"""Logits of a step to one token per sequence, each row for itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import DslError, SamplingError
from .draw import draw, is_greedy
from .masks import apply_masks, empty_masks
from .noise import uniform
from .sequence import SampledSequence


class Draw(NamedTuple):
    """One sequence to sample: its place among the logits' rows, and how many tokens it has generated so far."""

    row: int
    sequence: SampledSequence
    generated: int


def sample(logits: Tensor, draws: Sequence[Draw]) -> list[int | Exception]:
    """A token per draw from logits [N, V], which are not changed. Several draws may share a row.

    A row that leaves no token, or whose matcher fails, gets its error; the others are not touched by it.
    """
    values = logits.index_select(0, torch.tensor([d.row for d in draws], device=logits.device)).float()
    for i, d in enumerate(draws):
        if d.sequence.changes_logits:
            d.sequence.adjust(values[i])
    failed = _mask(values, draws)
    for i, d in enumerate(draws):
        if d.sequence.changes_logits:
            d.sequence.ban(values[i], d.generated)
    chosen = _choose(values, draws)
    return [failed.get(i, token) for i, token in enumerate(chosen)]


def _mask(values: Tensor, draws: Sequence[Draw]) -> dict[int, Exception]:
    """Apply the constraints' masks; the matchers that failed, by place."""
    constrained = [(i, d.sequence.matcher) for i, d in enumerate(draws) if d.sequence.matcher is not None]
    failed: dict[int, Exception] = {}
    masks = empty_masks(len(constrained), values.shape[1])
    for row, (i, matcher) in enumerate(constrained):
        try:
            matcher.fill_mask(masks[row])
        except (DslError, RuntimeError, ValueError) as error:
            failed[i] = error
    if constrained:
        apply_masks(values, masks, [i for i, _ in constrained])
    return failed


def _choose(values: Tensor, draws: Sequence[Draw]) -> list[int | Exception]:
    peaks, best = (t.tolist() for t in values.max(dim=-1))
    chosen: list[int | Exception] = []
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
