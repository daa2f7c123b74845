"""The pure-Python matcher: where one text stands in its constraint. Tokens are bytes, the grammar is characters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from .automaton import Automaton, State, next_set

MAX_FORCED = 4096  # characters; a longer forced text is given in parts
_REPLACEMENT_LENGTHS = ((0xC2, 0xDF, 2), (0xE0, 0xEF, 3), (0xF0, 0xF4, 4))  # lead byte ranges of UTF-8 (RFC 3629)
# Where a lead byte narrows the second byte: no overlong forms, no surrogates, nothing above U+10FFFF (RFC 3629 section 4).
_SECOND_BYTE = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}


class PythonMatcher:
    """Implements `Matcher`. Owned by one sequence; forks are independent and cost nothing.

    A token may end inside a UTF-8 character if some character that goes on like this is allowed.
    """

    __slots__ = ("_automaton", "_pending", "_state", "_token_bytes")

    def __init__(self, automaton: Automaton, token_bytes: Callable[[int], bytes]) -> None:
        self._automaton = automaton
        self._token_bytes = token_bytes
        self._state = automaton.start
        self._pending = b""

    def accept(self, token_id: int) -> bool:
        """Step over a token. False (state unchanged) if the constraint does not allow it here, or if it stands for no bytes."""
        return self.accept_bytes(self._token_bytes(token_id))

    def accept_bytes(self, piece: bytes) -> bool:
        """Step over a token's bytes. False (state unchanged) if they are not allowed here, or if there are none."""
        after = self._after(piece) if piece else None
        if after is None:
            return False
        self._state, self._pending = after
        return True

    def accept_text(self, text: str) -> bool:
        """Step over whole characters. False (state unchanged) if they are not allowed here."""
        if self._pending:
            return not text
        state = self._walk(text)
        if state is None:
            return False
        self._state = state
        return True

    def allows(self, piece: bytes) -> bool:
        """Whether `accept_bytes(piece)` would succeed."""
        return bool(piece) and self._after(piece) is not None

    def fork(self) -> Self:
        """An independent copy at the same place."""
        copy = type(self)(self._automaton, self._token_bytes)
        copy._state, copy._pending = self._state, self._pending
        return copy

    @property
    def place(self) -> tuple[State, bytes]:
        """Where it stands: the automaton's state, and the bytes of a character that has begun."""
        return self._state, self._pending

    @property
    def may_end(self) -> bool:
        """Whether the output may stop here."""
        return self._state.accepting and not self._pending

    @property
    def must_end(self) -> bool:
        """Whether nothing but the end may follow."""
        return self._state.accepting and not self._state.tops and not self._pending

    def forced_text(self) -> str:
        """The text that has to follow, up to the next place where there is a choice; "" inside a character."""
        forced: list[str] = []
        state: State | None = self._state
        while state and not self._pending and not state.accepting and len(forced) < MAX_FORCED:
            character = _only_character(state)
            if character is None:
                break
            forced.append(character)
            state = self._automaton.step(state, character)
        return "".join(forced)

    def _walk(self, text: str) -> State | None:
        state: State | None = self._state
        for character in text:
            if state is None:
                return None
            state = self._automaton.step(state, character)
        return state

    def _after(self, piece: bytes) -> tuple[State, bytes] | None:
        data = self._pending + piece
        whole = len(data) - _open_bytes(data)
        try:
            state = self._walk(data[:whole].decode())
        except UnicodeDecodeError:
            return None
        tail = data[whole:]
        if state is None or (tail and not _completable(state, tail)):
            return None
        return state, tail


def _only_character(state: State) -> str | None:
    """The one character that may come next, if there is just one."""
    sets = [next_set(top) for top in state.tops]
    if any(len(s) > 1 for s in sets):
        return None
    characters = {s.character(0) for s in sets}
    return characters.pop() if len(characters) == 1 else None


def _open_bytes(data: bytes) -> int:
    """How many bytes at the end begin a character without ending it."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        return next((back for low, high, length in _REPLACEMENT_LENGTHS if low <= byte <= high and back < length), 0)
    return 0


def _completable(state: State, tail: bytes) -> bool:
    """Whether some allowed character begins with these bytes."""
    length = next(length for low, high, length in _REPLACEMENT_LENGTHS if low <= tail[0] <= high)
    second_low, second_high = _SECOND_BYTE.get(tail[0], (0x80, 0xBF))
    if len(tail) > 1 and not second_low <= tail[1] <= second_high:
        return False
    low = tail if len(tail) > 1 else tail + bytes([second_low])
    high = tail if len(tail) > 1 else tail + bytes([second_high])
    first = ord((low + b"\x80" * (length - len(low))).decode())
    last = ord((high + b"\xbf" * (length - len(high))).decode())
    return any(next_set(top).touches(first, last) for top in state.tops)
