"""Tags: how a value that does not exist yet reads as text.

    U+FDD0 chunk U+FDD1 chunk U+FDD1 ... nonce ... U+FDD2 number U+FDD3

The delimiters are noncharacters, which are in no text that a user writes. The chunks between them are a canary: letters
of both cases, quotes, backslashes, blanks, line ends, markup, slashes, composed letters. Whatever escapes, folds, wraps, splits,
normalises or cuts a text damages it, so a tag that is found intact was only moved.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import NamedTuple

BEGIN, BETWEEN, NUMBER, END = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
_ZERO = 0xFDE0  # digits of the number are U+FDE0 .. U+FDEF
_CHUNKS = (
    "aZ",
    " q",
    "  ",
    "\"'",
    "\\n",
    "<&>",
    "//",
    "/./",
    "\n",
    "\t",
    "{}",
    "%s",
    "$x",
    "0",
    "e\u0301",
    "\ufb01",
    "ß",
    "J1",
)
_LETTERS = "bcdfghjkmnpqrtvwxyz"
_DELIMITERS = re.compile("[\ufdd0-\ufdef]")
_PIECES = re.compile("[\ufdd0-\ufdef](?:.*[\ufdd0-\ufdef])?", re.DOTALL)
_ESCAPED = re.compile(r"\\u[fF][dD][dDeE][0-9a-fA-F](?:.*\\u[fF][dD][dDeE][0-9a-fA-F])?", re.DOTALL)
_ANY = re.compile(f"{BEGIN}.*?{NUMBER}[\ufde0-\ufdef]+{END}", re.DOTALL)


class Found(NamedTuple):
    """A text taken apart: `parts` are plain texts and numbers of tags in order; `damage` says what is wrong, or is ""."""

    parts: tuple[str | int, ...]
    damage: str = ""


class Tags:
    """The tags of one trace. `length`: letters of the nonce; two traces of different lengths tell what depends on it."""

    __slots__ = ("_body", "_first", "_intact", "_nonce")

    def __init__(self, length: int = 8) -> None:
        letters = [_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(length)]  # no use of the body's `random`
        self._nonce = "".join(c.upper() if i % 2 else c for i, c in enumerate(letters))
        self._body = BEGIN + BETWEEN.join((*_CHUNKS[:9], self._nonce, *_CHUNKS[9:])) + NUMBER
        self._intact = re.compile(re.escape(self._body) + f"([\ufde0-\ufdef]+){END}")
        self._first = int.from_bytes(os.urandom(2))  # so that two traces differ in every tag

    def tag(self, number: int) -> str:
        """The text that stands for value `number`."""
        digits = "".join(chr(_ZERO + int(d, 16)) for d in f"{number + self._first:06x}")
        return f"{self._body}{digits}{END}"

    def find(self, text: str) -> Found:
        """The tags in `text`, and whether anything in between is a piece of one."""
        if text.isascii() and not self._is_damaged(text):
            return Found((text,) if text else ())
        parts: list[str | int] = []
        for index, part in enumerate(self._intact.split(text)):
            if index % 2:
                parts.append(_number(part) - self._first)
            elif part:
                if self._is_damaged(part):
                    return Found((), _what(part))
                parts.append(part)
        return Found(tuple(parts))

    def _is_damaged(self, part: str) -> bool:
        if not part.isascii() and _DELIMITERS.search(part):
            return True
        folded = part.casefold()
        nonce = self._nonce.casefold()
        return nonce in folded or nonce[::-1] in folded


def without_tags(text: str, name: Callable[[str], str]) -> str:
    """The text with names for tags (`name` is given an intact one), and nothing for what is left of damaged ones."""
    shown = _ANY.sub(lambda tag: name(tag[0]), text)
    return _ESCAPED.sub("…", _PIECES.sub("…", shown))


def holds_tag(text: str) -> bool:
    """Whether `text` holds a tag of any trace."""
    return not text.isascii() and _ANY.search(text) is not None


def _number(digits: str) -> int:
    return int("".join(f"{ord(d) - _ZERO:x}" for d in digits), 16)


def _what(part: str) -> str:
    return (
        "a value of another trace" if _ANY.search(part) else "a value that was changed after it became part of a text"
    )
