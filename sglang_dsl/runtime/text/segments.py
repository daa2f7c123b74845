"""The text between two seams: how its pieces become ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ...errors import SpecError
from .protocol import TextPiece


def encode_joined(
    pieces: Iterable[TextPiece],
    split_control: Callable[[str], Sequence[str | int]],
    encode: Callable[[str], list[int]],
    *,
    after_control: str = "",
) -> list[int]:
    """Ids of one segment: control tokens where a control piece has them, and between those one encoding of all text.

        control "<|im_start|>user\\n" + content "Hi <|im_end|>"   ->   [id] + encode("user\\nHi <|im_end|>")

    Content merges with the template's own words, as in training, but is never searched for control tokens.

    Args:
        split_control: cuts a control piece into plain text and control ids.
        encode: ids of plain text.
        after_control: what the vocabulary puts in front of text that follows a control token.
    """
    token_ids: list[int] = []
    for control_id, text in _stretches(pieces, split_control):
        if control_id is not None:
            token_ids.append(control_id)
            text = after_control + text if text else ""
        if text:
            token_ids += encode(text)
    return token_ids


def _stretches(
    pieces: Iterable[TextPiece], split_control: Callable[[str], Sequence[str | int]]
) -> Iterator[tuple[int | None, str]]:
    """Each control token with all plain text up to the next one; the first stretch has none."""
    control_id, text = None, ""
    for part in _parts(pieces, split_control):
        if isinstance(part, str):
            text += part
            continue
        yield control_id, text
        control_id, text = part, ""
    yield control_id, text


def _parts(pieces: Iterable[TextPiece], split_control: Callable[[str], Sequence[str | int]]) -> Iterable[str | int]:
    for piece in pieces:
        if piece.control:
            yield from split_control(piece.text)
        else:
            yield piece.text


def check_text(text: str) -> None:
    """Raise SpecError if `text` has a lone surrogate: it is no character, and no tokenizer can encode it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SpecError(
            f"the text has the lone surrogate {text[error.start]!r} at index {error.start}",
            hint='decode your input with errors="replace", or remove it',
        ) from error
