"""The tensors behind the pages: keys and values of every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ...kernels.attention import slots_of


class LayerShape(NamedTuple):
    """Key/value heads of a layer and the sizes of a key and a value."""

    heads: int
    key_size: int
    value_size: int

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes one token's key and value take."""
        return self.heads * (self.key_size + self.value_size) * dtype.itemsize


class Copy(NamedTuple):
    """The first `tokens` slots of page `source` go to page `target`."""

    source: int
    target: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCounters:
    """Sizes, and what was moved since the pool was made."""

    num_pages: int
    page_size: int
    bytes_per_token: int
    total_bytes: int
    written_tokens: int
    copied_tokens: int


class KvPool:
    """One tensor [num_pages * page_size, heads, size] for keys and one for values, per attention layer (keyed by its index).

    Memory is reserved at once but touched page by page as it is first written.
    """

    def __init__(
        self,
        shapes: dict[int, LayerShape],
        num_pages: int,
        page_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        slots = num_pages * page_size
        self.keys = {i: torch.empty(slots, s.heads, s.key_size, dtype=dtype, device=device) for i, s in shapes.items()}
        self.values = {
            i: torch.empty(slots, s.heads, s.value_size, dtype=dtype, device=device) for i, s in shapes.items()
        }
        self.num_pages = num_pages
        self.page_size = page_size
        self.bytes_per_token = sum(s.bytes_per_token(dtype) for s in shapes.values())
        self._device = device
        self._written = 0
        self._copied = 0

    def count_writes(self, tokens: int) -> None:
        """A step stores this many token slots per layer."""
        self._written += tokens

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy page heads in every layer. Targets are distinct and no target is a source."""
        if not copies:
            return
        source = self._slots([(c.source, c.tokens) for c in copies])
        target = self._slots([(c.target, c.tokens) for c in copies])
        for pool in (*self.keys.values(), *self.values.values()):
            pool.index_copy_(0, target, pool.index_select(0, source))
        self._copied += source.shape[0]

    def counters(self) -> PoolCounters:
        """A snapshot."""
        return PoolCounters(
            num_pages=self.num_pages,
            page_size=self.page_size,
            bytes_per_token=self.bytes_per_token,
            total_bytes=self.num_pages * self.page_size * self.bytes_per_token,
            written_tokens=self._written,
            copied_tokens=self._copied,
        )

    def _slots(self, heads_of_pages: Sequence[tuple[int, int]]) -> Tensor:
        parts = [torch.from_numpy(slots_of([page], 0, tokens, self.page_size)) for page, tokens in heads_of_pages]
        return torch.cat(parts).to(self._device)
