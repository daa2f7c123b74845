"""The text between two seams: how its pieces become ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

from ...errors import SpecError
from .protocol import TextPiece

# Where a stretch of plain text stands. Vocabularies with a dummy prefix (SentencePiece) read the beginning of a prompt and
# text behind a control token with a space in front; text that goes on in the middle never gets one.
Place: TypeAlias = Literal["first", "behind_marker", "middle"]

# What a marker that strips takes away. Source: Unicode's White_Space, as the `tokenizers` library's patterns read it.
_WHITE_SPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


class Marker(NamedTuple):
    """A control token in control text. strips_left, strips_right: it takes the white space beside it into itself."""

    token_id: int
    strips_left: bool = False
    strips_right: bool = False


def encode_joined(
    pieces: Iterable[TextPiece],
    split_control: Callable[[str], Sequence[str | Marker]],
    encode: Callable[[str, Place], list[int]],
    *,
    first: bool,
) -> list[int]:
    """Ids of one segment: control tokens where a control piece has them, and between those one encoding of all text.

        control "<|im_start|>user\\n" + content "Hi <|im_end|>"   ->   [id] + encode("user\\nHi <|im_end|>")

    Content merges with the template's own words, as in training, but is never searched for control tokens.

    Args:
        split_control: cuts a control piece into plain text and markers.
        encode: ids of plain text at its place.
        first: whether this segment begins the prompt.
    """
    token_ids: list[int] = []
    place: Place = "first" if first else "middle"
    for before, text, after in _stretches(pieces, split_control):
        if before is not None:
            token_ids.append(before.token_id)
            place = "behind_marker"
            text = text.lstrip(_WHITE_SPACE) if before.strips_right else text
        if after is not None and after.strips_left:
            text = text.rstrip(_WHITE_SPACE)
        if text:
            token_ids += encode(text, place)
    return token_ids


def _stretches(
    pieces: Iterable[TextPiece], split_control: Callable[[str], Sequence[str | Marker]]
) -> Iterator[tuple[Marker | None, str, Marker | None]]:
    """All plain text between one marker and the next, with both; the first stretch and the last lack one."""
    before: Marker | None = None
    text = ""
    for part in _parts(pieces, split_control):
        if isinstance(part, str):
            text += part
            continue
        yield before, text, part
        before, text = part, ""
    yield before, text, None


def _parts(
    pieces: Iterable[TextPiece], split_control: Callable[[str], Sequence[str | Marker]]
) -> Iterable[str | Marker]:
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
