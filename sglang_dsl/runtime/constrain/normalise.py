"""Schemas as conjunctions of plain keywords: `$ref` beside siblings and `allOf` are merged, so that nothing is dropped.

Before anything is read from a schema, `misshapen` checks that the value of each keyword has the form it must have. Merging two
schemas gives one that allows exactly what both allow. What cannot be merged is refused with its JSON path. `disjoint` and `filtered`
say which alternatives exclude each other, and which listed values a schema leaves.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import combinations
from typing import Any

from ...errors import ConstraintError
from .grammar import LIMITS, Schema, refused
from .schema_validator import validator_of

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
MAX_MAGNITUDE = 10**100  # of a numeric bound

_Check = Callable[[Any], bool]


def misshapen(schema: dict[str, Any]) -> tuple[str, str] | None:
    """The first keyword whose value cannot be used, and what it would have to be; None if all are fine."""
    for keyword, value in schema.items():
        check, wanted = _SHAPES.get(keyword, (_anything, ""))
        if not check(value):
            shown = repr(value) if len(repr(value)) < 60 else repr(value)[:57] + "..."
            return keyword, f"{shown} is not {wanted}"
    return None


def _anything(_: Any) -> bool:
    return True


def _schema(value: Any) -> bool:
    return isinstance(value, (bool, dict))


def _schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_schema, value))


def _named_schemas(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_schema, value.values()))


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= MAX_MAGNITUDE


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _types(value: Any) -> bool:
    return value in TYPES if isinstance(value, str) else _names(value) and set(value) <= set(TYPES) and bool(value)


def _values(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


_SHAPES: dict[str, tuple[_Check, str]] = (
    dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), (_count, "a whole number from 0 on"))
    | dict.fromkeys(("minProperties", "maxProperties"), (_count, "a whole number from 0 on"))
    | dict.fromkeys(("minimum", "maximum", "multipleOf"), (_number, "a number (of at most 10^100)"))
    | dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), (_number, "a number (draft-04's true is not supported)"))
    | dict.fromkeys(("anyOf", "oneOf", "allOf"), (_schemas, "a non-empty list of schemas"))
    | dict.fromkeys(("additionalProperties", "propertyNames"), (_schema, "a schema"))
    | dict.fromkeys(
        ("properties", "patternProperties", "$defs", "definitions"), (_named_schemas, "an object of schemas")
    )
    | dict.fromkeys(("pattern", "format", "$ref"), (_text, "a string"))
    | {
        "items": (_schema, "a schema (a list of them is called prefixItems since 2020-12)"),
        "prefixItems": (_schemas, "a non-empty list of schemas"),
        "required": (_names, "a list of names"),
        "enum": (_values, "a non-empty list of values"),
        "type": (_types, f"a JSON type or several ({', '.join(TYPES)})"),
        "nullable": (lambda value: isinstance(value, bool), "true or false"),
    }
)


ANNOTATIONS = frozenset(
    [
        "title",
        "description",
        "default",
        "examples",
        "example",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$comment",
        "$schema",
        "$id",
        "id",
        "$defs",
        "definitions",
        "contentMediaType",
        "contentEncoding",
        "contentSchema",
    ]
)
_LARGER = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_SMALLER = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
_OBJECT = frozenset({"properties", "patternProperties", "additionalProperties"})
_ARRAY = frozenset({"prefixItems", "items"})


class Refs:
    """Looks up local references in one document."""

    def __init__(self, document: Schema) -> None:
        self._document = document
        self._followed = 0

    def resolve(self, ref: object, path: str) -> Schema:
        """The schema a `$ref` names.

        Raises:
            ConstraintError: remote, dangling, or not a schema.
        """
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            raise refused(path, "$ref", f"{ref!r} is not a local reference such as '#/$defs/Name'")
        self._followed += 1
        if self._followed > LIMITS.references:
            raise refused(path, "$ref", f"more than {LIMITS.references} references are followed", "simplify the schema")
        target: Any = self._document
        for part in ref[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and key.isdecimal() and int(key) < len(target):
                target = target[int(key)]
            elif isinstance(target, dict) and key in target:
                target = target[key]
            else:
                raise refused(path, "$ref", f"{ref!r} names nothing in this schema")
        if not isinstance(target, (bool, dict)):
            raise refused(path, "$ref", f"{ref!r} names something that is not a schema")
        return target

    def flat(self, schema: Schema, path: str, seen: tuple[str, ...] = ()) -> Schema:
        """The schema without `allOf`, and without `$ref` unless that is all it has. `seen`: references followed so far.

        Raises:
            ConstraintError: references that only lead back to themselves, or parts that cannot be merged.
        """
        if isinstance(schema, bool):
            return schema
        if (problem := misshapen(schema)) is not None:
            raise refused(path, *problem, "see the JSON Schema reference of this keyword")
        plain = {k: v for k, v in schema.items() if k not in ANNOTATIONS}
        if set(plain) == {"$ref"} and not seen:
            self._check_loop(plain["$ref"], path, ())
            return plain
        merged: Schema = {k: v for k, v in plain.items() if k not in ("$ref", "allOf")}
        if "$ref" in plain:
            ref = plain["$ref"]
            if ref in seen:
                raise refused(path, "$ref", f"{ref!r} refers only to itself")
            merged = merge(self.flat(self.resolve(ref, path), path, (*seen, ref)), merged, path)
        for i, part in enumerate(_list(plain.get("allOf", []), path, "allOf")):
            merged = merge(merged, self.flat(part, f"{path}/allOf/{i}", seen or ("",)), path)
        return merged

    def _check_loop(self, ref: object, path: str, seen: tuple[object, ...]) -> None:
        """A reference has to lead to something that says more than another reference."""
        if ref in seen:
            raise refused(path, "$ref", f"{ref!r} refers only to itself")
        target = self.resolve(ref, path)
        if isinstance(target, dict):
            followers = [target, *_list(target.get("allOf", []), path, "allOf")]
            for follower in followers:
                if isinstance(follower, dict) and "$ref" in follower:
                    self._check_loop(follower["$ref"], path, (*seen, ref))


def merge(a: Schema, b: Schema, path: str) -> Schema:
    """A schema that allows what both allow."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a if b is True else b if a is True else False
    left, right = a, b
    result = {**left, **right}
    for keyword in (left.keys() & right.keys()) - _OBJECT - _ARRAY:
        result[keyword] = _both(keyword, left[keyword], right[keyword], path)
    if left.keys() & _OBJECT and right.keys() & _OBJECT:
        result |= _merge_objects(left, right, path)
    if left.keys() & _ARRAY and right.keys() & _ARRAY:
        result |= _merge_arrays(left, right)
    return result


def _both(keyword: str, a: Any, b: Any, path: str) -> Any:
    if a == b and type(a) is type(b):
        return a
    if keyword in _LARGER | _SMALLER and _is_number(a) and _is_number(b):
        return max(a, b) if keyword in _LARGER else min(a, b)
    match keyword:
        case "type":
            return _common_types(_as_list(a), _as_list(b))
        case "enum":
            return [v for v in a if _json(v) in set(map(_json, b))]
        case "required":
            return [*a, *(name for name in b if name not in a)]
        case "multipleOf" if isinstance(a, int) and isinstance(b, int):
            return math.lcm(a, b)
        case "nullable":
            return a and b
        case "anyOf" | "oneOf" if isinstance(a, list) and isinstance(b, list):
            raise refused(
                path, keyword, "stands in two schemas that both have to hold", "multiply the alternatives out"
            )
    raise refused(path, keyword, f"two different values have to hold at once: {_json(a)} and {_json(b)}")


def _common_types(a: list[Any], b: list[Any]) -> list[Any]:
    common = [t for t in a if t in b]
    if "integer" not in common and (("integer" in a and "number" in b) or ("number" in a and "integer" in b)):
        common.append("integer")
    return common


def _merge_objects(a: dict[str, Any], b: dict[str, Any], path: str) -> dict[str, Any]:
    """Every name gets what both sides say about it; a name only one side lists meets the other's additionalProperties."""
    if a.get("patternProperties", {}) != b.get("patternProperties", {}) and (
        "patternProperties" in a or "patternProperties" in b
    ):
        raise refused(path, "patternProperties", "cannot be combined with another schema for the same object")
    own_a, own_b = a.get("properties", {}), b.get("properties", {})
    names = [*own_a, *(n for n in own_b if n not in own_a)]
    merged: dict[str, Any] = {
        "properties": {
            n: _all(
                own_a.get(n, a.get("additionalProperties", True)), own_b.get(n, b.get("additionalProperties", True))
            )
            for n in names
        }
    }
    if "additionalProperties" in a or "additionalProperties" in b:
        merged["additionalProperties"] = _all(a.get("additionalProperties", True), b.get("additionalProperties", True))
    return merged


def _merge_arrays(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    first, second = a.get("prefixItems", []), b.get("prefixItems", [])
    rest_a, rest_b = a.get("items", True), b.get("items", True)
    length = max(len(first), len(second))
    prefix = [
        _all(first[i] if i < len(first) else rest_a, second[i] if i < len(second) else rest_b) for i in range(length)
    ]
    return {"items": _all(rest_a, rest_b), **({"prefixItems": prefix} if prefix else {})}


def _all(a: Schema, b: Schema) -> Schema:
    if isinstance(a, bool) or isinstance(b, bool):
        return a if b is True else b if a is True else False
    return a if a == b else {"allOf": [a, b]}


def _list(value: Any, path: str, keyword: str) -> list[Any]:
    if not isinstance(value, list) or not all(isinstance(v, (bool, dict)) for v in value):
        raise refused(path, keyword, "is not a list of schemas")
    return value


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def filtered(values: list[Any], schema: dict[str, Any], path: str) -> list[Any]:
    """The values of an enum or const that satisfy the schema's other keywords too."""
    rest = {k: v for k, v in schema.items() if k not in ("enum" if "const" not in schema else "const",)}
    if not rest:
        return values
    if "$ref" in json.dumps(rest):
        raise refused(path, "enum", "stands beside keywords with references", "list only the values that remain")
    validator = validator_of(rest, formats=False)
    try:
        return [value for value in values if validator.is_valid(value)]
    except ConstraintError as error:
        raise refused(path, "pattern", error.what, error.hint) from error


def disjoint(options: list[Schema], refs: Refs, path: str) -> bool:
    """Whether no value can satisfy two of the options, as far as types, listed values and required properties tell."""
    flat = [refs.flat(option, path, ("",)) for option in options]
    return all(_exclude(a, b, refs, path) for a, b in combinations(flat, 2))


def _exclude(a: Schema, b: Schema, refs: Refs, path: str) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return a is False or b is False
    if not _allowed_types(a) & _allowed_types(b):
        return True
    listed_a, listed_b = _listed(a), _listed(b)
    if listed_a is not None and listed_b is not None:
        return not listed_a & listed_b
    return any(
        _exclude(
            refs.flat(a["properties"][name], path, ("",)), refs.flat(b["properties"][name], path, ("",)), refs, path
        )
        for name in set(a.get("required", [])) & set(b.get("required", []))
        if name in a.get("properties", {}) and name in b.get("properties", {})
    )


def _allowed_types(schema: dict[str, Any]) -> set[str]:
    given = schema.get("type", ["object", "array", "string", "number", "boolean", "null"])
    types = set(given) if isinstance(given, list) else {given}
    return types | {"number", "integer"} if types & {"number", "integer"} else types


def _listed(schema: dict[str, Any]) -> set[str] | None:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return None if values is None else {json.dumps(v, sort_keys=True) for v in values}
