"""A grammar over characters: what every constraint becomes before any engine sees it.

Both engines, the pure-Python matcher and xgrammar (through `ebnf.py`), read this one form, so that a constraint means the
same on the mock and on a model. Expressions are built with `text`, `chars`, `seq`, `alt` and `repeat`, which drop what can
never match (`NOTHING`) and what matches only the empty text (`EMPTY`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from .charset import CharSet


@dataclass(frozen=True, slots=True, eq=False)
class Text:
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


Expr: TypeAlias = Text | Chars | Seq | Alt | Repeat | Ref

EMPTY = Seq(())
NOTHING = Alt(())


@dataclass(frozen=True, slots=True, eq=False)
class Grammar:
    """A root expression and the rules it refers to."""

    root: Expr
    rules: Mapping[str, Expr]


def text(value: str) -> Expr:
    """This text; `EMPTY` for the empty one."""
    return Text(value) if value else EMPTY


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
            if flat and isinstance(piece, Text) and isinstance(last := flat[-1], Text):
                flat[-1] = Text(last.text + piece.text)
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
