"""How JSON values are spelled: strings with their escapes, exact number ranges, and the string formats of JSON schema. The formats are
sound for RFC 3339 and for Python's own parsers, and sometimes narrower than the RFC.
"""

from __future__ import annotations

import json
from decimal import Decimal
from functools import lru_cache
from typing import Any

from .grammar import (
    ANY,
    DIGITS,
    EMPTY,
    NOTHING,
    Alt,
    Chars,
    CharSet,
    Expr,
    LiteralText,
    Seq,
    alt,
    chars,
    optional,
    repeat,
    seq,
    text,
)
from .regex import ECMA_AND_PYTHON, search_expr

MAX_INTEGER_DIGITS = 19  # of an integer without bounds: all of int64
MAX_FRACTION_DIGITS = 15  # of a number; a double has no more to say

_CONTROLS = CharSet.of_ranges([(0, 0x1F)])
PLAIN = ANY - _CONTROLS - CharSet.of('"\\')  # what stands in a string as it is
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_HEX = CharSet.of("0123456789abcdefABCDEF")
DIGIT = Chars(DIGITS)
_NONZERO = Chars(DIGITS - CharSet.of("0"))


def _hex_digits(members: str = "") -> Expr:
    return Chars(CharSet.of(members) if members else _HEX)


def _unicode_escape() -> Expr:
    """`\\uXXXX` for one character: outside the surrogates, or a high and a low surrogate together."""
    any_hex = _hex_digits()
    low = seq(text("\\u"), _hex_digits("dD"), _hex_digits("cdefCDEF"), any_hex, any_hex)
    return seq(
        text("u"),
        alt(
            seq(_hex_digits("0123456789abcefABCEF"), any_hex, any_hex, any_hex),
            seq(_hex_digits("dD"), _hex_digits("01234567"), any_hex, any_hex),
            seq(_hex_digits("dD"), _hex_digits("89abAB"), any_hex, any_hex, low),
        ),
    )


PLAIN_CHARACTER = Chars(PLAIN)
_WAYS = (PLAIN_CHARACTER, Seq((LiteralText("\\"), alt(Chars(CharSet.of('"\\/bfnrt')), _unicode_escape()))))
CHARACTER = Alt(_WAYS)  # whole strings are made of this very object, patterns of another (see `gbnf.py`)
_ANY_WRITTEN = Alt(_WAYS)


def written(members: CharSet) -> Expr:
    """One character of the set as it may stand in a JSON string. Characters that need no escape are written plainly."""
    if members == ANY:
        return _ANY_WRITTEN
    escapes = [text(short) for character, short in _SHORT.items() if character in members]
    others = [text(f"\\u{c:04x}") for c in range(0x20) if chr(c) in members and chr(c) not in _SHORT]
    return alt(chars(members & PLAIN), *escapes, *others)


def quoted(content: Expr) -> Expr:
    """A JSON string around this content."""
    return seq(text('"'), content, text('"'))


def string_expr(low: int, high: int | None) -> Expr:
    """Any string of `low` to `high` code points."""
    return quoted(repeat(CHARACTER, low, high))


def value_expr(value: Any, space: Expr) -> Expr:
    """Exactly this JSON value; `space` may stand between the parts of arrays and objects."""
    if isinstance(value, list):
        return _enclosed("[", [value_expr(v, space) for v in value], "]", space)
    if isinstance(value, dict):
        pairs = [seq(value_expr(k, space), space, text(":"), space, value_expr(v, space)) for k, v in value.items()]
        return _enclosed("{", pairs, "}", space)
    return text(json.dumps(value, ensure_ascii=False))


def _enclosed(opening: str, parts: list[Expr], closing: str, space: Expr) -> Expr:
    inner: list[Expr] = []
    for part in parts:
        inner += [*([space, text(","), space] if inner else []), part]
    return seq(text(opening), space, *inner, *([space] if inner else []), text(closing))


@lru_cache(maxsize=1024)
def integer_expr(low: int | None, high: int | None) -> Expr:
    """Integers in [low, high], exactly; a missing bound stands for as many digits as int64 or the other bound needs."""
    if low is None and high is None:
        return alt(text("0"), seq(optional(text("-")), _NONZERO, repeat(DIGIT, 0, MAX_INTEGER_DIGITS - 1)))
    reach = max(10**MAX_INTEGER_DIGITS - 1, 10 * abs(low or 0), 10 * abs(high or 0))
    low, high = -reach if low is None else low, reach if high is None else high
    if low > high:
        return NOTHING
    negative = seq(text("-"), _naturals(max(1, -high), -low)) if low < 0 else NOTHING
    return alt(_naturals(max(0, low), high) if high >= 0 else NOTHING, negative)


def _naturals(low: int, high: int) -> Expr:
    """Whole numbers in [low, high] without leading zeros, low >= 0: one option per number of digits."""
    options: list[Expr] = []
    length = len(str(low))
    while low <= high:
        top = min(high, 10**length - 1)
        options.append(_same_length(str(low), str(top)))
        low, length = 10**length, length + 1
    return alt(*options)


def _same_length(low: str, high: str) -> Expr:
    """Digit strings between two of the same length."""
    if not low:
        return EMPTY
    if low[0] == high[0]:
        return seq(text(low[0]), _same_length(low[1:], high[1:]))
    rest = len(low) - 1
    first, last = int(low[0]), int(high[0])
    options = []
    if low[1:].strip("0"):
        options.append(seq(text(low[0]), _same_length(low[1:], "9" * rest)))
        first += 1
    if high[1:].strip("9"):
        options.append(seq(text(high[0]), _same_length("0" * rest, high[1:])))
        last -= 1
    if first <= last:
        options.append(seq(chars(CharSet.of_ranges([(48 + first, 48 + last)])), repeat(DIGIT, rest, rest)))
    return alt(*options)


def number_expr() -> Expr:
    """Any number whose double is finite: up to 19 digits, a fraction of 15, an exponent of 2."""
    whole = alt(text("0"), seq(_NONZERO, repeat(DIGIT, 0, MAX_INTEGER_DIGITS - 1)))
    exponent = seq(chars(CharSet.of("eE")), optional(chars(CharSet.of("+-"))), repeat(DIGIT, 1, 2))
    return seq(optional(text("-")), whole, _fraction(), optional(exponent))


def _fraction() -> Expr:
    return optional(seq(text("."), repeat(DIGIT, 1, MAX_FRACTION_DIGITS)))


def decimal_range_expr(low: Decimal | None, high: Decimal | None, *, above: bool, below: bool) -> Expr:
    """Decimal numbers without exponent in the range; `above` and `below` leave the bound itself out.

    Near a bound that is left out there are at most 15 digits in all, so that rounding to a double cannot reach it.
    """
    reach = max(Decimal(10**MAX_FRACTION_DIGITS), 10 * abs(low or Decimal(0)), 10 * abs(high or Decimal(0)))
    low, high = (-reach if low is None else low), (reach if high is None else high)
    options: list[Expr] = []
    if high >= 0:
        options.append(_magnitudes(max(low, Decimal(0)), high, above=above and low >= 0, below=below))
    if low < 0:
        options.append(
            seq(text("-"), _magnitudes(max(-high, Decimal(0)), -low, above=below and high <= 0, below=above))
        )
    return alt(*options)


def _magnitudes(low: Decimal, high: Decimal, *, above: bool, below: bool) -> Expr:
    """Decimals in [low, high], low >= 0."""
    first, last = int(low), int(high)
    low_width, high_width = _fraction_width(first, exclusive=above), _fraction_width(last, exclusive=below)
    low_digits, high_digits = _fraction_digits(low, low_width, up=True), _fraction_digits(high, high_width, up=False)
    if low_digits is None:
        first, low_digits, above = first + 1, "", False
    if first > last:
        return NOTHING
    if first == last:
        width = min(low_width, high_width)
        return seq(text(str(first)), _fraction_between(low_digits, high_digits, width, above=above, below=below))
    options = [
        seq(text(str(first)), _fraction_between(low_digits, None, low_width, above=above, below=False)),
        seq(text(str(last)), _fraction_between("", high_digits, high_width, above=False, below=below)),
    ]
    if first + 1 < last:
        options.append(seq(_naturals(first + 1, last - 1), optional(seq(text("."), repeat(DIGIT, 1, high_width)))))
    return alt(*options)


def _fraction_width(whole: int, *, exclusive: bool) -> int:
    """How many fraction digits a number near a bound may have."""
    return max(1, MAX_FRACTION_DIGITS - len(str(whole))) if exclusive else MAX_FRACTION_DIGITS


def _fraction_digits(value: Decimal, width: int, *, up: bool) -> str | None:
    """The fraction digits of a bound, rounded into the range if it has more than `width`; None if that reaches the next whole."""
    fraction = value - int(value)
    scaled = int(fraction.scaleb(width))
    if up and Decimal(scaled) != fraction.scaleb(width):
        scaled += 1
    if scaled >= 10**width:
        return None
    return str(scaled).zfill(width).rstrip("0") if scaled else ""


def _fraction_between(low: str, high: str | None, width: int, *, above: bool, below: bool) -> Expr:
    """The rest of a number after its whole part: nothing, or `.` and up to `width` digits, with the fraction in the range.

    `low` and `high` are fraction digits without trailing zeros; high None means no upper bound.
    """
    nothing = EMPTY if not low and not above and not (below and high == "") else NOTHING
    return alt(nothing, seq(text("."), _digits_between(low, high, width, above=above, below=below)))


def _digits_between(low: str | None, high: str | None, width: int, *, above: bool, below: bool) -> Expr:
    """One to `width` digits d with 0.low <= 0.d <= 0.high; None means that side is already decided."""
    if width == 0:
        return NOTHING
    if low is None and high is None:
        return repeat(DIGIT, 1, width)
    first = int(low[0]) if low else 0
    last = 9 if high is None else int(high[0]) if high else 0
    bounds = ([] if low is None else [first]) + ([] if high is None else [last])
    free = _free_digits(first + (low is not None), last - (high is not None), width)
    edges = [
        _edge(digit, low, high, width, above=above, below=below)
        for digit in sorted(set(bounds))
        if first <= digit <= last
    ]
    return alt(free, *edges)


def _free_digits(first: int, last: int, width: int) -> Expr:
    """A digit strictly inside both bounds, then anything."""
    if first > last:
        return NOTHING
    return seq(chars(CharSet.of_ranges([(48 + first, 48 + last)])), repeat(DIGIT, 0, width - 1))


def _edge(digit: int, low: str | None, high: str | None, width: int, *, above: bool, below: bool) -> Expr:
    """`digit` where it equals the next digit of a bound: the bound's remaining digits still decide."""
    at_low = low is not None and digit == (int(low[0]) if low else 0)
    at_high = high is not None and digit == (int(high[0]) if high else 0)
    rest_low = (low[1:] if low else "") if at_low and low is not None else None
    rest_high = (high[1:] if high else "") if at_high and high is not None else None
    ends = not (at_low and (rest_low or above)) and not (at_high and below and not rest_high)
    more = _digits_between(rest_low, rest_high, width - 1, above=above and at_low, below=below and at_high)
    return seq(text(str(digit)), alt(EMPTY if ends else NOTHING, more))


_LEAP = r"(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|1[26]|[3579][26])00)"
_DATE = (
    r"(?:[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?"
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,4}}"

# Source: RFC 3339, appendix A (duration): units in order, none left out between the first and the last.
_N = "[0-9]{1,6}"
_DATE_PART = f"(?:{_N}Y(?:{_N}M(?:{_N}D)?)?|{_N}M(?:{_N}D)?|{_N}D)"
_TIME_PART = f"T(?:{_N}H(?:{_N}M(?:{_N}S)?)?|{_N}M(?:{_N}S)?|{_N}S)"

_PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": rf"P(?:{_N}W|{_DATE_PART}(?:{_TIME_PART})?|{_TIME_PART})",
    "email": rf"[A-Za-z0-9](?:[A-Za-z0-9_+-]{{0,30}}[A-Za-z0-9])?(?:\.[A-Za-z0-9]{{1,20}}){{0,3}}@(?:{_LABEL}\.){{1,3}}[a-z]{{2,10}}",
    "uuid": r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "ipv6": r"[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){7}",
    "hostname": _HOST,
    "uri": rf"https?://{_HOST}(?::[1-9][0-9]{{0,3}})?(?:/[A-Za-z0-9._~-]{{0,60}}){{0,8}}(?:\?[A-Za-z0-9=&._~-]{{0,120}})?",
}
# Formats that say how a value is to be shown or stored, and restrict no text.
ANNOTATIONS = frozenset({"password", "binary", "byte", "path", "file-path", "directory-path"})


def format_expr(name: str) -> Expr | None:
    """The content of strings of this format (without quotes); None if the format is not known."""
    pattern = _PATTERNS.get(name)
    return None if pattern is None else search_expr(f"^(?:{pattern})$", ECMA_AND_PYTHON, lambda m: chars(m & PLAIN))


def known_formats() -> list[str]:
    """Names of the formats that are enforced."""
    return sorted(_PATTERNS)
