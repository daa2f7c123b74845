"""Attention as levels merged by their log-sum-exps: what many rows share is read once.

Merging two disjoint sets of keys: with w = sigmoid(lse_b - lse_a), out = lerp(out_a, out_b, w), lse = logaddexp(lse_a, lse_b).
Source: FlashInfer (arXiv 2501.01005), section on composable attention states.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from .plan import AttentionPlan, Fresh, Gathered, Slots, Span, Windowed, oldest_visible


class Partial(Protocol):
    """Attention over one set of keys; see `cpu.partial`."""

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
        partial: Partial,
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

    def _gathered(self, batch: Gathered) -> None:
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

    def _prefill(self, fresh: Fresh) -> None:
        tokens = slice(fresh.first, fresh.end)
        out, lse = self._partial(
            self._by_head(self._q[tokens]), self._repeated(self._k[tokens]), self._repeated(self._v[tokens]),
            scale=self._scale, causal=True,
        )  # fmt: skip
        self._store(tokens, out, lse)

    def _prefill_windowed(self, row: Windowed, window: int | None, chunk: int | None) -> None:
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

    def _merge(self, span: Span) -> None:
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
