"""Attention whose every bit is a function of a token's own query and keys: alone or in any batch, cold or cached, chunked or not.

Keys are cut into blocks of BLOCK by absolute position. Each token (the query heads of one key head) meets each of its blocks
in a product of one fixed shape, and the blocks are merged in ascending order, in float32. Which tokens are computed in one
call, and whether rows share the memory of a block, changes nothing in the arithmetic; so shared blocks are still read once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .cascade import Partial
from .plan import QueryRow, SlotArray, oldest_visible, slots_of

BLOCK = 256


class BlockVisit(NamedTuple):
    """Tokens [n] of the step meet one block each. slots: [BLOCK] for all of them, or [n, BLOCK]; mask: additive float32
    [n, 1, 1, BLOCK], or None if every key is seen.
    """

    tokens: Tensor
    slots: Tensor
    mask: Tensor | None


class _Piece(NamedTuple):
    """The tokens of one row that see a block, all of it or in part."""

    tokens: npt.NDArray[np.int64]
    slots: SlotArray
    hidden: npt.NDArray[np.bool_] | None


def plan_blocks(
    rows: Sequence[QueryRow],
    page_size: int,
    device: torch.device,
    window: int | None = None,
    chunk: int | None = None,
) -> tuple[BlockVisit, ...]:
    """Every visit of a step, each token's in ascending order of its blocks."""
    by_block: dict[int, list[_Piece]] = defaultdict(list)
    first = 0
    for row in rows:
        for block, piece in _pieces(row, first, page_size, window, chunk):
            by_block[block].append(piece)
        first += row.tokens
    return tuple(visit for block in sorted(by_block) for visit in _visits(by_block[block], device))


def attend_blocks(
    q: Tensor, keys: Tensor, values: Tensor, visits: Sequence[BlockVisit], *, scale: float, partial: Partial
) -> tuple[Tensor, Tensor]:
    """Outputs [T, H, E] and log-sum-exps [T, H] (float32) of queries [T, H, D] over pools [N, G, D] and [N, G, E]."""
    tokens, heads, groups = q.shape[0], q.shape[1], keys.shape[1]
    out = torch.zeros(tokens, heads, values.shape[-1], device=q.device)
    lse = torch.full((tokens, heads), -torch.inf, device=q.device)
    for visit in visits:
        n = visit.tokens.shape[0]
        mine = q.index_select(0, visit.tokens).view(n, groups, heads // groups, -1)
        mask = None if visit.mask is None else visit.mask.to(q.dtype)
        part, part_lse = partial(mine, _read(keys, visit), _read(values, visit), scale=scale, mask=mask)
        _merge(out, lse, visit.tokens, part.reshape(n, heads, -1).float(), part_lse.reshape(n, heads))
    return out.to(q.dtype), lse


def _merge(out: Tensor, lse: Tensor, tokens: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """As in `cascade`, in operations whose vector loops and remainders round alike (sigmoid and logaddexp do not)."""
    before = lse.index_select(0, tokens)
    weight = 1 / (1 + torch.exp(before - part_lse))
    out.index_copy_(0, tokens, torch.lerp(out.index_select(0, tokens), part, weight.unsqueeze(-1)))
    both = torch.maximum(before, part_lse) + torch.log1p(torch.exp(-(before - part_lse).abs()))
    lse.index_copy_(0, tokens, both)


def _read(pool: Tensor, visit: BlockVisit) -> Tensor:
    """[n, G, BLOCK, ·]; a block that all tokens share has stride 0 over them."""
    n = visit.tokens.shape[0]
    rows = pool.index_select(0, visit.slots.view(-1)).view(-1, BLOCK, *pool.shape[1:]).transpose(1, 2)
    return rows.expand(n, -1, -1, -1)


def _pieces(
    row: QueryRow, first: int, page_size: int, window: int | None, chunk: int | None
) -> list[tuple[int, _Piece]]:
    """A row's tokens by the blocks they see."""
    position = np.arange(row.start, row.end)
    oldest = oldest_visible(position, window, chunk)
    slots = slots_of(row.pages, 0, row.end, page_size)
    pieces = []
    for block in range(int(oldest[0]) // BLOCK, (row.end - 1) // BLOCK + 1):
        start, end = block * BLOCK, (block + 1) * BLOCK
        whole = (oldest <= start) & (position >= end - 1)
        part = (oldest < end) & (position >= start) & ~whole
        own = slots[start:end]
        own = np.concatenate([own, np.full(BLOCK - len(own), own[-1], dtype=np.int64)])
        if whole.any():
            pieces.append((block, _Piece(first + np.flatnonzero(whole), own, None)))
        if part.any():
            key = np.arange(start, end)
            hidden = (key > position[part, None]) | (key < oldest[part, None])
            pieces.append((block, _Piece(first + np.flatnonzero(part), own, hidden)))
    return pieces


def _visits(pieces: Sequence[_Piece], device: torch.device) -> list[BlockVisit]:
    """Rows that share a block's slots meet it together; single tokens that see blocks in part are stacked."""
    shared: dict[bytes, list[_Piece]] = defaultdict(list)
    stacked: list[_Piece] = []
    visits = []
    for piece in pieces:
        if piece.hidden is None:
            shared[piece.slots.tobytes()].append(piece)
        elif len(piece.tokens) == 1:
            stacked.append(piece)
        else:
            visits.append(_visit([piece], piece.slots, device))
    visits += [_visit(same, same[0].slots, device) for same in shared.values()]
    if stacked:
        visits.append(_visit(stacked, np.stack([piece.slots for piece in stacked]), device))
    return visits


def _visit(pieces: Sequence[_Piece], slots: SlotArray, device: torch.device) -> BlockVisit:
    tokens = torch.from_numpy(np.concatenate([piece.tokens for piece in pieces])).to(device)
    mask = None
    if pieces[0].hidden is not None:
        hidden = torch.from_numpy(np.concatenate([p.hidden for p in pieces if p.hidden is not None])).to(device)
        mask = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, -torch.inf).view(-1, 1, 1, BLOCK)
    return BlockVisit(tokens, torch.from_numpy(slots).to(device), mask)
