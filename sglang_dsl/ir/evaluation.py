"""What the things that nodes mention are worth, once the values they refer to are there."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from .nodes import Arm, Concat, Constant, DictOf, Expression, ListOf, Reference
from .operations import apply_all, jsonable, too_deep

Lookup: TypeAlias = Callable[[str], Any]  # node id -> its value


def evaluate(expression: Expression, lookup: Lookup) -> Any:
    """The value of an expression. Raises GraphError where an operation does not fit its value."""
    match expression:
        case Constant(value):
            return value
        case Reference(node_id, operations):
            return apply_all(lookup(node_id), operations)
        case ListOf(items):
            return [evaluate(item, lookup) for item in items]
        case DictOf(pairs):
            return {key: evaluate(item, lookup) for key, item in pairs}
        case Concat(parts):
            return "".join(text_of(evaluate(part, lookup)) for part in parts)


def text_of(value: Any) -> str:
    """How a value reads inside a prompt: text as it is, all else as JSON."""
    if type(value) is str:
        return value
    try:
        return json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else str.__str__(value)
    except (TypeError, ValueError):  # objects in it; or it holds itself
        data = jsonable(value)
        return data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    except RecursionError:
        raise too_deep() from None


def same(one: Any, other: Any) -> bool:
    """Whether two values are one in JSON: 5 and 5.0 are, True and 1 are not."""
    waiting, seen = [(one, other)], set[tuple[int, int]]()
    while waiting:
        one, other = waiting.pop()
        if isinstance(one, (list, dict)):  # one that holds itself is compared once
            if (id(one), id(other)) in seen:
                continue
            seen.add((id(one), id(other)))
        if isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                return False
            waiting.extend(zip(one, other, strict=True))
        elif isinstance(one, dict) and isinstance(other, dict):
            if one.keys() != other.keys():
                return False
            waiting.extend((value, other[key]) for key, value in one.items())
        elif isinstance(one, bool) != isinstance(other, bool) or one != other:
            return False
    return True


def is_among(value: Any, values: Iterable[Any]) -> bool:
    """Whether a value is one of some, in JSON."""
    return any(same(value, each) for each in values)


def arm_of(arms: Iterable[Arm], value: Any) -> int | None:
    """The index of the arm that a value takes: the one that names it, else the one for all others, else None."""
    rest = None
    for index, arm in enumerate(arms):
        if arm.values is None:
            rest = index
        elif is_among(value, arm.values):
            return index
    return rest


def is_data(value: Any) -> bool:
    """Whether it is made of what JSON has: nothing else can come out of a model's text."""
    waiting, seen = [value], set[int]()  # a list that holds itself is looked at once
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if kind is list or kind is dict:
            if id(value) in seen:
                continue
            seen.add(id(value))
            if kind is dict and any(type(key) is not str for key in value):
                return False
            waiting.extend(value if kind is list else value.values())
        elif not (math.isfinite(value) if kind is float else kind in (str, int, bool, type(None))):
            return False
    return True
