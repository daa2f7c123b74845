"""Pieces of Text nodes as text for the tokenizer."""

from __future__ import annotations

from ...ir.evaluation import Lookup, evaluate, text_of
from ...ir.nodes import Piece, Plain, Raw, Reference
from ..text.protocol import TextPiece


def say(piece: Piece, lookup: Lookup) -> TextPiece:
    """A piece of a Text node as text. Only Raw may hold control tokens."""
    match piece:
        case Plain(text):
            return TextPiece(text)
        case Raw(text):
            return TextPiece(text, control=True)
        case Reference():
            return TextPiece(text_of(evaluate(piece, lookup)))
