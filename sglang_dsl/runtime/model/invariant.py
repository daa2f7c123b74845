"""The batch-invariant way to compute a step: every bit of a token's logits depends on that token's context alone.

The packed tokens are put through the model in tiles of exactly TILE, so each operation sees one shape, whatever the batch; a
short tile is filled up with tokens that nobody reads. Rows stand parents first, so a tile only reads keys of tiles before it
and its own. Attention goes over fixed blocks of keys (kernels/attention/blocks.py). What remains, that a row of a matrix
product could depend on its place in the tile, is checked bit by bit when the model is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...kernels.attention import AttentionPlan, BlockVisit, LayerAttention, QueryRow, attend_invariant, plan_visits
from .adapter import BoundAttention, Decoder
from .pools import KvPool

TILE = 32


class _Tile(NamedTuple):
    """Tokens [first, end) of a step, as rows of their own, and what they store: token `sources[i]` at `slots[i]`."""

    first: int
    end: int
    rows: tuple[QueryRow, ...]
    sources: Tensor
    slots: Tensor


class TiledModel:
    """A decoder and its pool; computes the same steps as `PackedModel`, slower and always alike."""

    def __init__(self, decoder: Decoder, pool: KvPool) -> None:
        self._decoder = decoder
        self._pool = pool

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        plan: AttentionPlan,
        wanted: Tensor,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """See `StepModel.forward`."""
        self._pool.count_writes(plan.write_slots.shape[0])
        logits = [self._forward_tile(tile, token_ids, positions, wanted, lengths) for tile in _tiles(plan)]
        found = [part for part in logits if part is not None]
        if not found:
            return torch.empty(0, 0, device=wanted.device)
        return torch.cat(found)[torch.argsort(torch.argsort(wanted))]

    def _forward_tile(
        self, tile: _Tile, token_ids: Tensor, positions: Tensor, wanted: Tensor, lengths: Tensor | None
    ) -> Tensor | None:
        """Logits of the wanted tokens in this tile, in ascending order; None if there are none."""
        mine = slice(tile.first, tile.end)
        own = None if lengths is None else _filled(lengths[mine], int(lengths[tile.first]))
        here = wanted[(wanted >= tile.first) & (wanted < tile.end)].sort().values - tile.first
        ids, places = _filled(token_ids[mine]), _filled(positions[mine])
        if not here.numel():
            self._decoder.compute(ids, places, own, self._attention(tile), here)
            return None
        return self._decoder.compute(ids, places, own, self._attention(tile), None)[
            here
        ]  # the head sees a whole tile too

    def _attention(self, tile: _Tile) -> BoundAttention:
        visits: dict[tuple[int | None, int | None], tuple[BlockVisit, ...]] = {}

        def attend(index: int, q: Tensor, k: Tensor, v: Tensor, layer: LayerAttention) -> Tensor:
            keys, values = self._pool.keys[index], self._pool.values[index]
            keys.index_copy_(0, tile.slots, k.index_select(0, tile.sources))
            values.index_copy_(0, tile.slots, v.index_select(0, tile.sources))
            seen = layer.window, layer.chunk
            if seen not in visits:
                visits[seen] = plan_visits(tile.rows, self._pool.page_size, q.device, *seen)
            tokens = tile.end - tile.first
            out = q.new_zeros(TILE, q.shape[1], values.shape[-1])
            out[:tokens] = attend_invariant(q[:tokens], keys, values, visits[seen], layer)
            return out

        return attend


def _filled(values: Tensor, filling: int = 0) -> Tensor:
    """[TILE], with `filling` behind."""
    return torch.nn.functional.pad(values, (0, TILE - values.shape[0]), value=filling)


def _tiles(plan: AttentionPlan) -> list[_Tile]:
    sources = plan.write_tokens if plan.write_tokens is not None else torch.arange(plan.tokens, device=plan.device)
    tiles = []
    for first in range(0, plan.tokens, TILE):
        end = min(first + TILE, plan.tokens)
        mine = torch.nonzero((sources >= first) & (sources < end)).squeeze(1)
        rows = _cut(plan.rows, plan.first_tokens(), first, end)
        tiles.append(_Tile(first, end, rows, sources[mine] - first, plan.write_slots[mine]))
    return tiles


def _cut(rows: Sequence[QueryRow], firsts: Sequence[int], first: int, end: int) -> tuple[QueryRow, ...]:
    """The parts of rows that lie in packed tokens [first, end)."""
    cut = []
    for row, place in zip(rows, firsts, strict=False):
        begin, stop = max(first - place, 0), min(end - place, row.tokens)
        if begin < stop:
            cut.append(QueryRow(stop - begin, row.start + begin, row.pages))
    return tuple(cut)
