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
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

SlotArray: TypeAlias = npt.NDArray[np.int64]
SHORT_TOKENS = 16  # rows up to this long are gathered: one call for many of them costs less than one call each
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


class FullSpan(NamedTuple):
    """Tokens [first, end) of the step see all keys at `slots`."""

    first: int
    end: int
    slots: Slots
    keys: int


class CausalSpan(NamedTuple):
    """Tokens [first, end) see each other causally: the step's own keys of one row, not read back from the pool."""

    first: int
    end: int


@dataclass(slots=True, eq=False)
class GatheredRows:
    """Short rows whose keys are gathered together: `width` tokens each, over `keys` keys each, both padded.

    tokens: [rows * width] places in the step (a slice if consecutive); padding repeats the row's last. real: which of them are
    not padding, and `places`: theirs in the step; None and `tokens` if nothing is padded. slots: [rows * keys]; padding repeats the row's last slot, so that it is always valid
    memory. hidden: bool [rows, width, keys], what a token must not see (later keys and padding, what lies before its window);
    None if nothing.
    """

    tokens: Slots
    real: Tensor | None
    places: Slots
    rows: int
    width: int
    keys: int
    slots: Tensor
    hidden: Tensor | None
    _masks: dict[tuple[torch.dtype, int], Tensor] = field(default_factory=dict)

    def mask(self, dtype: torch.dtype, repeat: int) -> Tensor | None:
        """Additive mask [rows, 1, width * repeat or 1, keys], `repeat` query heads per key head. Made once for all layers."""
        if self.hidden is None:
            return None
        key = (dtype, repeat if self.width > 1 else 1)
        if key not in self._masks:
            hidden = self.hidden.repeat_interleave(key[1], dim=1).unsqueeze(1)
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            self._masks[key] = mask.masked_fill_(hidden, -torch.inf)
        return self._masks[key]


class WindowSpan(NamedTuple):
    """Tokens [first, end) of one row at positions start, start+1, ... see part of the keys at `slots` (`oldest_visible`).

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

    `spans` are merged into what `gathered` and `fresh` began: together these two cover every token exactly once.
    """

    rows: tuple[QueryRow, ...]
    page_size: int
    device: torch.device
    tokens: int
    write_slots: Tensor
    write_tokens: Tensor | None  # which token each write takes; None: token i goes to write i
    gathered: tuple[GatheredRows, ...]
    fresh: tuple[CausalSpan, ...]
    spans: tuple[FullSpan, ...]
    longest: int
    _windows: dict[tuple[int | None, int | None], tuple[tuple[GatheredRows, ...], tuple[WindowSpan, ...]]] = field(
        default_factory=dict
    )

    def first_tokens(self) -> list[int]:
        """Where each row begins in the step, and the end of the last."""
        return _offsets(self.rows)

    def narrows(self, window: int | None, chunk: int | None) -> bool:
        """Whether a layer with this window or chunk hides any key from any row of the step."""
        return (window is not None and window < self.longest) or (chunk is not None and chunk < self.longest)

    def windowed(
        self, window: int | None, chunk: int | None
    ) -> tuple[tuple[GatheredRows, ...], tuple[WindowSpan, ...]]:
        """The same step for a layer that sees only part of the keys, see `oldest_visible`."""
        key = window, chunk
        if key not in self._windows:
            firsts = self.first_tokens()
            begins = [int(oldest_visible(row.start, window, chunk)) for row in self.rows]
            short = _short_rows(self.rows, begins)
            gathered = tuple(
                _gather(self.rows, firsts, members, begins, self.page_size, self.device, window, chunk)
                for members in short
            )
            taken = {i for members in short for i in members}
            long = [i for i in range(len(self.rows)) if i not in taken]
            self._windows[key] = gathered, tuple(self._windowed_row(self.rows[i], firsts[i], begins[i]) for i in long)
        return self._windows[key]

    def _windowed_row(self, row: QueryRow, first: int, begin: int) -> WindowSpan:
        slots = as_slots(slots_of(row.pages, begin, row.end, self.page_size), self.device)
        return WindowSpan(first, first + row.tokens, row.start, begin, slots)


def oldest_visible(position: Any, window: int | None, chunk: int | None) -> Any:
    """The first position that a token at `position` sees: its last `window` keys, itself included, of its own `chunk` of
    positions (chunk c: positions 0..c-1, c..2c-1, ...). Whole numbers, or an array or tensor of them.
    """
    oldest = position * 0
    if window is not None:
        oldest = oldest + (position - window + 1) * (position >= window)
    if chunk is not None:
        begin = position - position % chunk
        oldest = oldest + (begin - oldest) * (begin > oldest)
    return oldest


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
    begins = [row.own_start for row in rows]
    short = _short_rows(rows, begins)
    taken = {i for members in short for i in members}
    long = [i for i in range(len(rows)) if i not in taken]
    return AttentionPlan(
        rows=tuple(rows),
        page_size=page_size,
        device=device,
        tokens=firsts[-1],
        write_slots=_tensor(writes, device),
        write_tokens=None if tokens is None else _tensor(tokens, device),
        gathered=tuple(_gather(rows, firsts, members, begins, page_size, device) for members in short),
        fresh=tuple(CausalSpan(firsts[i], firsts[i + 1]) for i in long),
        spans=_histories(rows, long, firsts, page_size, device) + _levels(rows, shared, firsts, page_size, device),
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
    rows: Sequence[QueryRow], long: Sequence[int], firsts: Sequence[int], page_size: int, device: torch.device
) -> tuple[FullSpan, ...]:
    """Own keys from before the step of rows that are not gathered."""
    return tuple(
        _span(firsts[i], firsts[i + 1], rows[i].pages, rows[i].own_start, rows[i].start, page_size, device)
        for i in long
        if rows[i].own_start < rows[i].start
    )


def _levels(
    rows: Sequence[QueryRow],
    shared: Sequence[SharedKeys],
    firsts: Sequence[int],
    page_size: int,
    device: torch.device,
) -> tuple[FullSpan, ...]:
    return tuple(
        _span(firsts[s.first_row], firsts[s.end_row], rows[s.first_row].pages, s.start, s.end, page_size, device)
        for s in shared
        if s.start < s.end
    )


def _span(
    first: int, end: int, pages: Sequence[int], start: int, stop: int, page_size: int, device: torch.device
) -> FullSpan:
    return FullSpan(first, end, as_slots(slots_of(pages, start, stop, page_size), device), stop - start)


def _short_rows(rows: Sequence[QueryRow], begins: Sequence[int]) -> list[list[int]]:
    """Rows to gather together: one-token rows, and short ones that have company; alike in tokens and keys, so that padding at
    most doubles what is read.
    """
    batches: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, (row, begin) in enumerate(zip(rows, begins, strict=True)):
        if row.tokens <= SHORT_TOKENS:
            batches[(row.tokens - 1).bit_length(), max(row.end - begin, 128).bit_length()].append(index)
    return [members for (width, _), members in batches.items() if width == 0 or len(members) > 1]


def _gather(
    rows: Sequence[QueryRow],
    firsts: Sequence[int],
    members: Sequence[int],
    begins: Sequence[int],
    page_size: int,
    device: torch.device,
    window: int | None = None,
    chunk: int | None = None,
) -> GatheredRows:
    own = [slots_of(rows[i].pages, begins[i], rows[i].end, page_size) for i in members]
    width, keys = max(rows[i].tokens for i in members), max(map(len, own))
    slots = np.stack([np.concatenate([s, np.full(keys - len(s), s[-1])]) for s in own])
    counts = np.array([[rows[i].tokens] for i in members])
    step = np.minimum(np.arange(width), counts - 1)
    query = np.array([[rows[i].start] for i in members]) + step
    key = np.array([[begins[i]] for i in members]) + np.arange(keys)
    hidden = (key[:, None] > query[:, :, None]) | (key[:, None] < oldest_visible(query, window, chunk)[:, :, None])
    tokens = (np.array([[firsts[i]] for i in members]) + step).reshape(-1)
    real = np.flatnonzero(np.arange(width) < counts)
    return GatheredRows(
        tokens=as_slots(tokens, device),
        real=None if len(real) == len(tokens) else _tensor(real, device),
        places=as_slots(tokens[real], device),
        rows=len(members),
        width=width,
        keys=keys,
        slots=_tensor(slots.reshape(-1), device),
        hidden=torch.from_numpy(hidden).to(device) if hidden.any() else None,
    )
