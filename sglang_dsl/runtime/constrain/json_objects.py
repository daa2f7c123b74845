"""JSON objects as grammars: properties in schema order, optional ones left out, additional ones at the end. Below stand the length
bounds of strings that a pattern or a format describes, such as the names of additional properties.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .automaton import Automaton, AutomatonState, next_set
from .grammar import (
    EMPTY,
    LIMITS,
    NOTHING,
    Alt,
    Chars,
    CharSet,
    Expr,
    Grammar,
    LiteralText,
    Ref,
    Repeat,
    Schema,
    Seq,
    alt,
    optional,
    refused,
    repeat,
    seq,
    text,
)
from .json_text import PLAIN, string_expr, value_expr, written

Find = Callable[[str, str, Any, str], None]


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """What a schema says about an object's members.

    extra: the schema of additional members (False: none), said by `extra_keyword`. key_pattern, key_schema: what their names match.
    low, high: how many additional members.
    """

    properties: Mapping[str, Schema]
    required: frozenset[str]
    extra: Schema
    extra_keyword: str
    key_pattern: str | None
    key_schema: Schema | None
    low: int
    high: int | None

    @classmethod
    def read(cls, schema: dict[str, Any], path: str, find: Find) -> ObjectShape:
        """From a flat schema.

        Raises:
            ConstraintError: malformed keywords, or combinations that cannot be said.
        """
        properties, required = _members(schema, path)
        extra, keyword, pattern = _extra(schema, properties, required, path, find)
        low, high = _counts(schema, properties, required, extra, path, find)
        missing = [name for name in required if name not in properties]
        names = schema.get("propertyNames")
        if names is not None and properties:
            raise refused(path, "propertyNames", "cannot be combined with properties")
        if extra is not False and missing:
            raise refused(path, "required", f"{missing[0]!r} is not among the properties", "declare it in properties")
        return cls(properties, frozenset(required), extra, keyword, pattern, names, low, high)


def _members(schema: dict[str, Any], path: str) -> tuple[dict[str, Schema], list[str]]:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict):
        raise refused(path, "properties", "is not an object of schemas", "give each property's schema by name")
    if not isinstance(required, list) or not all(isinstance(n, str) for n in required):
        raise refused(path, "required", "is not a list of names", "list the names of required properties")
    if len(properties) > LIMITS.properties:
        raise refused(
            path, "properties", f"has {len(properties)} members, more than {LIMITS.properties}", "split the object"
        )
    extra = schema.get("additionalProperties", True)
    if extra is not False and "patternProperties" not in schema:  # required names meet additionalProperties
        properties = {**properties, **{n: extra for n in required if n not in properties}}
    return properties, required


def _extra(
    schema: dict[str, Any], properties: dict[str, Schema], required: list[str], path: str, find: Find
) -> tuple[Schema, str, str | None]:
    patterns = schema.get("patternProperties", {})
    if patterns:
        if len(patterns) > 1 or properties or not isinstance(patterns, dict):
            raise refused(path, "patternProperties", "is supported with one pattern and no properties")
        ((pattern, extra),) = patterns.items()
        if schema.get("additionalProperties", True) is not False:
            find(path, "patternProperties", "narrows", "writes only names that match the pattern")
        return extra, "patternProperties", pattern
    extra = schema.get("additionalProperties", not properties)
    if "additionalProperties" not in schema and properties:
        find(path, "additionalProperties", "narrows", "is not given: no additional properties are written")
    if properties and extra is not False:
        find(path, "additionalProperties", "narrows", "names of additional properties hold no escapes")
    return extra, "additionalProperties", None


def _counts(
    schema: dict[str, Any], properties: dict[str, Schema], required: list[str], extra: Schema, path: str, find: Find
) -> tuple[int, int | None]:
    """How many additional members there may be. Refuses counts that would depend on which optional ones are written."""
    low, high = schema.get("minProperties", 0), schema.get("maxProperties")
    for keyword, count in (("minProperties", low), ("maxProperties", high)):
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
            raise refused(path, keyword, f"{count!r} is not a whole number from 0 on", "give a whole number")
    always, all_of_them = len(set(required) & properties.keys()), len(properties)
    if low <= always and (high is None or (extra is False and all_of_them <= high)):
        return 0, None
    if always != all_of_them:
        find(
            path,
            "minProperties" if low > always else "maxProperties",
            "weakens",
            "cannot be counted over optional properties",
        )
        return 0, None
    if low > always + 1:
        find(path, "minProperties", "weakens", "may be met by one name twice")
    return max(low - always, 0), None if high is None else high - always


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectGrammar:
    """An object's shape with the grammars of its parts.

    values: of declared properties, in order. extra, keys: value and (quoted) name of an additional member; keys None: any name
    that is not declared. space: what may stand between tokens. rules: receives rules whose names begin with `name`.
    """

    shape: ObjectShape
    values: Mapping[str, Expr]
    extra: Expr | None
    keys: Expr | None
    space: Expr
    rules: dict[str, Expr]
    name: str

    def expr(self) -> Expr:
        """`{`, the members, `}`: one rule per property for what may follow with, and one without, a member before."""
        if self.shape.required - self.values.keys():
            return NOTHING
        after, first = self._additional()
        for i, (key, value) in reversed(list(enumerate(self.values.items()))):
            pair = seq(value_expr(key, EMPTY), self._spaced(":"), value)
            needed = key in self.shape.required
            self.rules[f"{self.name} first {i}"] = alt(seq(pair, after), *([] if needed else [first]))
            self.rules[f"{self.name} after {i}"] = alt(
                seq(self._spaced(","), pair, after), *([] if needed else [after])
            )
            first, after = Ref(f"{self.name} first {i}"), Ref(f"{self.name} after {i}")
        return seq(text("{"), self.space, first, text("}"))

    def _additional(self) -> tuple[Expr, Expr]:
        """What may follow all declared properties, up to the `}`: after some member, and without any."""
        low, high = self.shape.low, self.shape.high
        if high is not None and high < low:
            return NOTHING, NOTHING
        if self.extra is None or high == 0:
            return (self.space, EMPTY) if low == 0 else (NOTHING, NOTHING)
        pair = seq(self._key(), self._spaced(":"), self.extra)
        another = seq(self._spaced(","), pair)
        more = repeat(another, max(low - 1, 0), None if high is None else high - 1)
        first = seq(pair, more, self.space)
        return seq(repeat(another, low, high), self.space), first if low else optional(first)

    def _key(self) -> Expr:
        if self.keys is not None:
            return self.keys
        return _other_keys(list(self.values), self.rules, self.name) if self.values else string_expr(0, None)

    def _spaced(self, sign: str) -> Expr:
        return seq(self.space, text(sign), self.space)


def _other_keys(names: list[str], rules: dict[str, Expr], name: str) -> Expr:
    """A quoted name, without escapes, that is none of `names`: a trie with every way out of it."""
    tails = repeat(Chars(PLAIN), 0, None)
    work, made = [""], {""}
    while work:
        prefix = work.pop()
        following = {n[len(prefix)] for n in names if n.startswith(prefix) and len(n) > len(prefix)}
        options = [] if prefix in names else [text('"')]
        options.append(seq(Chars(PLAIN - CharSet.of("".join(following))), tails, text('"')))
        for character in sorted(following & {c for c in following if c in PLAIN}):
            options.append(seq(text(character), Ref(f"{name} key {prefix + character}")))
            if prefix + character not in made:
                made.add(prefix + character)
                work.append(prefix + character)
        rules[f"{name} key {prefix}"] = alt(*options)
    return seq(text('"'), Ref(f"{name} key "))


MAX_PLACES = 400  # of a pattern's automaton times the length; each costs a few milliseconds of mask compilation


def bounded(content: Expr, low: int, high: int | None, path: str) -> Expr:
    """`content` where every match has `low` to `high` characters, or one class repeated.

    Raises:
        ConstraintError: the bounds would have to be counted across several parts.
    """
    if spans_within(content, low, high):
        return content
    if isinstance(content, Repeat) and repeats_one_character(content):
        top = content.high if high is None else high if content.high is None else min(content.high, high)
        return repeat(content.item, max(low, content.low), top)
    keyword = "maxLength" if _span(content)[0] >= low else "minLength"
    raise refused(path, keyword, "cannot be combined with what else is said of this string", "bound it in the pattern")


def repeats_one_character(content: Expr) -> bool:
    """Whether `bounded` can count it: a repeat of single characters."""
    return isinstance(content, Repeat) and _span(content.item) == (1, 1)


def counted(values: Expr, low: int, high: int | None, path: str, rules: dict[str, Expr], name: str) -> Expr:
    """The strings, as written in JSON, whose values match `values` and have `low` to `high` characters.

    The product of the pattern's automaton with a counter, as rules `name ...`, one per state and count. Source: the product
    construction for regular languages.

    Raises:
        ConstraintError: it has too many places.
    """
    automaton = Automaton(Grammar(values, {}))
    most = low if high is None else high  # beyond `low` without an upper bound, counts are all the same
    numbers = {(automaton.start, 0): 0}
    work = [(automaton.start, 0)]
    while work:
        state, count = work.pop()
        options: list[Expr] = [EMPTY] if state.accepting and count >= low else []
        if high is None or count < high:
            for members, following in _branches(automaton, state):
                place = (following, min(count + 1, most))
                if place not in numbers:
                    numbers[place] = len(numbers)
                    work.append(place)
                options.append(seq(written(members), Ref(f"{name} {numbers[place]}")))
        rules[f"{name} {numbers[state, count]}"] = alt(*options)
        if len(numbers) > MAX_PLACES:
            raise refused(
                path, "pattern", f"and its length bounds have more than {MAX_PLACES} places", "bound it in the pattern"
            )
    return Ref(f"{name} 0")


def _branches(automaton: Automaton, state: AutomatonState) -> list[tuple[CharSet, AutomatonState]]:
    """The characters that may follow, grouped by where they lead."""
    groups: list[CharSet] = []
    for top in state.tops:
        members = next_set(top)
        groups = [part for group in groups for part in (group & members, group - members) if part]
        rest = members
        for group in groups:
            rest -= group
        groups += [rest] if rest else []
    branches = ((group, automaton.step(state, group.character(0))) for group in groups)
    return [(group, following) for group, following in branches if following is not None]


def spans_within(content: Expr, low: int, high: int | None) -> bool:
    """Whether the bounds say nothing that `content` does not say already."""
    shortest, longest = _span(content)
    return shortest >= low and (high is None or (longest is not None and longest <= high))


def _span(expr: Expr) -> tuple[int, int | None]:
    """Fewest and most characters of the string's value; None for no limit. An escape sequence is one character."""
    match expr:
        case Chars():
            return 1, 1
        case LiteralText(text):
            return (1, 1) if text.startswith("\\") and len(text) > 1 else (len(text), len(text))
        case Alt(options):
            spans = [_span(option) for option in options]
            highs = [high for _, high in spans if high is not None]
            return min((low for low, _ in spans), default=0), max(highs, default=0) if len(highs) == len(
                spans
            ) else None
        case Seq(parts):
            spans = [_span(part) for part in parts]
            highs = [high for _, high in spans if high is not None]
            return sum(low for low, _ in spans), sum(highs) if len(highs) == len(spans) else None
        case Repeat(item, low, high):
            fewest, most = _span(item)
            return fewest * low, None if high is None or most is None else most * high
        case _:
            return 1, 1
