"""What one step attends to, as index tensors: built once per step on the host, read by every layer.

Shape letters: T tokens of the step, H query heads, G key/value heads, D and E head sizes of keys and values, S page size,
N slots of a pool. A pool is one tensor [N, G, D] per layer for keys and one [N, G, E] for values; token slot = page * S + offset.

    keys of a row:   |== level 0 ==|== level 1 ==|== own history ==|## new tokens ##|
                     0             a             own_start         start           end
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

SlotArray: TypeAlias = npt.NDArray[np.int64]
Slots: TypeAlias = slice | Tensor  # a slice where the slots happen to be consecutive: read without a gather


class QueryRow(NamedTuple):
    """`tokens` new positions from `start` on; `pages` cover [0, start + tokens); own keys begin at `own_start`."""

    tokens: int
    start: int
    pages: Sequence[int]
    own_start: int = 0

    @property
    def end(self) -> int:
        """Position after the last."""
        return self.start + self.tokens


class SharedKeys(NamedTuple):
    """Rows [first_row, end_row) see all keys at positions [start, end), found through the pages of row `first_row`."""

    first_row: int
    end_row: int
    start: int
    end: int


class ExtraWrite(NamedTuple):
    """The keys and values of `position` in row `row` are also stored at slot `offset` of `page`."""

    row: int
    position: int
    page: int
    offset: int


class Span(NamedTuple):
    """Tokens [first, end) of the step see all keys at `slots`."""

    first: int
    end: int
    slots: Slots
    keys: int


class Fresh(NamedTuple):
    """Tokens [first, end) see each other causally: the step's own keys of one row, not read back from the pool."""

    first: int
    end: int


@dataclass(slots=True, eq=False)
class Singles:
    """One-token rows whose keys are gathered together, padded to `keys` each.

    tokens: their places in the step, a slice if consecutive. slots: [rows * keys]; padding repeats the row's last slot,
    so that it is always valid memory. lengths: [rows], or None if nothing is padded.
    """

    tokens: Slots
    rows: int
    keys: int
    slots: Tensor
    lengths: Tensor | None
    _masks: dict[torch.dtype, Tensor] = field(default_factory=dict)

    def mask(self, dtype: torch.dtype) -> Tensor | None:
        """Additive mask [rows, 1, 1, keys] over the padding; None if there is none. Made once, read by every layer."""
        if self.lengths is None:
            return None
        if dtype not in self._masks:
            padding = torch.arange(self.keys, device=self.slots.device) >= self.lengths.unsqueeze(1)
            mask = torch.zeros(self.rows, self.keys, dtype=dtype, device=self.slots.device)
            self._masks[dtype] = mask.masked_fill_(padding, -torch.inf).view(self.rows, 1, 1, self.keys)
        return self._masks[dtype]


class Windowed(NamedTuple):
    """Tokens [first, end) of one row at positions start, start+1, ... see the last `window` of the keys at `slots`.

    `first_key` is the position of the first slot.
    """

    first: int
    end: int
    start: int
    first_key: int
    slots: Slots


@dataclass(slots=True, eq=False)
class AttentionPlan:
    """The index tensors of one step. Made by `plan_step`; owned by the step.

    `spans` are merged into what `singles` and `fresh` began: together these two cover every token exactly once.
    """

    rows: tuple[QueryRow, ...]
    page_size: int
    device: torch.device
    tokens: int
    write_slots: Tensor
    write_tokens: Tensor | None  # which token each write takes; None: token i goes to write i
    singles: tuple[Singles, ...]
    fresh: tuple[Fresh, ...]
    spans: tuple[Span, ...]
    longest: int
    _windows: dict[int, tuple[tuple[Singles, ...], tuple[Windowed, ...]]] = field(default_factory=dict)

    def first_tokens(self) -> list[int]:
        """Where each row begins in the step, and the end of the last."""
        return _offsets(self.rows)

    def windowed(self, window: int) -> tuple[tuple[Singles, ...], tuple[Windowed, ...]]:
        """The same step for a layer that sees only the last `window` keys (the token itself included)."""
        if window not in self._windows:
            firsts = self.first_tokens()
            cut = {i: max(0, r.end - window) for i, r in enumerate(self.rows) if r.tokens == 1}
            long = tuple(
                self._windowed_row(row, firsts[i], window) for i, row in enumerate(self.rows) if row.tokens > 1
            )
            self._windows[window] = (_batch_singles(self.rows, firsts, cut, self.page_size, self.device), long)
        return self._windows[window]

    def _windowed_row(self, row: QueryRow, first: int, window: int) -> Windowed:
        begin = max(0, row.start - window + 1)
        slots = as_slots(slots_of(row.pages, begin, row.end, self.page_size), self.device)
        return Windowed(first, first + row.tokens, row.start, begin, slots)


def plan_step(
    rows: Sequence[QueryRow],
    shared: Sequence[SharedKeys] = (),
    extra_writes: Sequence[ExtraWrite] = (),
    *,
    page_size: int,
    device: torch.device,
) -> AttentionPlan:
    """Index tensors for a step. Raises ValueError if a row is empty or its pages do not reach its end."""
    _check(rows, page_size)
    firsts = _offsets(rows)
    writes, tokens = _writes(rows, extra_writes, firsts, page_size)
    singles = {i: row.own_start for i, row in enumerate(rows) if row.tokens == 1}
    return AttentionPlan(
        rows=tuple(rows),
        page_size=page_size,
        device=device,
        tokens=firsts[-1],
        write_slots=_tensor(writes, device),
        write_tokens=None if tokens is None else _tensor(tokens, device),
        singles=_batch_singles(rows, firsts, singles, page_size, device),
        fresh=tuple(Fresh(firsts[i], firsts[i + 1]) for i, row in enumerate(rows) if row.tokens > 1),
        spans=_histories(rows, firsts, page_size, device) + _levels(rows, shared, firsts, page_size, device),
        longest=max(row.end for row in rows),
    )


def slots_of(pages: Sequence[int], start: int, end: int, page_size: int) -> SlotArray:
    """Slots of positions [start, end)."""
    first = start // page_size
    table = np.asarray(pages[first : -(-end // page_size)], dtype=np.int64)
    if page_size == 1:
        return table
    slots: SlotArray = (table[:, None] * page_size + np.arange(page_size)).reshape(-1)
    return slots[start - first * page_size : end - first * page_size]


def as_slots(slots: SlotArray, device: torch.device) -> Slots:
    """A slice where the slots are consecutive, else a tensor."""
    if len(slots) and slots[-1] - slots[0] == len(slots) - 1 and bool(np.all(np.diff(slots) == 1)):
        return slice(int(slots[0]), int(slots[-1]) + 1)
    return _tensor(slots, device)


def _check(rows: Sequence[QueryRow], page_size: int) -> None:
    if not rows:
        raise ValueError("a step needs at least one row")
    for index, row in enumerate(rows):
        if row.tokens < 1 or not 0 <= row.own_start <= row.start:
            raise ValueError(
                f"row {index} is malformed: {row.tokens} tokens from {row.start}, own from {row.own_start}"
            )
        if len(row.pages) * page_size < row.end:
            raise ValueError(
                f"row {index} ends at {row.end}, its {len(row.pages)} pages of {page_size} do not reach it"
            )


def _offsets(rows: Sequence[QueryRow]) -> list[int]:
    offsets = [0]
    for row in rows:
        offsets.append(offsets[-1] + row.tokens)
    return offsets


def _tensor(values: SlotArray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)


def _writes(
    rows: Sequence[QueryRow], extra: Sequence[ExtraWrite], firsts: Sequence[int], page_size: int
) -> tuple[SlotArray, SlotArray | None]:
    slots = np.concatenate([slots_of(row.pages, row.start, row.end, page_size) for row in rows])
    if not extra:
        return slots, None
    more = np.array([w.page * page_size + w.offset for w in extra], dtype=np.int64)
    sources = np.array([firsts[w.row] + w.position - rows[w.row].start for w in extra], dtype=np.int64)
    return np.concatenate([slots, more]), np.concatenate([np.arange(firsts[-1], dtype=np.int64), sources])


def _histories(
    rows: Sequence[QueryRow], firsts: Sequence[int], page_size: int, device: torch.device
) -> tuple[Span, ...]:
    """Own keys from before the step of rows with several tokens."""
    return tuple(
        _span(firsts[i], firsts[i + 1], row.pages, row.own_start, row.start, page_size, device)
        for i, row in enumerate(rows)
        if row.tokens > 1 and row.own_start < row.start
    )


def _levels(
    rows: Sequence[QueryRow],
    shared: Sequence[SharedKeys],
    firsts: Sequence[int],
    page_size: int,
    device: torch.device,
) -> tuple[Span, ...]:
    return tuple(
        _span(firsts[s.first_row], firsts[s.end_row], rows[s.first_row].pages, s.start, s.end, page_size, device)
        for s in shared
        if s.start < s.end
    )


def _span(
    first: int, end: int, pages: Sequence[int], start: int, stop: int, page_size: int, device: torch.device
) -> Span:
    return Span(first, end, as_slots(slots_of(pages, start, stop, page_size), device), stop - start)


def _batch_singles(
    rows: Sequence[QueryRow],
    firsts: Sequence[int],
    begins: dict[int, int],
    page_size: int,
    device: torch.device,
) -> tuple[Singles, ...]:
    """One-token rows in batches of similar length, so that padding at most doubles what is read."""
    batches: dict[int, list[int]] = defaultdict(list)
    for index, begin in begins.items():
        batches[max(rows[index].end - begin, 128).bit_length()].append(index)
    return tuple(
        _singles([(rows[i], firsts[i], begins[i]) for i in members], page_size, device) for members in batches.values()
    )


def _singles(members: Sequence[tuple[QueryRow, int, int]], page_size: int, device: torch.device) -> Singles:
    lengths = np.array([row.end - begin for row, _, begin in members], dtype=np.int64)
    longest = int(lengths.max())
    slots = np.empty((len(members), longest), dtype=np.int64)
    for i, (row, _, begin) in enumerate(members):
        own = slots_of(row.pages, begin, row.end, page_size)
        slots[i, : len(own)] = own
        slots[i, len(own) :] = own[-1]
    return Singles(
        tokens=as_slots(np.array([first for _, first, _ in members], dtype=np.int64), device),
        rows=len(members),
        keys=longest,
        slots=_tensor(slots.reshape(-1), device),
        lengths=None if bool((lengths == longest).all()) else _tensor(lengths, device),
    )
