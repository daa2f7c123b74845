"""Length bounds of JSON strings kept outside the token-mask grammar.

A mask engine pays for every place it has to tell apart: a string of up to 160 characters with escapes has 160 of them (1.2 s to
compile on 49,152 tokens). Where no token can both open a string and fill it, one place is enough: the grammar lets the string
go on for ever, and the masks are cut by the characters that are left, which the pure-Python automaton knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .automaton import Stack, State
from .grammar import Alt, Chars, Expr, Grammar, Ref, Repeat, Seq, Text, alt, repeat, seq
from .json_text import CHARACTER, PLAIN_CHARACTER

_ESCAPE_FRAMES = 8  # an escape sequence is never deeper than this above its string
_QUOTE = '"'


class StringPlace(NamedTuple):
    """Inside a JSON string. left: characters it may still get (None: no bound), not counting an escape that has begun."""

    left: int | None
    in_escape: bool


def relaxed(grammar: Grammar, reach: int) -> Grammar:
    """The grammar with bounds of `reach` characters or more left out; the same object if there are none or if it would not be safe.

    It is not safe where a bounded string and another string are alternatives: whether a text still is the one or the other
    depends on the bound.
    """
    rules = {name: _unbounded(rule, reach) for name, rule in grammar.rules.items()}
    root = _unbounded(grammar.root, reach)
    changed = root is not grammar.root or any(rules[name] is not rule for name, rule in grammar.rules.items())
    if not changed or _competing(grammar, reach):
        return grammar
    return Grammar(root, rules)


def string_place(state: State) -> StringPlace | None:
    """The string the automaton is inside of. There is at most one where bounds were left out (`relaxed` sees to that)."""
    plain = any(top.expr is PLAIN_CHARACTER for top in state.tops)
    for top in state.tops:
        frame = _string_frame(top)
        if frame is not None:  # a frame below a plain character counts what follows that character
            return StringPlace(None if frame.high is None else frame.high + plain, not plain)
    return None


def only_a_quote_fits(state: State) -> bool:
    """Whether the next character can only be `"`, as at the end of a string that is full."""
    tops = state.tops
    return not state.accepting and all(isinstance(t.expr, Text) and t.expr.text[t.at] == _QUOTE for t in tops)


def _string_frame(top: Stack) -> Stack | None:
    frame = top.rest
    for _ in range(_ESCAPE_FRAMES):
        if frame is None:
            return None
        if isinstance(frame.expr, Repeat) and frame.expr.item is CHARACTER:
            return frame
        frame = frame.rest
    return None


def _is_bounded(expr: Expr, reach: int) -> bool:
    return isinstance(expr, Repeat) and expr.item is CHARACTER and expr.high is not None and expr.high >= reach


def _unbounded(expr: Expr, reach: int) -> Expr:
    match expr:
        case Repeat(item, low, high):
            if _is_bounded(expr, reach):
                return repeat(item, low, None)
            inner = _unbounded(item, reach)
            return expr if inner is item else repeat(inner, low, high)
        case Seq(parts):
            inner_parts = [_unbounded(part, reach) for part in parts]
            return expr if _same(inner_parts, parts) else seq(*inner_parts)
        case Alt(options):
            inner_options = [_unbounded(option, reach) for option in options]
            return expr if _same(inner_options, options) else alt(*inner_options)
        case _:
            return expr


def _same(new: list[Expr], old: tuple[Expr, ...]) -> bool:
    return all(a is b for a, b in zip(new, old, strict=True))


class _Opening(NamedTuple):
    """Whether an expression may begin with a quote, with a string whose bound is left out, or match nothing."""

    quote: bool = False
    bounded: bool = False
    empty: bool = False


def _competing(grammar: Grammar, reach: int) -> bool:
    """Whether some alternative offers a bounded string beside another beginning with a quote."""
    openings = dict.fromkeys(grammar.rules, _Opening())
    order = list(grammar.rules)
    changed = True
    while changed:
        changed = False
        for name in order:
            opening = _opening(grammar.rules[name], openings, reach)
            if opening != openings[name]:
                openings[name], changed = opening, True
        order.reverse()
    return any(_competes(expr, openings, reach) for expr in (grammar.root, *grammar.rules.values()))


def _competes(expr: Expr, openings: Mapping[str, _Opening], reach: int) -> bool:
    match expr:
        case Alt(options):
            quoting = [o for option in options if (o := _opening(option, openings, reach)).quote]
            rivals = len(quoting) > 1 and any(o.bounded for o in quoting)
            return rivals or any(_competes(option, openings, reach) for option in options)
        case Seq(parts):
            return any(_competes(part, openings, reach) for part in parts)
        case Repeat(item):
            return _competes(item, openings, reach)
        case _:
            return False


def _opening(expr: Expr, rules: Mapping[str, _Opening], reach: int) -> _Opening:
    match expr:
        case Text(text):
            return _Opening(quote=text[0] == _QUOTE)
        case Chars(chars):
            return _Opening(quote=_QUOTE in chars)
        case Ref(name):
            return rules[name]
        case Alt(options):
            return _either([_opening(option, rules, reach) for option in options])
        case Repeat(item, low, _):
            return _opening(item, rules, reach)._replace(empty=low == 0)
        case Seq(parts):
            return _first_of(parts, rules, reach)


def _either(openings: list[_Opening]) -> _Opening:
    return _Opening(*(any(values) for values in zip(*openings, strict=True))) if openings else _Opening()


def _first_of(parts: tuple[Expr, ...], rules: Mapping[str, _Opening], reach: int) -> _Opening:
    met = _Opening()
    for i, part in enumerate(parts):
        opening = _opening(part, rules, reach)
        string = (
            isinstance(part, Text) and part.text == _QUOTE and i + 1 < len(parts) and _is_bounded(parts[i + 1], reach)
        )
        met = _Opening(met.quote or opening.quote, met.bounded or opening.bounded or string)
        if not opening.empty:
            return met
    return met._replace(empty=True)
