"""A character grammar as GBNF text, in the shapes whose masks xgrammar computes fast.

Measured on SmolLM2's vocabulary (49,152 tokens, xgrammar 0.2.9): a bounded repeat of anything but one character class costs 65 ms
per mask, the same language as a chain of right-recursive rules 0.02 ms; a positive class over nearly all of Unicode compiles in
1.4 s, its negated form in 9 ms.
"""

from __future__ import annotations

from ...errors import ConstraintError
from .charset import MAX_CODE_POINT, CharSet
from .grammar import Alt, Chars, Expr, Grammar, Ref, Repeat, Seq, Text
from .limits import LIMITS

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
            case Text(text):
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
