"""Which alternatives exclude each other, and which listed values a schema leaves."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

from ...errors import ConstraintError
from .normalise import Refs, Schema, refused
from .schema_validator import validator_of


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
    if not _types(a) & _types(b):
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


def _types(schema: dict[str, Any]) -> set[str]:
    given = schema.get("type", ["object", "array", "string", "number", "boolean", "null"])
    types = set(given) if isinstance(given, list) else {given}
    return types | {"number", "integer"} if types & {"number", "integer"} else types


def _listed(schema: dict[str, Any]) -> set[str] | None:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return None if values is None else {json.dumps(v, sort_keys=True) for v in values}
