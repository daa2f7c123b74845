"""A character grammar as GBNF text, in the shapes whose masks xgrammar computes fast.

Measured on SmolLM2's vocabulary (49,152 tokens, xgrammar 0.2.9): a bounded repeat of anything but one character class costs 65 ms
per mask, the same language as a chain of right-recursive rules 0.02 ms; a positive class over nearly all of Unicode compiles in
1.4 s, its negated form in 9 ms.

`relaxed` keeps length bounds of JSON strings out of the grammar. A mask engine pays for every place it has to tell apart: a string
of up to 160 characters with escapes has 160 of them (1.2 s to compile). Where no token can both open a string and fill it, one place
is enough: the grammar lets the string go on for ever, and the masks are cut (`sample/grammar.py`) by the number of characters that
are left, which the pure-Python automaton knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ...errors import ConstraintError
from .automaton import AutomatonState, ParseStack
from .grammar import (
    LIMITS,
    MAX_CODE_POINT,
    Alt,
    Chars,
    CharSet,
    Expr,
    Grammar,
    LiteralText,
    Ref,
    Repeat,
    Seq,
    alt,
    repeat,
    seq,
)
from .json_text import CHARACTER, PLAIN_CHARACTER

_LONG_GROUP = 80  # characters from which a group becomes a rule of its own, so that chains do not repeat it
_SURROGATES = r"\ud800-\udfff"  # a negated class would let their bytes through


def to_ebnf(grammar: Grammar) -> str:
    """GBNF text with start rule `root`, accepting exactly the grammar's language.

    Raises:
        ConstraintError: it counts too far for masks to be fast.
    """
    return _Printer(grammar).print()


class _Printer:
    """Numbers rules and chains as it meets them. One use."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._lines: list[str] = []
        self._names: dict[str, str] = {}
        self._chains: dict[tuple[int, int, int | None], str] = {}
        self._groups: dict[str, str] = {}
        self._items: dict[int, int] = {}
        self._pending: list[str] = []

    def print(self) -> str:
        root = self._expr(self._grammar.root)
        self._lines.append(f"root ::= {root}")
        while self._pending:
            name = self._pending.pop()
            self._lines.append(f"{self._names[name]} ::= {self._expr(self._grammar.rules[name])}")
        return "\n".join(reversed(self._lines)) + "\n"

    def _expr(self, expr: Expr) -> str:
        match expr:
            case LiteralText(text):
                return '"' + "".join(map(_quoted, text)) + '"'
            case Chars(chars):
                return _class(chars)
            case Seq(parts):
                return " ".join(map(self._part, parts)) if parts else '""'
            case Alt(options):
                return " | ".join(map(self._expr, options))
            case Repeat(item, low, high):
                return self._repeat(item, low, high)
            case Ref(name):
                return self._rule(name)

    def _part(self, expr: Expr) -> str:
        return self._group(self._expr(expr)) if isinstance(expr, Alt) else self._expr(expr)

    def _group(self, body: str) -> str:
        if len(body) < _LONG_GROUP:
            return f"({body})"
        if body not in self._groups:
            self._groups[body] = f"g{len(self._groups)}"
            self._lines.append(f"{self._groups[body]} ::= {body}")
        return self._groups[body]

    def _rule(self, name: str) -> str:
        if name not in self._names:
            self._names[name] = f"r{len(self._names)}"
            self._pending.append(name)
        return self._names[name]

    def _repeat(self, item: Expr, low: int, high: int | None) -> str:
        times = low if high is None else high
        if times > LIMITS.chain and isinstance(item, Alt):
            raise ConstraintError(
                f"something with alternatives (such as a character that may be escaped) is counted up to {times} times,"
                f" more than {LIMITS.chain}: masks would take a tenth of a second each",
                hint="use a smaller bound or none; of two strings that are alternatives, leave one without a bound",
            )
        if isinstance(item, Chars) or times > LIMITS.chain:
            return self._group(self._expr(item)) + _bounds(low, high)
        return self._chain(item, low, high)

    def _chain(self, item: Expr, low: int, high: int | None) -> str:
        """The rule for `item{low,high}`: each rule says how often the item may still come."""
        first = self._chain_name(item, low, high)
        while (id(item), low, high) not in self._chains:
            name = self._chain_name(item, low, high)
            self._chains[id(item), low, high] = name
            rest_low, rest_high = max(low - 1, 0), None if high is None else high - 1
            rest = "" if rest_high == 0 else " " + self._chain_name(item, rest_low, rest_high)
            options = item.options if isinstance(item, Alt) else (item,)
            alternatives = [self._part(option) + rest for option in options]
            self._lines.append(f"{name} ::= " + " | ".join(alternatives if low else ['""', *alternatives]))
            if rest_high == 0:
                break
            low, high = rest_low, rest_high
        return first

    def _chain_name(self, item: Expr, low: int, high: int | None) -> str:
        number = self._items.setdefault(id(item), len(self._items))
        return f"c{number}_{low}_{'' if high is None else high}"


def _bounds(low: int, high: int | None) -> str:
    if high is None:
        return "*" if low == 0 else "+" if low == 1 else f"{{{low},}}"
    return f"{{{low}}}" if low == high else f"{{{low},{high}}}"


def _class(chars: CharSet) -> str:
    """The class in its shorter form."""
    if chars.ranges[-1][1] == MAX_CODE_POINT:
        return "[^" + "".join(map(_range, (~chars).ranges)) + _SURROGATES + "]"
    return "[" + "".join(map(_range, chars.ranges)) + "]"


def _range(bounds: tuple[int, int]) -> str:
    low, high = bounds
    return _escaped(low) if low == high else f"{_escaped(low)}-{_escaped(high)}"


def _escaped(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _quoted(character: str) -> str:
    return character if " " <= character <= "~" and character not in '"\\' else _escaped(ord(character))


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


def string_place(state: AutomatonState) -> StringPlace | None:
    """The string the automaton is inside of. There is at most one where bounds were left out (`relaxed` sees to that)."""
    plain = any(top.expr is PLAIN_CHARACTER for top in state.tops)
    for top in state.tops:
        frame = _string_frame(top)
        if frame is not None:  # a frame below a plain character counts what follows that character
            return StringPlace(None if frame.high is None else frame.high + plain, not plain)
    return None


def only_a_quote_fits(state: AutomatonState) -> bool:
    """Whether the next character can only be `"`, as at the end of a string that is full."""
    tops = state.tops
    return not state.accepting and all(isinstance(t.expr, LiteralText) and t.expr.text[t.at] == _QUOTE for t in tops)


def _string_frame(top: ParseStack) -> ParseStack | None:
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
        case LiteralText(text):
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
            isinstance(part, LiteralText)
            and part.text == _QUOTE
            and i + 1 < len(parts)
            and _is_bounded(parts[i + 1], reach)
        )
        met = _Opening(met.quote or opening.quote, met.bounded or opening.bounded or string)
        if not opening.empty:
            return met
    return met._replace(empty=True)
