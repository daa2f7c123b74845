"""Expressions, pieces and choices as plain JSON data and back (see `codec.py`)."""

from __future__ import annotations

from typing import Any

from ..errors import FormatError
from .expressions import MAX_DATA_DEPTH, is_too_deep
from .nodes import Concat, Constant, DictOf, Expression, Json, ListOf, Operation, Piece, Plain, Raw, Reference
from .outcome_codec import decode_value, encode_value
from .specs import shown as shown


def encode_expression(expression: Expression | None) -> Json:
    """An expression as data (see the head of this file)."""
    match expression:
        case None:
            return None
        case Constant(value=value, to_json=to_json):
            plain = _finite(encode_value(value if to_json is None else to_json(value)))
            return {"const": plain} if plain is None or isinstance(plain, list | dict) else plain
        case Reference(node_id=node_id, operations=operations):
            reference: dict[str, Json] = {"ref": node_id}
            if operations:
                reference["ops"] = [[o.name, *o.args] for o in operations]
            return reference
        case ListOf(items):
            return [encode_expression(item) for item in items]
        case DictOf(pairs):
            return {"dict": [[key, encode_expression(item)] for key, item in pairs]}
        case Concat(parts):
            return {"concat": [encode_expression(part) for part in parts]}


def _finite(plain: Any) -> Any:
    """Data of a constant. A record of outcomes holds nan and infinity; a graph, which others run, does not."""
    match plain:
        case {"$float": text}:
            raise FormatError(f"{text} is not JSON", hint="pass it as text, or None where there is no number")
        case list():
            return list(map(_finite, plain))
        case dict():
            return {key: _finite(item) for key, item in plain.items()}
    return plain


def decode_expression(data: Any, where: str) -> Expression | None:
    """The expression of `encode_expression`. Raises FormatError."""
    match data:
        case None:
            return None
        case bool() | int() | float() | str():
            return Constant(data)
        case list():
            return ListOf(tuple(decode_some_expression(item, where) for item in data))
        case {"const": value, **rest} if not rest:
            return Constant(decode_value(value))
        case {"dict": list() as pairs, **rest} if not rest:
            return DictOf(tuple(_pair(pair, where) for pair in pairs))
        case {"concat": list() as parts, **rest} if not rest:
            return Concat(tuple(decode_some_expression(part, where) for part in parts))
        case {"ref": _}:
            return decode_reference(data, where)
    raise FormatError(f"{where}: {shown(data)} is not an expression")


def decode_some_expression(data: Any, where: str) -> Expression:
    """Like `decode_expression`, where there has to be one."""
    expression = decode_expression(data, where)
    if expression is None:
        raise FormatError(f"{where}: null stands inside an expression", hint='a None value is {"const": null}')
    return expression


def _pair(data: Any, where: str) -> tuple[str, Expression]:
    match data:
        case [str() as key, item]:
            return key, decode_some_expression(item, where)
    raise FormatError(f"{where}: {shown(data)} is not a key and an expression")


def decode_reference(data: Any, where: str) -> Reference:
    """The reference of `encode_expression`. Raises FormatError."""
    match data:
        case {"ref": str() as node_id, "ops": list() as operations, **rest} if not rest:
            check_nesting(operations, where)
            return Reference(node_id, tuple(_decode_operation(o, where) for o in operations))
        case {"ref": str() as node_id, **rest} if not rest:
            return Reference(node_id)
    raise FormatError(f"{where}: {shown(data)} is not a reference")


def _decode_operation(data: Any, where: str) -> Operation:
    match data:
        case [str() as name, *args]:
            return Operation(name, tuple(args))
    raise FormatError(f"{where}: {shown(data)} is not an operation")


def encode_piece(piece: Piece) -> Json:
    """A piece of a Text node: plain text is a string, Raw an object, a value a reference."""
    match piece:
        case Plain(text):
            return text
        case Raw(text):
            return {"raw": text}
    return encode_choice(piece)


def encode_choice(choice: str | Reference) -> Json:
    """A choice of a Select: a string or a reference."""
    return choice if isinstance(choice, str) else encode_expression(choice)


def decode_piece(data: Any, where: str) -> Piece:
    """The piece of `encode_piece`. Raises FormatError."""
    match data:
        case str():
            return Plain(data)
        case {"raw": str() as text, **rest} if not rest:
            return Raw(text)
    return decode_reference(data, where)


def decode_choice(data: Any, where: str) -> str | Reference:
    """The choice of `encode_choice`. Raises FormatError."""
    return data if isinstance(data, str) else decode_reference(data, where)


def check_nesting(data: Any, where: str) -> None:
    """Raise FormatError for plain data that is nested more deeply than anything could walk or print it."""
    if is_too_deep(data):
        raise FormatError(f"{where}: its data is nested more than {MAX_DATA_DEPTH} levels deep")
