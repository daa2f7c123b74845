"""What the value of each schema keyword has to look like, checked before anything is read from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
