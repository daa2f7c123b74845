"""Evaluating what nodes mention."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

from ...ir.nodes import Concat, Constant, DictOf, Expression, ListOf, Piece, Plain, Raw, Reference
from ...ir.operations import apply_all
from ..text.protocol import TextPiece

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
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def say(piece: Piece, lookup: Lookup) -> TextPiece:
    """A piece of a Text node as text. Only Raw may hold control tokens."""
    match piece:
        case Plain(text):
            return TextPiece(text)
        case Raw(text):
            return TextPiece(text, control=True)
        case Reference():
            return TextPiece(text_of(evaluate(piece, lookup)))
