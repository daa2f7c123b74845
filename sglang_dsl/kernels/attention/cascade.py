"""Attention as levels merged by their log-sum-exps: what many rows share is read once.

Merging two disjoint sets of keys: with w = sigmoid(lse_b - lse_a), out = lerp(out_a, out_b, w), lse = logaddexp(lse_a, lse_b).
Source: FlashInfer (arXiv 2501.01005), section on composable attention states.

`attend_blocks` is the batch-invariant form: every bit of its result is a function of a token's own query and keys, whether the
token is computed alone or in any batch, cold or cached, chunked or not. Keys are cut into blocks of BLOCK by absolute position.
Each token (the query heads of one key head) meets each of its blocks in a product of one fixed shape, and the blocks are merged in
ascending order, in float32. Shared blocks are still read once.

A `PartialAttention` computes one level: `partial_cpu` with PyTorch's CPU flash kernel, which also returns the log-sum-exp, and
`partial_portable` with plain tensor operations on any device, for any head sizes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .plan import (
    AttentionPlan,
    CausalSpan,
    FullSpan,
    GatheredRows,
    QueryRow,
    SlotArray,
    Slots,
    WindowSpan,
    oldest_visible,
    slots_of,
)


class PartialAttention(Protocol):
    """Attention over one set of keys; as `partial_cpu` and `partial_portable` compute it."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = False, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Outputs and natural log-sum-exps."""


class Cascade:
    """One layer of one step. q [T, H, D]; k, v: the step's own keys and values [T, G, D]; keys, values: the layer's pools."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keys: Tensor,
        values: Tensor,
        plan: AttentionPlan,
        scale: float,
        partial: PartialAttention,
    ) -> None:
        self._q, self._k, self._v = q, k, v
        self._keys, self._values = keys, values
        self._plan = plan
        self._scale = scale
        self._partial = partial
        self._groups = k.shape[1]
        self._repeat = q.shape[1] // k.shape[1]
        self._out = q.new_empty(q.shape[0], q.shape[1], v.shape[-1])
        self._lse = torch.empty(q.shape[:2], dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)

    def run(self, window: int | None = None, chunk: int | None = None) -> tuple[Tensor, Tensor]:
        """Outputs [T, H, E] and log-sum-exps [T, H]. A window or chunk that no row exceeds changes and costs nothing."""
        if self._plan.narrows(window, chunk):
            self._run_windowed(window, chunk)
        else:
            self._run_levels()
        return self._out, self._lse

    def _run_levels(self) -> None:
        for batch in self._plan.gathered:
            self._gathered(batch)
        for fresh in self._plan.fresh:
            self._prefill(fresh)
        for span in self._plan.spans:
            self._merge(span)

    def _run_windowed(self, window: int | None, chunk: int | None) -> None:
        gathered, long = self._plan.windowed(window, chunk)
        for batch in gathered:
            self._gathered(batch)
        for row in long:
            self._prefill_windowed(row, window, chunk)

    def _gathered(self, batch: GatheredRows) -> None:
        """Short rows: a row's tokens and the query heads of a key head are the rows of one product."""
        shape = (batch.rows, batch.keys, self._groups, -1)
        k = self._keys.index_select(0, batch.slots).view(shape).transpose(1, 2)
        v = self._values.index_select(0, batch.slots).view(shape).transpose(1, 2)
        q = self._q[batch.tokens].view(batch.rows, batch.width, self._groups, self._repeat, -1).transpose(1, 2)
        q = q.reshape(batch.rows, self._groups, batch.width * self._repeat, -1)
        out, lse = self._partial(q, k, v, scale=self._scale, mask=batch.mask(q.dtype, self._repeat))
        split = (batch.rows, self._groups, batch.width, self._repeat, -1)
        out = out.view(split).transpose(1, 2).reshape(-1, *self._out.shape[1:])
        lse = lse.view(split[:-1]).transpose(1, 2).reshape(-1, self._lse.shape[1])
        if batch.real is not None:
            out, lse = out.index_select(0, batch.real), lse.index_select(0, batch.real)
        self._out[batch.places], self._lse[batch.places] = out, lse

    def _prefill(self, fresh: CausalSpan) -> None:
        tokens = slice(fresh.first, fresh.end)
        out, lse = self._partial(
            self._by_head(self._q[tokens]), self._repeated(self._k[tokens]), self._repeated(self._v[tokens]),
            scale=self._scale, causal=True,
        )  # fmt: skip
        self._store(tokens, out, lse)

    def _prefill_windowed(self, row: WindowSpan, window: int | None, chunk: int | None) -> None:
        tokens = slice(row.first, row.end)
        k, v = _read(self._keys, row.slots), _read(self._values, row.slots)
        query = torch.arange(row.start, row.start + row.end - row.first, device=k.device).unsqueeze(1)
        key = torch.arange(row.first_key, row.first_key + k.shape[0], device=k.device)
        hidden = (key > query) | (key < oldest_visible(query, window, chunk))
        mask = torch.zeros(hidden.shape, dtype=self._q.dtype, device=k.device).masked_fill_(hidden, -torch.inf)
        out, lse = self._partial(
            self._by_head(self._q[tokens]), self._repeated(k), self._repeated(v), scale=self._scale, mask=mask
        )
        self._store(tokens, out, lse)

    def _merge(self, span: FullSpan) -> None:
        """Keys all of [first, end) see: tokens and query heads of a key head are the rows of one product."""
        tokens = span.end - span.first
        q = self._q[span.first : span.end].view(tokens, self._groups, self._repeat, -1).transpose(0, 1)
        folded = q.reshape(1, self._groups, tokens * self._repeat, -1)
        k = _read(self._keys, span.slots).transpose(0, 1).unsqueeze(0)
        v = _read(self._values, span.slots).transpose(0, 1).unsqueeze(0)
        out, lse = self._partial(folded, k, v, scale=self._scale)
        out = out.view(self._groups, tokens, self._repeat, -1).transpose(0, 1).reshape(tokens, self._out.shape[1], -1)
        lse = lse.view(self._groups, tokens, self._repeat).transpose(0, 1).reshape(tokens, -1)
        mine, mine_lse = self._out[span.first : span.end], self._lse[span.first : span.end]
        mine.lerp_(out, torch.sigmoid(lse - mine_lse).unsqueeze(-1).to(mine.dtype))
        torch.logaddexp(mine_lse, lse, out=mine_lse)

    def _by_head(self, q: Tensor) -> Tensor:
        """[t, H, D] as [G, H / G, t, D]."""
        return q.view(q.shape[0], self._groups, self._repeat, -1).permute(1, 2, 0, 3)

    def _repeated(self, k: Tensor) -> Tensor:
        """[L, G, D] as [G, H / G, L, D], the repeated heads with stride 0."""
        return k.transpose(0, 1).unsqueeze(1).expand(-1, self._repeat, -1, -1)

    def _store(self, tokens: slice, out: Tensor, lse: Tensor) -> None:
        self._out[tokens] = out.permute(2, 0, 1, 3).reshape(-1, *self._out.shape[1:])
        self._lse[tokens] = lse.permute(2, 0, 1).reshape(-1, self._lse.shape[1])


def _read(pool: Tensor, slots: Slots) -> Tensor:
    return pool[slots] if isinstance(slots, slice) else pool.index_select(0, slots)


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
    q: Tensor, keys: Tensor, values: Tensor, visits: Sequence[BlockVisit], *, scale: float, partial: PartialAttention
) -> tuple[Tensor, Tensor]:
    """Outputs [T, H, E] and log-sum-exps [T, H] (float32) of queries [T, H, D] over pools [N, G, D] and [N, G, E]."""
    tokens, heads, groups = q.shape[0], q.shape[1], keys.shape[1]
    out = torch.zeros(tokens, heads, values.shape[-1], device=q.device)
    lse = torch.full((tokens, heads), -torch.inf, device=q.device)
    for visit in visits:
        n = visit.tokens.shape[0]
        mine = q.index_select(0, visit.tokens).view(n, groups, heads // groups, -1)
        mask = None if visit.mask is None else visit.mask.to(q.dtype)
        part, part_lse = partial(mine, _read_blocks(keys, visit), _read_blocks(values, visit), scale=scale, mask=mask)
        _merge(out, lse, visit.tokens, part.reshape(n, heads, -1).float(), part_lse.reshape(n, heads))
    return out.to(q.dtype), lse


def _merge(out: Tensor, lse: Tensor, tokens: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """As in `cascade`, in operations whose vector loops and remainders round alike (sigmoid and logaddexp do not)."""
    before = lse.index_select(0, tokens)
    weight = 1 / (1 + torch.exp(before - part_lse))
    out.index_copy_(0, tokens, torch.lerp(out.index_select(0, tokens), part, weight.unsqueeze(-1)))
    both = torch.maximum(before, part_lse) + torch.log1p(torch.exp(-(before - part_lse).abs()))
    lse.index_copy_(0, tokens, both)


def _read_blocks(pool: Tensor, visit: BlockVisit) -> Tensor:
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


def partial_portable(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = False, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As `partial_cpu`. Scores and softmax are float32 (float64 for float64 inputs), sums in the inputs' type."""
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = torch.matmul(q, k.transpose(-1, -2)).to(wide) * scale
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores.masked_fill_(future, -torch.inf)
    if mask is not None:
        scores += mask
    lse = scores.logsumexp(dim=-1)
    return torch.matmul((scores - lse.unsqueeze(-1)).exp().to(v.dtype), v), lse


def partial_cpu(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = False, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Softmax-weighted values and natural log-sum-exp: [N, h, t, D] and [N, h, t].

    k and v are [N, h, L, D] (any strides with a dense last dimension; a repeated head may have stride 0). causal: token i
    sees keys 0..i, so t == L. mask is added to the scores; every query has to keep one visible key.
    """
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=mask, scale=scale
    )
    return out, lse


def supports(q: Tensor, v: Tensor) -> bool:
    """The kernel wants equal head sizes of keys and values, on the CPU."""
    return q.device.type == "cpu" and q.shape[-1] == v.shape[-1]
