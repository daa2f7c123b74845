"""Tokenizer over the `tokenizers` library, wherever the model's files came from.

Byte-level BPE vocabularies write bytes as printable characters. Source: GPT-2's encoder (openai/gpt-2, src/encoder.py): printable
Latin-1 stands for itself, the rest follows from U+0100.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from ...errors import ModelLoadError, SpecError
from .tokenizer import Marker, Place, TextPiece, check_text, encode_joined, utf8_size

SPACE_MARK = "\u2581"  # stands for a space in SentencePiece vocabularies

MOST_COMPOSED = (
    4  # bytes that become one where characters are composed: a mathematical letter (4) becomes a plain one (1)
)
_COMPOSE = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase"}
_KEEP = {"Prepend", "ByteLevel"}  # normalizers and pre-tokenizers that let no text vanish
_SPLIT = {"ByteLevel", "Split", "Digits", "Metaspace", "Punctuation", "UnicodeScripts"}
_DECODERS = frozenset({"ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip", "BPEDecoder", "Sequence"})

_log = logging.getLogger(__name__)
_BRACKETED = re.compile(r"\s*(<.*\w.*>|\[.*\w.*\]|\{.*\w.*\}|\|.*\w.*\|)\s*", re.DOTALL)


def looks_like_marker(added: str) -> bool:
    """Whether an added token that is not special is kept out of content all the same: a name in brackets or bars
    (`<think>`, `[TOOL]`, `<|x|>`). Words, signs and white space (`C++`, `->`, four blanks) are content like any other.
    """
    return _BRACKETED.fullmatch(added) is not None


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

    token_bytes: per row of the logits; b"" for tokens whose text is never shown. markers: text -> id of the tokens that only
    control text may contain. strips_left, strips_right, whole_words: the markers that take the white space before or behind
    them into themselves, and those that are none in the middle of a word. words: added tokens that content may contain; where
    one covers a marker, it wins. found_late: the added tokens that are only searched for where no other was found. unseen_bytes: bytes no token can stand for.
    unknown_id: the token that stands for characters without one; the only special one that content may become.
    """

    token_bytes: Sequence[bytes]
    markers: Mapping[str, int]
    stop_ids: frozenset[int]
    bos_id: int | None
    adds_bos: bool
    fingerprint: str
    strips_left: frozenset[str] = frozenset()
    strips_right: frozenset[str] = frozenset()
    whole_words: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()
    found_late: frozenset[str] = frozenset()
    unseen_bytes: bytes = b""
    unknown_id: int | None = None


class BpeTokenizer:
    """Implements `Tokenizer`.

    An added token that is not special (`<think>`, `<tool_call>`, an HTML tag of Gemma's) is kept out of content like
    every marker, but its text is shown when the model generates it. A stop id without a row in the logits can never be
    sampled; it is left out with a warning.

    Args:
        plain: a `tokenizers.Tokenizer` that puts nothing in front of a text and knows no markers.
        first: the same for text that begins a prompt; behind_marker: for text behind a control token. Where the vocabulary
            has a dummy prefix these put it in front. None: as `plain`.

    Raises:
        ModelLoadError: content could forge a marker.
    """

    def __init__(self, plain: Any, vocabulary: Vocabulary, *, first: Any = None, behind_marker: Any = None) -> None:
        self._encoders: dict[Place, Any] = {
            "middle": plain,
            "first": first or plain,
            "behind_marker": behind_marker or plain,
        }
        self._vocabulary = vocabulary
        self._token_bytes = vocabulary.token_bytes
        self._markers = _MarkerFinder(vocabulary)
        self._unseen = vocabulary.unseen_bytes
        self.vocab_size = len(vocabulary.token_bytes)
        self.bos_id = vocabulary.bos_id if vocabulary.bos_id in range(self.vocab_size) else None
        self.adds_bos = vocabulary.adds_bos and self.bos_id is not None
        self.stop_ids = _stop_ids(vocabulary)
        nameless = (i for i, raw in enumerate(vocabulary.token_bytes) if not raw)  # rows of the logits without a token
        self.control_ids = frozenset(vocabulary.markers.values()).union(nameless)
        self.fingerprint = vocabulary.fingerprint
        self.split_control = lru_cache(maxsize=1024)(self._markers.split)  # templates repeat themselves
        self._most_bytes = _most_bytes(plain, vocabulary)
        self._check_markers()

    def encode(self, text: str, *, first: bool = False) -> list[int]:
        """See `Tokenizer`.

        Raises:
            SpecError: a lone surrogate, or a character this vocabulary has no token for.
        """
        return self._encode(text, "first" if first else "middle")

    def encode_segment(self, pieces: Sequence[TextPiece], *, first: bool = False) -> list[int]:
        """Ids of one segment; control tokens are recognised in control pieces only. `first` as in `encode`."""
        return encode_joined(pieces, self.split_control, self._encode, first=first)

    def fewest_tokens(self, text: str, enough: int) -> int:
        """A number of tokens that a content text has at least, found much faster than by encoding it: 0 where nothing is known.

        White space at either end may belong to a marker beside it.
        """
        return 0 if self._most_bytes is None else -(-utf8_size(text.strip()) // self._most_bytes)

    def token_bytes(self, token_id: int) -> bytes:
        """The raw bytes a token stands for (may be part of a character); b"" for one that is never shown.

        Raises IndexError for an id outside the vocabulary.
        """
        return self._token_bytes[token_id]

    def decode(self, token_ids: Sequence[int]) -> str:
        """UTF-8 text of the tokens' bytes, invalid bytes replaced; special tokens left out."""
        return b"".join([self._token_bytes[token_id] for token_id in token_ids]).decode("utf-8", "replace")

    def _encode(self, text: str, place: Place) -> list[int]:
        check_text(text)
        if self._unseen:
            self._check_bytes(text)
        ids: list[int] = self._encoders[place].encode(text, add_special_tokens=False).ids
        return ids

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
        encoders = {id(encoder): encoder for encoder in self._encoders.values()}.values()
        for (
            text,
            token_id,
        ) in self._vocabulary.markers.items():  # one by one: a batch would start threads, which fork dislikes
            for encoder in encoders if token_id != self._vocabulary.unknown_id else ():
                if token_id in encoder.encode(text, add_special_tokens=False).ids:
                    raise ModelLoadError(
                        f"the tokenizer makes the control token {text!r} out of plain text, so content could forge it",
                        hint="report this model; it cannot be used safely",
                    )


class _MarkerFinder:
    """Finds markers in control text, at each place the longest; markers number up to thousands."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._markers = {
            text: Marker(token_id, text in vocabulary.strips_left, text in vocabulary.strips_right)
            for text, token_id in vocabulary.markers.items()
            if text
        }
        self._whole_words = vocabulary.whole_words
        self._late = vocabulary.found_late
        begins = {text[0] for text in self._markers}
        self._words = frozenset(word for word in vocabulary.words if not begins.isdisjoint(word))
        lengths: dict[str, set[int]] = {}
        for text in (*self._markers, *self._words):
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self._begin = re.compile("[" + "".join(map(re.escape, self._lengths)) + "]") if lengths else None

    def split(self, text: str) -> tuple[str | Marker, ...]:
        """Plain text and markers, in order."""
        parts: list[str | Marker] = []
        begin = end = 0
        while self._begin is not None and (candidate := self._begin.search(text, end)) is not None:
            at = candidate.start()
            found = self._at(text, at)
            end = at + (len(found) if found else 1)
            if found in self._markers:
                parts += [text[begin:at], self._markers[found]]
                begin = end
        return tuple(part for part in (*parts, text[begin:]) if part != "")

    def _at(self, text: str, at: int) -> str:
        late = ""
        for length in self._lengths[text[at]]:
            found = text[at : at + length]
            if found not in self._markers and found not in self._words:
                continue
            if found in self._whole_words and _inside_word(text, at, at + length):
                continue
            if found not in self._late:
                return found
            late = late or found
        return late


def _inside_word(text: str, begin: int, end: int) -> bool:
    return any(char.isalnum() or char == "_" for char in (text[begin - 1 : begin] + text[end : end + 1]))


def _most_bytes(plain: Any, vocabulary: Vocabulary) -> int | None:
    """How many bytes of text a token stands for at most; None where text may vanish: a step that drops some of it, or one token
    for any number of unknown characters.
    """
    normalizers, splits = list(_steps(plain.normalizer)), list(_steps(plain.pre_tokenizer))
    kinds = {step["type"] for step in splits}
    complete = "ByteLevel" in kinds or getattr(plain.model, "byte_fallback", False)
    if vocabulary.unknown_id is not None and not complete:
        return None
    for step in normalizers:
        replaced, by = step.get("pattern", {}).get("String", ""), step.get("content", "")
        if step["type"] == "Replace" and not 0 < len(replaced.encode()) <= len(by.encode()):
            return None
    if not {step["type"] for step in normalizers} <= _KEEP | _COMPOSE | {"Replace"}:
        return None
    if not kinds <= _SPLIT or any(step.get("behavior") == "Removed" for step in splits):
        return None
    composed = sum(step["type"] in _COMPOSE for step in normalizers)
    longest: int = max(map(len, vocabulary.token_bytes), default=1)
    return max(1, longest) * int(MOST_COMPOSED**composed)


def _steps(part: Any) -> Iterator[Mapping[str, Any]]:
    """A normalizer or pre-tokenizer of the library, and those it is made of, as its own JSON says."""
    waiting = [] if part is None else [json.loads(part.__getstate__())]
    while waiting:
        step = waiting.pop()
        waiting += step.get("normalizers", ()) or step.get("pretokenizers", ())
        if step["type"] != "Sequence":
            yield step


def _stop_ids(vocabulary: Vocabulary) -> frozenset[int]:
    rows = len(vocabulary.token_bytes)
    outside = sorted(i for i in vocabulary.stop_ids if not 0 <= i < rows)
    if outside:
        shown = ", ".join(map(str, outside))
        _log.warning("stop ids without a row in the model's logits (0 to %d) are left out: %s", rows - 1, shown)
    return frozenset(vocabulary.stop_ids.difference(outside))


_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


@cache
def byte_of_char() -> dict[str, int]:
    """Byte by the character that stands for it."""
    others = [byte for byte in range(256) if byte not in _PRINTABLE]
    table = {chr(byte): byte for byte in _PRINTABLE}
    return table | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def piece_bytes(piece: str) -> bytes:
    """The bytes a vocabulary entry stands for; an entry outside the alphabet (an added token) stands for its own text."""
    table = byte_of_char()
    try:
        return bytes([table[char] for char in piece])
    except KeyError:
        return piece.encode()


def unseen_bytes(pieces: Iterable[str]) -> bytes:
    """The bytes that have no entry of their own: text with them cannot be encoded."""
    known = {piece for piece in pieces if len(piece) == 1}
    return bytes(byte for char, byte in byte_of_char().items() if char not in known)


def parts_of(part: Any) -> Iterator[Mapping[str, Any]]:
    """A normalizer, pre-tokenizer, decoder or post-processor and all that it is made of."""
    if isinstance(part, dict):
        yield part
        for key in ("normalizers", "pretokenizers", "decoders", "processors"):
            for inner in part.get(key) or ():
                yield from parts_of(inner)


class PieceDecoder:
    """The bytes of single pieces of a vocabulary that is not byte-level, read off its decoder."""

    def __init__(self, stored: Mapping[str, Any]) -> None:
        parts = list(parts_of(stored.get("decoder")))
        kinds = {str(part.get("type")) for part in parts}
        if unknown := sorted(kinds - _DECODERS):
            raise ModelLoadError(
                f"the tokenizer's decoder {', '.join(unknown)} is not known here",
                hint="use a model with a byte-level or SentencePiece-like tokenizer",
            )
        self._falls_back = bool(stored["model"].get("byte_fallback")) or "ByteFallback" in kinds
        self._marks = {SPACE_MARK: " "}
        self._suffix = ""
        for part in parts:
            if part.get("type") == "Metaspace":
                self._marks[part.get("replacement", SPACE_MARK)] = " "
            elif part.get("type") == "BPEDecoder":
                self._suffix = part.get("suffix", "</w>")
            elif part.get("type") == "Replace" and "String" in part.get("pattern", {}):
                self._marks[part["pattern"]["String"]] = part.get("content", "")

    def bytes_of(self, piece: str) -> bytes:
        """What a piece adds to the text."""
        if self._falls_back and len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:5], 16)])
        ends_word = bool(self._suffix) and piece.endswith(self._suffix)
        text = piece.removesuffix(self._suffix) if ends_word else piece
        for mark, shown in self._marks.items():
            text = text.replace(mark, shown)
        return (text + " " * ends_word).encode()
