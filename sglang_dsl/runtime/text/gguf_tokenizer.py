"""The tokenizer inside a GGUF file."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ModelLoadError
from .bpe_tokenizer import SPACE_MARK, BpeTokenizer, Vocabulary, looks_like_marker, without_markers
from .byte_alphabet import piece_bytes, unseen_bytes
from .pre_tokenizers import PreTokenizer, pre_tokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_HIDDEN = frozenset({_UNKNOWN, _CONTROL, _UNUSED})
_STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The vocabulary as stored: text, type (one of the constants above) and, for SentencePiece, score by id."""

    texts: Sequence[str]
    kinds: Sequence[int]
    scores: Sequence[float]

    def markers(self) -> dict[str, int]:
        """Tokens that only control text may contain."""
        found: dict[str, int] = {}
        for i, (text, kind) in enumerate(self._typed()):
            if _is_marker(text, kind):
                found.setdefault(text, i)  # of two entries of one text the first counts, as in the `tokenizers` library
        return found

    def vocab(self) -> dict[str, int]:
        """Id by text of what content may contain."""
        hidden = self.markers()
        found: dict[str, int] = {}
        for i, text in enumerate(self.texts):
            if text not in hidden:
                found.setdefault(text, i)
        return found

    def words(self) -> list[str]:
        """Added tokens that content may contain."""
        return [text for text, kind in self._typed() if kind == _USER_DEFINED and not looks_like_marker(text)]

    def _typed(self) -> Iterable[tuple[str, int]]:
        return zip(self.texts, self.kinds, strict=True)


def _is_marker(text: str, kind: int) -> bool:
    return kind in _HIDDEN or (kind == _USER_DEFINED and looks_like_marker(text))


def tokenizer_from_gguf(metadata: Mapping[str, Any], fingerprint: str) -> BpeTokenizer:
    """Build the tokenizer that a GGUF file's metadata describe.

    Raises:
        ModelLoadError: the file has no tokenizer, or one of a kind that is not known here.
    """
    kind = metadata.get("tokenizer.ggml.model")
    tokens = _tokens(metadata)
    if kind == "gpt2":
        pre = pre_tokenizer(metadata.get("tokenizer.ggml.pre", "default"))
        plain = _byte_level(tokens, metadata, pre)
        vocabulary = _vocabulary(tokens, metadata, fingerprint, byte_level=True, adds_bos=pre.adds_bos)
    elif kind == "llama":
        plain, prefixed = _sentence_piece(tokens, _unknown_id(tokens, metadata))
        vocabulary = _vocabulary(tokens, metadata, fingerprint, byte_level=False, adds_bos=True)
        if metadata.get("tokenizer.ggml.add_space_prefix", True):
            return BpeTokenizer(plain, vocabulary, first=prefixed, behind_marker=prefixed)
    else:
        raise ModelLoadError(
            f"the file's tokenizer is of kind {kind!r}; gpt2 (byte-level BPE) and llama (SentencePiece BPE) can be read",
            hint="use the model's Hugging Face folder, which holds its tokenizer.json",
        )
    return BpeTokenizer(plain, vocabulary)


def _tokens(metadata: Mapping[str, Any]) -> _Tokens:
    texts = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(texts, list) or not texts:
        raise ModelLoadError("the file holds no tokenizer", hint="use a GGUF file with a vocabulary")
    kinds = metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(texts)
    if len(kinds) != len(texts):
        raise ModelLoadError(f"{len(texts)} tokens but {len(kinds)} token types", hint="download the file again")
    return _Tokens(texts, kinds, metadata.get("tokenizer.ggml.scores") or [])


def _unknown_id(tokens: _Tokens, metadata: Mapping[str, Any]) -> int | None:
    """The file's unknown token, if it is one of its tokens."""
    named = metadata.get("tokenizer.ggml.unknown_token_id")
    if named is None:
        return next((i for i, kind in enumerate(tokens.kinds) if kind == _UNKNOWN), None)
    return named if isinstance(named, int) and 0 <= named < len(tokens.texts) else None


def _vocabulary(
    tokens: _Tokens, metadata: Mapping[str, Any], fingerprint: str, *, byte_level: bool, adds_bos: bool
) -> Vocabulary:
    asked = metadata.get("tokenizer.ggml.add_bos_token")
    if asked is not None and not isinstance(asked, int):
        raise ModelLoadError(f"add_bos_token is {asked!r}; it has to be true or false", hint="download the file again")
    stops = (_token_id(metadata, key) for key in _STOP_KEYS)
    return Vocabulary(
        token_bytes=[_bytes_of(t, k, byte_level) for t, k in zip(tokens.texts, tokens.kinds, strict=True)],
        markers=tokens.markers(),
        stop_ids=frozenset(token_id for token_id in stops if token_id is not None),
        bos_id=_token_id(metadata, "bos_token_id"),
        adds_bos=adds_bos if asked is None else bool(asked),
        fingerprint=fingerprint,
        unseen_bytes=unseen_bytes(tokens.texts) if byte_level else b"",
        words=frozenset(tokens.words()),
        unknown_id=None if byte_level else _unknown_id(tokens, metadata),
    )


def _token_id(metadata: Mapping[str, Any], key: str) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ModelLoadError(f"{key} is {value!r}; it has to be a token id", hint="download the file again")
    return value


def _bytes_of(text: str, kind: int, byte_level: bool) -> bytes:
    if kind in _HIDDEN:
        return b""
    if kind == _USER_DEFINED:
        return text.encode()
    if byte_level:
        return piece_bytes(text)
    if kind == _BYTE:
        return bytes([int(text[1:-1], 16)])  # <0x0A>
    return text.replace(SPACE_MARK, " ").encode()


def _byte_level(tokens: _Tokens, metadata: Mapping[str, Any], pre: PreTokenizer) -> Any:
    from tokenizers import AddedToken, Tokenizer, models, normalizers

    hidden = tokens.markers()
    vocab = tokens.vocab()
    merges = without_markers(metadata.get("tokenizer.ggml.merges", ()), hidden)
    plain = Tokenizer(_model(models.BPE, vocab=vocab, merges=merges, ignore_merges=pre.whole_words))
    plain.pre_tokenizer = pre.build()
    if pre.nfc:
        plain.normalizer = normalizers.NFC()
    plain.add_tokens([AddedToken(text, normalized=False) for text in tokens.words()])
    return plain


def _sentence_piece(tokens: _Tokens, unknown_id: int | None) -> tuple[Any, Any]:
    """BPE over whole text with bytes as fallback: one that puts nothing in front (segments start in mid-text), and one that
    puts SentencePiece's space there. A character without a token or bytes is the unknown token.
    """
    from tokenizers import AddedToken, Tokenizer, models, normalizers

    vocab, options = tokens.vocab(), {}
    if unknown_id is not None:
        unknown = f"{tokens.texts[unknown_id]}{secrets.token_hex(16)}"  # a name that no content can spell
        vocab[unknown] = unknown_id
        options = {"unk_token": unknown, "fuse_unk": True}
    plain = Tokenizer(_model(models.BPE, vocab=vocab, merges=_merges_by_score(tokens), byte_fallback=True, **options))
    prefixed = Tokenizer(plain.model)
    spaces = normalizers.Replace(" ", SPACE_MARK)
    plain.normalizer = spaces
    prefixed.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), spaces])
    for encoder in (plain, prefixed):
        encoder.add_tokens([AddedToken(text, normalized=False) for text in tokens.words()])
    return plain, prefixed


def _model(bpe: Any, **parts: Any) -> Any:
    try:
        return bpe(**parts)
    except Exception as error:  # the library raises a bare Exception for any fault in the tables
        raise ModelLoadError(f"the file's vocabulary is damaged: {error}", hint="download the file again") from error


def _merges_by_score(tokens: _Tokens) -> list[tuple[str, str]]:
    """The merges a SentencePiece BPE vocabulary implies: every pair of entries that makes an entry, best score first.

    Source: transformers, convert_slow_tokenizer.py (generate_merges).
    """
    if len(tokens.scores) != len(tokens.texts):
        raise ModelLoadError("the file's SentencePiece vocabulary has no scores", hint="download the file again")
    index = {t: i for i, (t, k) in enumerate(zip(tokens.texts, tokens.kinds, strict=True)) if k == _NORMAL}
    ranked = [
        (-tokens.scores[i], index[left], index[right], left, right)
        for text, i in index.items()
        for left, right in _halves(text)
        if left in index and right in index
    ]
    return [(left, right) for *_, left, right in sorted(ranked)]


def _halves(text: str) -> Iterator[tuple[str, str]]:
    return ((text[:i], text[i:]) for i in range(1, len(text)))
