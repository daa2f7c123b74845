"""A grammar over characters: what every constraint becomes before any engine sees it, and the limits on what it may cost.

Both engines, the pure-Python matcher and xgrammar (through `gbnf.py`), read this one form, so that a constraint means the
same on the mock and on a model. Expressions are built with `text`, `chars`, `seq`, `alt` and `repeat`, which drop what can
never match (`NOTHING`) and what matches only the empty text (`EMPTY`). A `CharSet` is a set of Unicode characters as sorted code
point ranges; surrogates are never members, because no UTF-8 text holds them. Limits are checked before anything is compiled.
"""

from __future__ import annotations

import json
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any, Literal, TypeAlias

from ...errors import ConstraintError, SpecError
from ...ir.specs import MOST_TOKENS, whole

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


@dataclass(frozen=True, slots=True, eq=False)
class LiteralText:
    """Exactly this text (not empty)."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Chars:
    """One character of a set (not empty)."""

    chars: CharSet


@dataclass(frozen=True, slots=True, eq=False)
class Seq:
    """All parts, one after the other."""

    parts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Alt:
    """Any one of the options."""

    options: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """`item` from `low` to `high` times; `high` None means without end. The item never matches the empty text."""

    item: Expr
    low: int
    high: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Ref:
    """The rule of this name. A rule must not begin with itself (no left recursion)."""

    name: str


Expr: TypeAlias = LiteralText | Chars | Seq | Alt | Repeat | Ref

EMPTY = Seq(())
NOTHING = Alt(())


@dataclass(frozen=True, slots=True, eq=False)
class Grammar:
    """A root expression and the rules it refers to."""

    root: Expr
    rules: Mapping[str, Expr]


def text(value: str) -> Expr:
    """This text; `EMPTY` for the empty one."""
    return LiteralText(value) if value else EMPTY


def chars(members: CharSet) -> Expr:
    """One character of a set; `NOTHING` if the set is empty."""
    return Chars(members) if members else NOTHING


def seq(*parts: Expr) -> Expr:
    """All parts in order. Nested sequences are flattened and neighbouring texts joined."""
    flat: list[Expr] = []
    for part in parts:
        for piece in part.parts if isinstance(part, Seq) else (part,):
            if piece is NOTHING:
                return NOTHING
            if flat and isinstance(piece, LiteralText) and isinstance(last := flat[-1], LiteralText):
                flat[-1] = LiteralText(last.text + piece.text)
            else:
                flat.append(piece)
    if not flat:
        return EMPTY
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def alt(*options: Expr) -> Expr:
    """Any one of the options; those that can never match are dropped and nested alternatives flattened."""
    flat: list[Expr] = []
    for option in options:
        for piece in option.options if isinstance(option, Alt) else (option,):
            if piece not in flat:
                flat.append(piece)
    return flat[0] if len(flat) == 1 else Alt(tuple(flat)) if flat else NOTHING


def optional(item: Expr) -> Expr:
    """The item or nothing at all."""
    return alt(EMPTY, item)


def repeat(item: Expr, low: int, high: int | None) -> Expr:
    """`item` from `low` to `high` times. An item that may be empty is repeated without its empty case."""
    if high is not None and low > high:
        return NOTHING
    if high == 0 or item is EMPTY:
        return EMPTY
    if item is NOTHING:
        return NOTHING if low else EMPTY
    if nullable(item):
        item, low = non_empty(item), 0
        if item is NOTHING:
            return EMPTY
    if (low, high) == (1, 1):
        return item
    return Repeat(item, low, high)


def nullable(expr: Expr) -> bool:
    """Whether the expression matches the empty text. Rules never do (see `Ref`), so they are not looked into."""
    match expr:
        case Seq(parts):
            return all(map(nullable, parts))
        case Alt(options):
            return any(map(nullable, options))
        case Repeat(_, low, _):
            return low == 0
        case _:
            return False


def non_empty(expr: Expr) -> Expr:
    """What the expression matches apart from the empty text."""
    if not nullable(expr):
        return expr
    match expr:
        case Repeat(item, _, high):
            return repeat(item, 1, high)
        case Alt(options):
            return alt(*map(non_empty, options))
        case Seq(parts):
            return alt(*(seq(non_empty(part), *parts[i + 1 :]) for i, part in enumerate(parts)))
        case _:
            return expr


def one_of(texts: Iterable[str], rules: dict[str, Expr], name: str) -> Expr:
    """Exactly one of the texts, as a trie whose branching points become rules `name.0`, `name.1`, ... of `rules`.

    A text that is the beginning of another stays reachable, whatever their order.
    """
    return _trie(sorted(set(texts)), rules, name)


def _trie(texts: list[str], rules: dict[str, Expr], name: str) -> Expr:
    root: Expr = NOTHING
    work: list[tuple[str | None, list[str]]] = [(None, texts)]
    while work:
        rule, group = work.pop()
        options: list[Expr] = [EMPTY] if group and not group[0] else []
        for branch in _by_first_character(group):
            prefix = _shared_prefix(branch[0], branch[-1])
            if len(branch) == 1:
                options.append(text(prefix))
                continue
            child = f"{name}.{len(rules)}"
            rules[child] = NOTHING
            work.append((child, [t[len(prefix) :] for t in branch]))
            options.append(seq(text(prefix), Ref(child)))
        if rule is None:
            root = alt(*options)
        else:
            rules[rule] = alt(*options)
    return root


def _by_first_character(texts: list[str]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for item in texts:
        if item:
            groups.setdefault(item[0], []).append(item)
    return list(groups.values())


def _shared_prefix(first: str, last: str) -> str:
    length = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:length]


@dataclass(slots=True)
class Limits:
    """Sizes above which a constraint is refused, in this process. `set_limits` changes them.

    source_bytes: of the canonical text. depth: levels of schemas in schemas, and of regex groups. json_depth: brackets in the
    source. repeat_product: nested bounded repeats multiplied. references: followed in one schema, repeats counted. chain: of
    one bounded repeat that becomes a rule per repetition.
    """

    source_bytes: int = 256 * 1024
    depth: int = 64
    json_depth: int = 256
    enum_values: int = 10_000
    properties: int = 512
    repeat_product: int = 100_000
    references: int = 20_000
    chain: int = 512


LIMITS = Limits()
_HIGHEST = {
    "depth": 64,
    "json_depth": 256,
}  # the compiler follows these by recursion; all others cost only time and memory
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def set_limits(**sizes: int) -> None:
    """Raise (or lower) limits for the whole process, best before the first constraint: one that was compiled before stays as it is.

        set_limits(properties=2000, enum_values=50_000)

    Larger constraints take longer to compile, and their masks longer to compute: for every row of a batch.

    Raises:
        SpecError: no such limit (nothing is changed), or a size that is no whole number from 1 on.
    """
    known = {field.name for field in fields(Limits)}
    for name in sizes:
        if name not in known:
            raise SpecError(f"there is no limit {name!r}", hint=f"limits: {', '.join(sorted(known))}")
    checked = {name: whole(name, size, 1, _HIGHEST.get(name, MOST_TOKENS)) for name, size in sizes.items()}
    for name, size in checked.items():
        setattr(LIMITS, name, size)


def check_size(source: str) -> None:
    """Raise ConstraintError if the source itself is too large."""
    size = len(source.encode("utf-8", "surrogatepass"))
    if size > LIMITS.source_bytes:
        raise ConstraintError(
            f"the constraint has {size} bytes, more than {LIMITS.source_bytes}",
            hint="split it over several calls, or raise the limit: set_limits(source_bytes=...)",
        )


def load_json(source: str, what: str) -> Any:
    """Parse JSON that may come from anyone.

    Raises:
        ConstraintError: malformed (with line and column), nested too deep, a key twice in one object, or a lone surrogate.
    """
    _check_brackets(source, what)
    try:
        value = json.loads(source, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ConstraintError(
            f"{what} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}", hint="give valid JSON"
        ) from error
    except ValueError as error:
        raise ConstraintError(f"{what} is not JSON: {error}", hint="give valid JSON") from error
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ConstraintError(
            f"{what} holds a lone surrogate, which no UTF-8 text can hold", hint="remove it"
        ) from error
    return value


def _check_brackets(source: str, what: str) -> None:
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", _STRING.sub("", source)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    if deepest > LIMITS.json_depth:
        raise ConstraintError(
            f"{what} is nested {deepest} levels deep, more than {LIMITS.json_depth}",
            hint="flatten it, or name parts in $defs",
        )


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key!r} stands twice in one object")
        result[key] = value
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


@dataclass(frozen=True, slots=True)
class SchemaWeakness:
    """One keyword that the grammar does not say exactly.

    path: JSON pointer of the schema that holds it. severity `narrows`: every output is still valid, some valid values are never
    written. `weakens`: outputs may break the keyword (refused unless weakening was asked for).
    """

    path: str
    keyword: str
    severity: Literal["narrows", "weakens"]
    detail: str

    def __str__(self) -> str:
        return f"{self.keyword!r} at {self.path or '#'} {self.detail}"


Schema: TypeAlias = bool | dict[str, Any]


def refused(path: str, keyword: str, why: str, hint: str = "") -> ConstraintError:
    """The error for one keyword of a JSON schema at one JSON path."""
    return ConstraintError(
        f"schema keyword {keyword!r} at {path or '#'}: {why}",
        hint=hint or "leave it out, and check the value after reading it",
    )
