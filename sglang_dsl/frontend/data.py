"""Python values that cross the border as data: tool arguments and return values, as expressions."""

from __future__ import annotations

import sys
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

from ..errors import Origin, ProgramError
from ..ir.nodes import Concat, Constant, DictOf, Expression, Json, ListOf, Reference
from .expressions import Handle, Mention
from .joined import Lazy


def data_of_value(value: Any, origin: Origin) -> Expression:
    """`value` as an expression. Lazy values (joins, tool calls) and `s.ref(...)` are mentioned, not waited for.

    Raises:
        ProgramError: something in it is not JSON-like data.
    """
    match value:
        case None | bool() | int() | float() | str():
            return Constant(value.value if isinstance(value, Enum) else value)
        case Lazy():
            return value.bound.expression
        case Mention():
            return _of_mention(value)
        case Handle():
            raise ProgramError(
                f"{value!r} is a call, not its value",
                hint="s[...] reads the value, s.ref(...) mentions it without waiting",
                origin=origin,
            )
        case dict() if all(isinstance(key, str) for key in value):
            return _of_dict(value, origin)
        case list() | tuple():
            return _of_items([data_of_value(item, origin) for item in value])
    return Constant(_dumped(value, origin))


def _of_mention(mention: Mention) -> Expression:
    """The value itself, not its text, where one value is mentioned."""
    match mention.pieces:
        case [Reference() as only]:
            return only
    return Concat(tuple(piece if isinstance(piece, Reference) else Constant(piece.text) for piece in mention.pieces))


def _of_items(items: list[Expression]) -> Expression:
    if all(isinstance(item, Constant) for item in items):
        return Constant([item.value for item in items if isinstance(item, Constant)])
    return ListOf(tuple(items))


def _of_dict(value: dict[str, Any], origin: Origin) -> Expression:
    pairs = tuple((key, data_of_value(item, origin)) for key, item in value.items())
    if all(isinstance(item, Constant) for _, item in pairs):
        return Constant({key: item.value for key, item in pairs if isinstance(item, Constant)})
    return DictOf(pairs)


def _dumped(value: Any, origin: Origin) -> Json:
    """Objects of the kinds `type=` can produce, as the JSON they came from."""
    if isinstance(value, Enum):
        return _dumped(value.value, origin) if not isinstance(value.value, (str, int, float)) else value.value
    base_model = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    if is_dataclass(value) or (base_model is not None and isinstance(value, base_model)):
        from pydantic_core import PydanticSerializationError, to_jsonable_python

        try:
            dumped: Json = to_jsonable_python(value)
        except PydanticSerializationError as error:
            raise _not_data(value, origin) from error
        return dumped
    raise _not_data(value, origin)


def _not_data(value: Any, origin: Origin) -> ProgramError:
    return ProgramError(
        f"a {type(value).__name__} is not data that a graph can hold",
        hint="use JSON-like values, dataclasses, enums or pydantic models",
        origin=origin,
    )
