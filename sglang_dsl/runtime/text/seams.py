"""Seams: where two neighbouring stretches of a prompt are encoded apart, and what joint encoding would have given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .protocol import TextPiece, Tokenizer


@dataclass(frozen=True, slots=True)
class SeamDifference:
    """The tokens around a seam that would be others if nothing were cut there; common ends are left out."""

    apart: tuple[bytes, ...]
    joint: tuple[bytes, ...]

    def __str__(self) -> str:
        return f"{_show(self.apart)} instead of {_show(self.joint)}"


def seam_difference(
    tokenizer: Tokenizer, before: Sequence[TextPiece], after: Sequence[TextPiece]
) -> SeamDifference | None:
    """How the ids around the seam between two segments differ from those of one encoding; None if they do not.

    "value: " | "Paris"    ->   [" ", "Paris"] instead of [" Paris"]
    """
    apart = tokenizer.encode_segment(before) + tokenizer.encode_segment(after)
    joint = tokenizer.encode_segment([*before, *after])
    if apart == joint:
        return None
    head = _common(apart, joint)
    tail = _common(apart[head:][::-1], joint[head:][::-1])
    return SeamDifference(
        tuple(tokenizer.token_bytes(i) for i in apart[head : len(apart) - tail]),
        tuple(tokenizer.token_bytes(i) for i in joint[head : len(joint) - tail]),
    )


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _show(pieces: Sequence[bytes]) -> str:
    return "[" + ", ".join(repr(piece.decode("utf-8", "backslashreplace")) for piece in pieces) + "]"
