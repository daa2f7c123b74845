"""Sets of Unicode characters as sorted code point ranges. Surrogates are never members: no UTF-8 text holds them."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property

MAX_CODE_POINT = sys.maxunicode
_SURROGATES = (0xD800, 0xDFFF)


@dataclass(frozen=True)
class CharSet:
    """`ranges`: inclusive, sorted, disjoint, not adjacent. Build one with the class methods, which see to that."""

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of_ranges(cls, ranges: Iterable[tuple[int, int]]) -> CharSet:
        """The union of inclusive code point ranges."""
        return cls(_without_surrogates(_merged(sorted(ranges))))

    @classmethod
    def of(cls, characters: str) -> CharSet:
        """Exactly these characters."""
        return cls.of_ranges((ord(c), ord(c)) for c in characters)

    def __contains__(self, character: str) -> bool:
        code = ord(character)
        index = bisect_right(self._lows, code) - 1
        return index >= 0 and code <= self.ranges[index][1]

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __or__(self, other: CharSet) -> CharSet:
        return CharSet.of_ranges(self.ranges + other.ranges)

    def __and__(self, other: CharSet) -> CharSet:
        return ~(~self | ~other)

    def __sub__(self, other: CharSet) -> CharSet:
        return self & ~other

    def __invert__(self) -> CharSet:
        gaps, start = [], 0
        for low, high in self.ranges:
            gaps.append((start, low - 1))
            start = high + 1
        gaps.append((start, MAX_CODE_POINT))
        return CharSet.of_ranges((low, high) for low, high in gaps if low <= high)

    def __len__(self) -> int:
        return sum(high - low + 1 for low, high in self.ranges)

    def character(self, index: int) -> str:
        """The `index`-th member in code point order."""
        for low, high in self.ranges:
            if index <= high - low:
                return chr(low + index)
            index -= high - low + 1
        raise IndexError("character index out of range")

    def touches(self, low: int, high: int) -> bool:
        """Whether any member lies in the inclusive code point range."""
        return any(start <= high and low <= end for start, end in self.ranges)

    @cached_property
    def _lows(self) -> list[int]:
        return [low for low, _ in self.ranges]


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for low, high in ranges:
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged


def _without_surrogates(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    first, last = _SURROGATES
    pieces = ((low, min(high, first - 1)) for low, high in ranges)
    rest = ((max(low, last + 1), high) for low, high in ranges)
    return tuple(sorted({r for r in (*pieces, *rest) if r[0] <= r[1]}))


ANY = CharSet.of_ranges([(0, MAX_CODE_POINT)])
WHITESPACE = CharSet.of(" \t\n\r")  # what JSON calls whitespace
DIGITS = CharSet.of_ranges([(ord("0"), ord("9"))])


@cache
def unicode_class(letter: str) -> CharSet:
    r"""What `\d`, `\w` and `\s` match in a Python `str` pattern. Source: CPython, Modules/_sre/sre.c."""
    member = _UNICODE_CLASSES[letter]
    return CharSet.of_ranges((code, code) for code in range(MAX_CODE_POINT + 1) if member(chr(code)))


_UNICODE_CLASSES: dict[str, Callable[[str], bool]] = {
    "d": str.isdecimal,
    "s": str.isspace,
    "w": lambda c: c.isalnum() or c == "_",
}

ASCII_CLASSES = {
    "d": DIGITS,
    "s": CharSet.of(" \t\n\r\f\v"),
    "w": CharSet.of_ranges([(48, 57), (65, 90), (95, 95), (97, 122)]),
}
