"""Tokenizer over the `tokenizers` library, wherever the model's files came from."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from ...errors import ModelLoadError, SpecError
from .protocol import TextPiece
from .segments import check_text, encode_joined

SPACE_MARK = "\u2581"  # stands for a space in SentencePiece vocabularies


def is_word(added: str) -> bool:
    """Whether an added token that is not special may come from content: white space and words, but nothing that could
    be a marker (`<think>`, `[TOOL]`, `<|x|>`).
    """
    return all(char.isalnum() or char.isspace() or char == SPACE_MARK for char in added)


def without_markers(merges: Iterable[str | Sequence[str]], markers: Container[str]) -> list[tuple[str, str]]:
    """Merges as pairs, without those that have to do with a marker."""
    pairs = ((m.split(" ") if isinstance(m, str) else m) for m in merges)
    return [
        (left, right)
        for left, right in pairs
        if left not in markers and right not in markers and left + right not in markers
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What a model's files say about its tokens.

    token_bytes: per id; b"" for tokens whose text is never shown. markers: text -> id of the tokens that only control
    text may contain. unseen_bytes: bytes no token can stand for. space_after_marker: text behind a marker gets a space in
    front (SentencePiece's dummy prefix), as the model was trained; text behind a seam never does.
    """

    token_bytes: Sequence[bytes]
    markers: Mapping[str, int]
    stop_ids: frozenset[int]
    bos_id: int | None
    adds_bos: bool
    fingerprint: str
    unseen_bytes: bytes = b""
    space_after_marker: bool = False


class BpeTokenizer:
    """Implements `Tokenizer`.

    An added token that is not special (`<think>`, `<tool_call>`, an HTML tag of Gemma's) is kept out of content like
    every marker, but its text is shown when the model generates it.

    Args:
        plain: a `tokenizers.Tokenizer` that adds nothing and knows no markers.

    Raises:
        ModelLoadError: content could forge a marker.
    """

    def __init__(self, plain: Any, vocabulary: Vocabulary) -> None:
        self._plain = plain
        self._token_bytes = vocabulary.token_bytes
        self._markers = vocabulary.markers
        self._unseen = vocabulary.unseen_bytes
        self._after_control = " " if vocabulary.space_after_marker else ""
        self.vocab_size = len(vocabulary.token_bytes)
        self.bos_id = vocabulary.bos_id
        self.adds_bos = vocabulary.adds_bos
        self.stop_ids = vocabulary.stop_ids
        nameless = (i for i, raw in enumerate(vocabulary.token_bytes) if not raw)  # rows of the logits without a token
        self.control_ids = frozenset(vocabulary.markers.values()).union(nameless)
        self.fingerprint = vocabulary.fingerprint
        self.split_control = lru_cache(maxsize=1024)(self._split_control)
        self._check_markers()

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer`.

        Raises:
            SpecError: a lone surrogate, or a character this vocabulary has no token for.
        """
        check_text(text)
        if self._unseen:
            self._check_bytes(text)
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return ids

    def encode_segment(self, pieces: Sequence[TextPiece]) -> list[int]:
        """See `Tokenizer`."""
        return encode_joined(pieces, self.split_control, self.encode, after_control=self._after_control)

    def token_bytes(self, token_id: int) -> bytes:
        """See `Tokenizer`. Raises IndexError for an id outside the vocabulary."""
        return self._token_bytes[token_id]

    def decode(self, token_ids: Sequence[int]) -> str:
        """See `Tokenizer`."""
        return b"".join([self._token_bytes[token_id] for token_id in token_ids]).decode("utf-8", "replace")

    @cached_property
    def _marker_pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self._markers, key=len, reverse=True)
        return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    def _split_control(self, text: str) -> tuple[str | int, ...]:
        """Plain text and control ids of a control piece. Cached as `split_control`: templates repeat themselves."""
        if not self._markers:
            return (text,)
        return tuple(self._markers.get(part, part) for part in self._marker_pattern.split(text) if part)

    def _check_bytes(self, text: str) -> None:
        raw = text.encode()
        if len(raw.translate(None, self._unseen)) == len(raw):
            return
        index = next(i for i, c in enumerate(text) if any(byte in self._unseen for byte in c.encode()))
        raise SpecError(
            f"the model has no token for the character {text[index]!r} (U+{ord(text[index]):04X}) at index {index}",
            hint="remove the character, or write a name for it",
        )

    def _check_markers(self) -> None:
        for text, token_id in self._markers.items():  # one by one: a batch would start threads, which fork dislikes
            if token_id in self._plain.encode(text, add_special_tokens=False).ids:
                raise ModelLoadError(
                    f"the tokenizer makes the control token {text!r} out of plain text, so content could forge it",
                    hint="report this model; it cannot be used safely",
                )
