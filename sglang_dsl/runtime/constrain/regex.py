"""Regular expressions, parsed by Python's own parser, as grammars.

A `regex` constraint means `re.fullmatch`; a JSON schema's `pattern` means `re.search` on the value. What a grammar cannot say (looking
around, back references, word boundaries, flags, anchors in the middle) is refused with its position, never ignored.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ...errors import ConstraintError
from .grammar import ANY, ASCII_CLASSES, LIMITS, Chars, CharSet, Expr, Grammar, alt, chars, repeat, seq, unicode_class

parser = import_module("re._parser")  # Python's own, so that a pattern means here what it means there; it has no types
sre = import_module("re._constants")

_STARTS = (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING)
_ENDS = (sre.AT_END, sre.AT_END_STRING)
_NAMES = {
    sre.ASSERT: "looking around `(?=`, `(?<=`",
    sre.ASSERT_NOT: "looking around `(?!`, `(?<!`",
    sre.GROUPREF: "a back reference",
    sre.GROUPREF_EXISTS: "a conditional group",
    sre.ATOMIC_GROUP: "an atomic group `(?>`",
    sre.POSSESSIVE_REPEAT: "a possessive repeat",
}
_CATEGORIES = {
    sre.CATEGORY_DIGIT: ("d", False),
    sre.CATEGORY_NOT_DIGIT: ("d", True),
    sre.CATEGORY_SPACE: ("s", False),
    sre.CATEGORY_NOT_SPACE: ("s", True),
    sre.CATEGORY_WORD: ("w", False),
    sre.CATEGORY_NOT_WORD: ("w", True),
}


@dataclass(frozen=True, slots=True)
class Dialect:
    r"""How classes are read. `positive` and `negative` give the members of `\d`, `\w`, `\s` where they are asked for and where they are
    excluded; they differ where two dialects have to be satisfied at once. `dot` is what `.` matches.
    """

    positive: Callable[[str], CharSet]
    negative: Callable[[str], CharSet]
    dot: CharSet


PYTHON = Dialect(unicode_class, unicode_class, ANY - CharSet.of("\n"))
# Schemas are read by Python (Unicode classes) and by ECMAScript (ASCII classes, more line ends): what both agree on.
ECMA_AND_PYTHON = Dialect(ASCII_CLASSES.__getitem__, unicode_class, ANY - CharSet.of("\n\r\u2028\u2029"))


def regex_grammar(source: str) -> Grammar:
    """The texts that `re.fullmatch(source, ...)` matches.

    Raises:
        ConstraintError: malformed, unsupported or too large, with the position.
    """
    tree = _parse(source)
    builder = _Builder(source, PYTHON, Chars)
    return Grammar(alt(*(seq(*builder.anchored(branch)[0]) for branch in _branches(tree))), {})


def search_expr(source: str, dialect: Dialect, character: Callable[[CharSet], Expr]) -> Expr:
    """The texts in which `re.search(source, ...)` finds something; each character of a set is written as `character(set)`.

    Raises:
        ConstraintError: malformed, unsupported or too large, with the position.
    """
    builder = _Builder(source, dialect, character)
    anything = repeat(character(ANY), 0, None)
    options = []
    for branch in _branches(_parse(source)):
        parts, starts, ends = builder.anchored(branch)
        options.append(seq(*([] if starts else [anything]), *parts, *([] if ends else [anything])))
    return alt(*options)


def literal(text: str) -> str:
    """A regex that matches just this text."""
    return re.escape(text)


def _parse(source: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = parser.parse(source)
    except re.error as error:
        at = f" at position {error.pos}" if error.pos is not None else ""
        raise ConstraintError(f"the regex is malformed: {error.msg}{at}", hint="test it with `re.compile`") from error
    except (RecursionError, OverflowError) as error:
        raise ConstraintError("the regex is nested too deep or too large", hint="simplify it") from error
    flags = tree.state.flags & ~re.UNICODE
    if flags:
        raise ConstraintError(
            f"the regex sets flags ({re.RegexFlag(flags)!r}), which are not supported, at position {source.find('(?')}",
            hint="write the letters out, such as [aA]",
        )
    return tree


def _branches(tree: Any) -> list[list[Any]]:
    """The alternatives at the top, looking through groups that hold everything."""
    items = list(tree)
    if len(items) == 1 and items[0][0] is sre.SUBPATTERN and not (items[0][1][1] or items[0][1][2]):
        return _branches(items[0][1][3])
    if len(items) == 1 and items[0][0] is sre.BRANCH:
        return [branch for option in items[0][1][1] for branch in _branches(option)]
    return [items]


class _Builder:
    """From Python's parse tree to expressions."""

    def __init__(self, source: str, dialect: Dialect, character: Callable[[CharSet], Expr]) -> None:
        self._source = source
        self._dialect = dialect
        self._character = character
        self._written: dict[CharSet, Expr] = {}

    def anchored(self, items: list[Any]) -> tuple[list[Expr], bool, bool]:
        """The parts of one alternative, and whether it is anchored at its start and at its end."""
        starts = ends = False
        while items and items[0][0] is sre.AT and items[0][1] in _STARTS:
            items, starts = items[1:], True
        while items and items[-1][0] is sre.AT and items[-1][1] in _ENDS:
            items, ends = items[:-1], True
        return [self._item(item, 1, 1) for item in items], starts, ends

    def _sequence(self, items: Any, depth: int, product: int) -> Expr:
        if depth > LIMITS.depth:
            raise ConstraintError(f"the regex nests groups deeper than {LIMITS.depth}", hint="simplify it")
        return seq(*(self._item(item, depth, product) for item in items))

    def _item(self, item: tuple[Any, Any], depth: int, product: int) -> Expr:
        kind, value = item
        if kind is sre.LITERAL:
            return self._chars(CharSet.of(chr(value)))
        if kind is sre.NOT_LITERAL:
            return self._chars(~CharSet.of(chr(value)))
        if kind is sre.ANY:
            return self._chars(self._dialect.dot)
        if kind is sre.IN:
            return self._chars(self._members(value))
        if kind is sre.BRANCH:
            return alt(*(self._sequence(option, depth + 1, product) for option in value[1]))
        if kind is sre.SUBPATTERN:
            return self._group(value, depth, product)
        if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT):  # greedy or lazy, the set of whole matches is the same
            return self._repeated(value, depth, product)
        raise self._unsupported(kind, value)

    def _group(self, value: tuple[Any, ...], depth: int, product: int) -> Expr:
        _, added, removed, content = value
        if added or removed:
            raise ConstraintError(
                "the regex sets flags inside a group, which is not supported", hint="write the letters out"
            )
        return self._sequence(content, depth + 1, product)

    def _repeated(self, value: tuple[int, Any, Any], depth: int, product: int) -> Expr:
        low, high, content = value
        bound = low if high is sre.MAXREPEAT else high
        product *= max(bound, 1)
        if product > LIMITS.repeat_product:
            raise ConstraintError(
                f"the regex repeats something up to {product} times, more than {LIMITS.repeat_product}",
                hint="use a smaller bound, or `*`",
            )
        return repeat(self._sequence(content, depth + 1, product), low, None if high is sre.MAXREPEAT else high)

    def _members(self, items: list[tuple[Any, Any]]) -> CharSet:
        negated = items[0][0] is sre.NEGATE
        members = CharSet(())
        for kind, value in items[1:] if negated else items:
            members |= self._class_item(kind, value, negated=negated)
        return ~members if negated else members

    def _class_item(self, kind: Any, value: Any, *, negated: bool) -> CharSet:
        if kind is sre.LITERAL:
            return CharSet.of(chr(value))
        if kind is sre.RANGE:
            return CharSet.of_ranges([value])
        letter, complement = _CATEGORIES[value]
        if complement:
            return ~(self._dialect.positive if negated else self._dialect.negative)(letter)
        return (self._dialect.negative if negated else self._dialect.positive)(letter)

    def _chars(self, members: CharSet) -> Expr:
        if members not in self._written:
            self._written[members] = self._character(members) if members else chars(members)
        return self._written[members]

    def _unsupported(self, kind: Any, value: Any) -> ConstraintError:
        what = _NAMES.get(kind, "")
        if kind is sre.AT:
            what = (
                r"a word boundary `\b`"
                if value in (sre.AT_BOUNDARY, sre.AT_NON_BOUNDARY)
                else "an anchor in the middle"
            )
        position = _position(self._source, kind, value)
        return ConstraintError(
            f"{what or kind} is not supported, at position {position} of the regex",
            hint="a constraint is matched against the whole output, character by character; leave it out or list the cases",
        )


_SPELLINGS = {
    sre.ASSERT: r"\(\?<?=",
    sre.ASSERT_NOT: r"\(\?<?!",
    sre.GROUPREF: r"\\[1-9]|\(\?P=",
    sre.GROUPREF_EXISTS: r"\(\?\(",
    sre.ATOMIC_GROUP: r"\(\?>",
    sre.POSSESSIVE_REPEAT: r"[*+?}]\+",
}


def _position(source: str, kind: Any, value: Any) -> int:
    """Where the first construct of this kind stands; Python's parse tree does not keep positions."""
    spelling = _SPELLINGS.get(kind, "")
    if kind is sre.AT:
        word = value in (sre.AT_BOUNDARY, sre.AT_NON_BOUNDARY)
        spelling = r"\\[bB]" if word else r"[$^]|\\[AZ]"
    plain = re.sub(r"\\\\", "  ", source)
    found = re.search(spelling, plain[1:] if kind is sre.AT and spelling.startswith("[") else plain)
    if found is None:
        return 0
    return found.start() + (1 if kind is sre.AT and spelling.startswith("[") else 0)
