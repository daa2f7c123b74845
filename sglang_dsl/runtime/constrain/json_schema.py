"""JSON schema to a character grammar: exact, or narrower with a finding, or refused; never wider without being asked.

Properties are written in the schema's order. Objects that say nothing about additional properties are closed.
Source: JSON Schema 2020-12 (Core and Validation); draft-07's `definitions` and tuple `items` are not rewritten.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ...errors import ConstraintError
from .automaton import checked
from .grammar import (
    LIMITS,
    NOTHING,
    WHITESPACE,
    Chars,
    CharSet,
    Expr,
    Grammar,
    Ref,
    Schema,
    SchemaWeakness,
    alt,
    load_json,
    one_of,
    optional,
    refused,
    repeat,
    seq,
    text,
)
from .json_objects import ObjectGrammar, ObjectShape, bounded, counted, repeats_one_character, spans_within
from .json_text import ANNOTATIONS as SHOWN_FORMATS
from .json_text import (
    decimal_range_expr,
    format_expr,
    integer_expr,
    known_formats,
    number_expr,
    quoted,
    string_expr,
    value_expr,
    written,
)
from .normalise import TYPES, Refs, disjoint, filtered, merge
from .regex import ECMA_AND_PYTHON, search_expr


def bound(schema: dict[str, Any], keyword: str) -> Decimal | None:
    """A number keyword, exactly as written; None where it is not given."""
    value = schema.get(keyword)
    return None if value is None else Decimal(str(value))


def tighter(
    inclusive: Decimal | None, exclusive: Decimal | None, pick: Callable[[Decimal, Decimal], Decimal]
) -> tuple[Decimal | None, bool]:
    """The bound that counts, and whether it is exclusive."""
    if inclusive is None or exclusive is None:
        return (exclusive, True) if exclusive is not None else (inclusive, False)
    return pick(inclusive, exclusive), pick(inclusive, exclusive) == exclusive


def first_whole(low: Decimal | None, *, above: bool) -> int | None:
    """The least whole number above an (exclusive) lower bound."""
    if low is None:
        return None
    whole = int(low.to_integral_value(rounding="ROUND_CEILING"))
    return whole + 1 if above and whole == low else whole


def last_whole(high: Decimal | None, *, below: bool) -> int | None:
    """The greatest whole number below an (exclusive) upper bound."""
    if high is None:
        return None
    whole = int(high.to_integral_value(rounding="ROUND_FLOOR"))
    return whole - 1 if below and whole == high else whole


_UNENFORCED = frozenset(
    [
        "not",
        "if",
        "then",
        "else",
        "contains",
        "minContains",
        "maxContains",
        "uniqueItems",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "unevaluatedProperties",
        "unevaluatedItems",
        "additionalItems",
        "$anchor",
        "$dynamicRef",
        "$dynamicAnchor",
        "$recursiveRef",
        "$vocabulary",
    ]
)


@dataclass(frozen=True, slots=True)
class SchemaGrammar:
    """The grammar of a schema and what it does not say exactly."""

    grammar: Grammar
    findings: tuple[SchemaWeakness, ...]


def schema_grammar(source: str, max_whitespace: int | None, *, strict: bool = True) -> SchemaGrammar:
    """The JSON texts of the values a schema allows; runs of whitespace outside strings are bounded.

    Raises:
        ConstraintError: malformed, allowing nothing, too large, or (if `strict`) holding a keyword that cannot be enforced.
    """
    document = load_json(source, "the schema")
    if not isinstance(document, (bool, dict)):
        raise ConstraintError("a schema is an object (or true, false)", hint='give for example {"type": "object"}')
    compiler = _Compiler(document, max_whitespace)
    grammar = compiler.compile()
    weakened = [f for f in compiler.findings if f.severity == "weakens"]
    if strict and weakened:
        raise ConstraintError(
            "the schema cannot be enforced: " + "; ".join(map(str, weakened)),
            hint="leave these keywords out, and check the value after reading it",
        )
    return SchemaGrammar(grammar, tuple(compiler.findings))


class _Compiler:
    """Compiles one document. Referenced schemas become rules, each compiled once."""

    def __init__(self, document: Schema, max_whitespace: int | None) -> None:
        self.findings: list[SchemaWeakness] = []
        self._document = document
        self._refs = Refs(document)
        self._rules: dict[str, Expr] = {}
        self._pending: list[str] = []
        self._space = repeat(Chars(WHITESPACE), 0, max_whitespace)

    def compile(self) -> Grammar:
        root = self._value(self._document, "#", 0)
        while self._pending:
            ref = self._pending.pop()
            self._rules[ref] = self._value(self._refs.resolve(ref, ref), ref, 0)
        return checked(Grammar(root, self._rules), "the schema allows no value")

    def _value(self, schema: Schema, path: str, depth: int) -> Expr:
        if depth > LIMITS.depth:
            raise ConstraintError(f"the schema nests deeper than {LIMITS.depth} at {path[:60]}...", hint="flatten it")
        if not isinstance(schema, (bool, dict)):
            raise ConstraintError(f"{schema!r} at {path} is not a schema", hint="a schema is an object, true or false")
        flat = self._refs.flat(schema, path)
        if isinstance(flat, bool):
            return self._anything() if flat else NOTHING
        if set(flat) == {"$ref"}:
            return self._reference(flat["$ref"])
        if flat.get("nullable") is True:
            rest = {k: v for k, v in flat.items() if k != "nullable"}
            return alt(self._plain(rest, path, depth), text("null"))
        return self._plain(flat, path, depth)

    def _reference(self, ref: str) -> Expr:
        if ref not in self._rules:
            self._rules[ref] = NOTHING
            self._pending.append(ref)
        return Ref(ref)

    def _plain(self, schema: dict[str, Any], path: str, depth: int) -> Expr:
        self._check_keywords(schema, path)
        if "const" in schema or "enum" in schema:
            return self._values(schema, path)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self._alternatives(schema, keyword, path, depth)
        types = self._types(schema)
        return alt(*(self._typed(t, schema, path, depth) for t in types))

    def _check_keywords(self, schema: dict[str, Any], path: str) -> None:
        for keyword, value in schema.items():
            harmless = (keyword == "uniqueItems" and value is False) or (
                keyword == "unevaluatedProperties" and value is True
            )
            if keyword in _UNENFORCED and not harmless:
                self._find(path, keyword, "weakens", "cannot be enforced while generating")

    def _types(self, schema: dict[str, Any]) -> list[str]:
        given = schema.get("type", [t for t in TYPES if t != "integer"])
        types = given if isinstance(given, list) else [given]
        return [t for t in types if not (t == "integer" and "number" in types)]

    def _typed(self, name: str, schema: dict[str, Any], path: str, depth: int) -> Expr:
        match name:
            case "object":
                return self._object(schema, path, depth)
            case "array":
                return self._array(schema, path, depth)
            case "string":
                return self._string(schema, path)
            case "integer" | "number":
                return self._number(schema, path, whole=name == "integer")
            case "boolean":
                return alt(text("true"), text("false"))
            case _:
                return text("null")

    # values and alternatives

    def _values(self, schema: dict[str, Any], path: str) -> Expr:
        listed = [schema["const"]] if "const" in schema else schema["enum"]
        if len(listed) > LIMITS.enum_values:
            raise refused(path, "enum", f"has {len(listed)} values, more than {LIMITS.enum_values}", "use fewer values")
        values = filtered(listed, schema, path)
        plain = [value_expr(v, self._space) for v in values if isinstance(v, (list, dict))]
        texts = [_spelled(v) for v in values if not isinstance(v, (list, dict))]
        return alt(one_of(texts, self._rules, self._fresh(path)), *plain)

    def _alternatives(self, schema: dict[str, Any], keyword: str, path: str, depth: int) -> Expr:
        options = schema[keyword]
        rest = {k: v for k, v in schema.items() if k not in (keyword, "discriminator")}
        options = [_discriminated(o, schema.get("discriminator")) for o in options]
        paths = [f"{path}/{keyword}/{i}" for i in range(len(options))]
        if keyword == "oneOf" and not disjoint(options, self._refs, path):
            self._find(
                path, keyword, "weakens", "has alternatives that may hold at the same time; write anyOf if they may"
            )
        if not rest:
            return alt(*(self._value(o, p, depth + 1) for o, p in zip(options, paths, strict=True)))
        merged = [merge(rest, self._refs.flat(o, p, ("",)), p) for o, p in zip(options, paths, strict=True)]
        return alt(*(self._value(o, p, depth + 1) for o, p in zip(merged, paths, strict=True)))

    # scalars

    def _string(self, schema: dict[str, Any], path: str) -> Expr:
        low, high = schema.get("minLength", 0), schema.get("maxLength")
        format_name = schema.get("format")
        if format_name in SHOWN_FORMATS:
            format_name = None
        content = None
        if format_name is not None:
            content = format_expr(format_name)
            if content is None:
                self._find(path, "format", "weakens", f"{format_name!r} is not one of {', '.join(known_formats())}")
        if "pattern" in schema:
            if content is not None:
                raise refused(path, "pattern", "cannot be combined with format")
            return quoted(self._bounded_pattern(schema["pattern"], low, high, path))
        if content is None:
            return string_expr(low, high) if high is None or low <= high else NOTHING
        return quoted(bounded(content, low, high, path))

    def _bounded_pattern(self, pattern: object, low: int, high: int | None, path: str) -> Expr:
        content = self._pattern(pattern, path)
        if repeats_one_character(content) or spans_within(content, low, high):
            return bounded(content, low, high, path)
        return counted(self._pattern(pattern, path, Chars), low, high, path, self._rules, self._fresh(path))

    def _pattern(self, pattern: object, path: str, character: Callable[[CharSet], Expr] = written) -> Expr:
        if not isinstance(pattern, str):
            raise refused(path, "pattern", "is not a string")
        try:
            return search_expr(pattern, ECMA_AND_PYTHON, character)
        except ConstraintError as error:
            raise ConstraintError(f"schema keyword 'pattern' at {path}: {error.what}", hint=error.hint) from error

    def _number(self, schema: dict[str, Any], path: str, *, whole: bool) -> Expr:
        bounds = {k: bound(schema, k) for k in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")}
        low, above = tighter(bounds["minimum"], bounds["exclusiveMinimum"], max)
        high, below = tighter(bounds["maximum"], bounds["exclusiveMaximum"], min)
        step = schema.get("multipleOf")
        if whole:
            first, last = first_whole(low, above=above), last_whole(high, below=below)
            return self._multiples(first, last, step, path)
        if step is not None:
            self._find(path, "multipleOf", "weakens", "is enforced for integers only")
        if low is None and high is None:
            return number_expr()
        if any(b is not None and abs(b) > 10**15 for b in (low, high)) and (above or below):
            raise refused(
                path, "exclusiveMinimum", "exclusive bounds beyond 10^15 cannot be told from rounding", "use minimum"
            )
        return decimal_range_expr(low, high, above=above, below=below)

    def _multiples(self, first: int | None, last: int | None, step: object, path: str) -> Expr:
        if step is None or step == 1:
            return integer_expr(first, last)
        if not isinstance(step, int) or step <= 0:
            raise refused(path, "multipleOf", f"{step!r} is not a positive whole number")
        if first is None or last is None or (last - first) // step > LIMITS.enum_values:
            self._find(
                path,
                "multipleOf",
                "weakens",
                f"is enforced where minimum and maximum leave {LIMITS.enum_values} values at most",
            )
            return integer_expr(first, last)
        return one_of((str(n) for n in range(-(-first // step) * step, last + 1, step)), self._rules, self._fresh(path))

    # containers

    def _array(self, schema: dict[str, Any], path: str, depth: int) -> Expr:
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        prefix = schema.get("prefixItems", [])
        items = schema.get("items", True)
        if high is not None and low > high:
            return NOTHING
        fixed = [self._value(p, f"{path}/prefixItems/{i}", depth + 1) for i, p in enumerate(prefix[:high])]
        more = None if high is None else high - len(fixed)
        rest = NOTHING if more == 0 else self._value(items, f"{path}/items", depth + 1)
        return self._listed(fixed, rest, low, more, path)

    def _listed(self, fixed: list[Expr], rest: Expr, low: int, more: int | None, path: str) -> Expr:
        """`[`, the fixed items (those from `low` on may be missing at the end), up to `more` others, `]`."""
        comma = seq(self._space, text(","), self._space)
        given = len(fixed)
        if given:
            tail = repeat(seq(comma, rest), max(low - given, 0), more)
            for i in range(given - 1, 0, -1):
                tail = seq(comma, fixed[i], tail)
                if i >= low:
                    self._rules[name := self._fresh(path)] = optional(tail)
                    tail = Ref(name)
            members = seq(fixed[0], tail)
        else:
            members = (
                NOTHING
                if more == 0
                else seq(rest, repeat(seq(comma, rest), max(low - 1, 0), None if more is None else more - 1))
            )
        inside = seq(members, self._space)
        return seq(text("["), self._space, inside if low else optional(inside), text("]"))

    def _object(self, schema: dict[str, Any], path: str, depth: int) -> Expr:
        shape = ObjectShape.read(schema, path, self._find)
        values = {n: self._value(s, f"{path}/properties/{_pointer(n)}", depth + 1) for n, s in shape.properties.items()}
        extra = None if shape.extra is False else self._value(shape.extra, f"{path}/{shape.extra_keyword}", depth + 1)
        keys = None
        if shape.key_pattern is not None:
            keys = quoted(self._pattern(shape.key_pattern, path))
        elif shape.key_schema is not None:
            keys = self._value(
                merge({"type": "string"}, self._refs.flat(shape.key_schema, path, ("",)), path), path, depth + 1
            )
        return ObjectGrammar(
            shape=shape,
            values=values,
            extra=extra,
            keys=keys,
            space=self._space,
            rules=self._rules,
            name=self._fresh(path),
        ).expr()

    def _anything(self) -> Expr:
        """Any JSON value, as a rule of its own."""
        name = "json value"
        if name not in self._rules:
            self._rules[name] = NOTHING
            value, comma = Ref(name), seq(self._space, text(","), self._space)
            pair = seq(string_expr(0, None), self._space, text(":"), self._space, value)
            self._rules[name] = alt(
                self._enclosed("[", value, comma, "]"),
                self._enclosed("{", pair, comma, "}"),
                string_expr(0, None),
                number_expr(),
                *map(text, ("true", "false", "null")),
            )
        return Ref(name)

    def _enclosed(self, opening: str, item: Expr, comma: Expr, closing: str) -> Expr:
        inside = seq(item, repeat(seq(comma, item), 0, None), self._space)
        return seq(text(opening), self._space, optional(inside), text(closing))

    def _fresh(self, path: str) -> str:
        return f"{path} {len(self._rules)}"

    def _find(self, path: str, keyword: str, severity: Any, detail: str) -> None:
        self.findings.append(SchemaWeakness(path, keyword, severity, detail))


def _spelled(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _discriminated(option: Schema, discriminator: object) -> Schema:
    """An alternative that also has to hold the property that tells it from the others (OpenAPI's `discriminator`)."""
    name = discriminator.get("propertyName") if isinstance(discriminator, dict) else None
    return {"allOf": [option, {"required": [name]}]} if isinstance(name, str) else option


def _pointer(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
