"""One text of what several nodes of a path say: a character whose bytes two calls wrote is one character.

call 1   e4 b8 80 e6 97     text "一\\ufffd"   torn: tail e6 97
call 2   a5 21              text "\\ufffd!"    torn: head a5
path                        "一日!"            whose bytes are decoded as one text
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

_MOST = 3  # bytes of a character that is not whole
_REPLACED = "\ufffd"


class Torn(NamedTuple):
    """The bytes of characters that a text begins or ends in the middle of; it shows U+FFFD for each of `head`, and one for
    `tail`. Of a text that is nothing but `head` no tail is noted.
    """

    head: bytes = b""
    tail: bytes = b""


class Said(Protocol):
    """What a node has added to its path."""

    @property
    def text(self) -> str:
        """Decoded alone."""

    @property
    def torn(self) -> Torn | None:
        """Where it begins or ends inside a character."""


def torn_of(data: bytes | bytearray) -> Torn | None:
    """Where these bytes begin or end inside a character; None if they do neither."""
    size = len(data)
    first = 0
    while first < min(size, _MOST) and 0x80 <= data[first] < 0xC0:
        first += 1
    tail = b"" if first == size else _open_end(data)
    return Torn(bytes(data[:first]), tail) if first or tail else None


class PathText:
    """Grows one text by what each node says, in order.

    half: bytes at the end that may be the first ones of a character; `text` shows one U+FFFD for them.
    Goes on from where another one ended with `PathText(text, half)`.
    """

    __slots__ = ("_head", "_parts", "_whole_head", "half")

    def __init__(self, text: str = "", half: bytes = b"") -> None:
        self._parts = [text] if text else []
        self._head = b""
        self._whole_head = not text  # nothing but `_head` so far
        self.half = half

    def add(self, text: str, torn: Torn | None = None) -> None:
        """More text; `torn`: where it begins or ends inside a character."""
        if not str.__len__(text):  # of a text in a trace, whose own length is a question
            return
        if torn is None:
            self.half, self._whole_head = b"", False
            self._parts.append(text)
            return
        head, is_head = torn.head, len(text) == len(torn.head)
        if self._whole_head:
            self._head += head[: _MOST - len(self._head)]
            self._whole_head = is_head
        if self.half and head:
            self._parts[-1] = self._parts[-1][:-1]
            joined = self.half + head
            text = joined.decode("utf-8", "replace") + text[len(head) :]
            self.half = _open_end(joined) if is_head else torn.tail
        else:
            self.half = torn.tail
        self._parts.append(text)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._parts)

    @property
    def torn(self) -> Torn | None:
        """Where all of it begins or ends inside a character."""
        return Torn(self._head, self.half) if self._head or self.half else None


def _open_end(data: bytes | bytearray) -> bytes:
    """The last bytes, if they can only be the beginning of a character."""
    for size in range(1, min(_MOST, len(data)) + 1):
        lead = data[-size]
        if lead >= 0xC0:
            end = bytes(data[-size:])
            whole = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return end if size < whole and end.decode("utf-8", "replace") == _REPLACED else b""
        if lead < 0x80:
            return b""
    return b""
