"""Cutting masks where a JSON string is about to be full (see `runtime/constrain/relax.py` for why)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..constrain.automaton import Automaton
from ..constrain.matcher import PythonMatcher
from ..constrain.relax import only_a_quote_fits, string_place

_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_GOES_ON = frozenset(
    bytes([b]) for b in b'"\\/bfnrtu0123456789abcdefABCDEF'
)  # first bytes of what follows an open escape
_TAIL_BYTES = 12  # the longest escape: two surrogates
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB]..\\", re.DOTALL)
_OPEN_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{0,4}(?:\\(?:u[0-9a-fA-F]{0,3})?)?)?$")


class TokenTable:
    """The bytes of every token, and how far each reaches inside a JSON string. Shared by all constraints of a model.

    reach: characters from which on a string cannot be opened and filled by one token.
    """

    def __init__(self, table: Sequence[bytes]) -> None:
        self.table = table
        self.reach = max((len(piece) - piece.index(_QUOTE) for piece in table if _QUOTE in piece), default=0) + 1
        self.opening_quote = self._mask(torch.tensor([piece.startswith(b'"') for piece in table]))
        self._counts = {b"": self._count(b""), b"\\": self._count(b"\\")}  # others are rare: counted when first met
        self._within: dict[tuple[bytes, int], Tensor] = {}

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token; b"" for a control token or an id outside the table."""
        return self.table[token_id] if 0 <= token_id < len(self.table) else b""

    def within(self, characters: int, escape: bytes = b"") -> Tensor:
        """int32 [ceil(V / 32)]: tokens that begin at most this many characters of a string, after an `escape` that is open."""
        if escape not in self._counts:
            self._counts[escape] = self._count(escape)
        longest = int(self._counts[escape].max())
        key = (escape, min(characters, longest))
        if key not in self._within:
            self._within[key] = self._mask(self._counts[escape] <= characters)
        return self._within[key]

    def mask_of(self, token_ids: Iterable[int]) -> Tensor:
        """int32 [ceil(V / 32)] with exactly these tokens allowed."""
        chosen = torch.zeros(len(self.table), dtype=torch.bool)
        chosen[list(token_ids)] = True
        return self._mask(chosen)

    def _count(self, escape: bytes) -> Tensor:
        """Per token, the characters of a string it begins after `escape`, up to its first quote."""
        if not escape:
            return torch.tensor([_characters(piece) for piece in self.table], dtype=torch.int32)
        counts, before = torch.zeros(len(self.table), dtype=torch.int32), _characters(escape)
        for i, piece in enumerate(self.table):
            if piece[:1] in _GOES_ON:  # the grammar forbids all others
                counts[i] = _characters(escape + piece) - before
        return counts

    def _mask(self, chosen: Tensor) -> Tensor:
        bits = torch.zeros(-(-len(self.table) // 32) * 32, dtype=torch.bool)
        bits[: len(chosen)] = chosen
        return torch.from_numpy(np.packbits(bits.numpy(), bitorder="little").view(np.int32))


class Trail(NamedTuple):
    """Where a text stands with all its bounds: the exact matcher, the last bytes, and the trail before the last token."""

    exact: PythonMatcher
    tail: bytes
    before: Trail | None


class LengthBounds:
    """The bounds of one constraint that its token-mask grammar leaves out. Shared by all its matchers."""

    def __init__(self, automaton: Automaton, tokens: TokenTable) -> None:
        self._automaton = automaton
        self._tokens = tokens

    def start(self) -> Trail:
        """The trail of the empty text."""
        return Trail(PythonMatcher(self._automaton, self._tokens.token_bytes), b"", None)

    def step(self, trail: Trail, token_id: int) -> Trail | None:
        """The trail after one more token; None if the bounds do not allow it."""
        exact = trail.exact.fork()
        if not exact.accept(token_id):
            return None
        return Trail(exact, (trail.tail + self._tokens.token_bytes(token_id))[-_TAIL_BYTES:], trail)

    def cut(self, row: Tensor, trail: Trail) -> None:
        """Take from a mask row what the bounds forbid at the end of the trail. Stop tokens are left as they are."""
        state, begun = trail.exact.place
        place = string_place(state)
        if place is None:
            if only_a_quote_fits(state):
                row &= self._tokens.opening_quote
        elif place.left is not None:
            escape = _open_escape(trail.tail) if place.in_escape else b""
            row &= self._tokens.within(place.left - bool(begun), escape)


def _open_escape(tail: bytes) -> bytes:
    """The escape a text ends inside of, with hex digits that decide nothing written as 0, so that few kinds remain."""
    found = _OPEN_ESCAPE.search(tail)
    escape = found.group().lower() if found else b""
    kept = 4 if escape.startswith(b"\\ud") else 2  # `\ud8` to `\udb` announce a second half
    return escape[:kept] + re.sub(rb"[0-9a-f]", b"0", escape[kept:])


def _characters(piece: bytes) -> int:
    """Characters of a JSON string that the bytes begin, up to the first quote. Bytes that continue a character count 0."""
    count, at = 0, 0
    while at < len(piece) and piece[at] != _QUOTE:
        if piece[at] == _BACKSLASH:
            count += 1
            at += _escape_length(piece, at)
        else:
            count += piece[at] & 0xC0 != 0x80
            at += 1
    return count


def _escape_length(piece: bytes, at: int) -> int:
    if piece[at + 1 : at + 2] != b"u":
        return 2
    return 12 if _HIGH_SURROGATE.match(piece, at) else 6
