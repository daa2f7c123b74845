"""The tokenizer inside a GGUF file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ModelLoadError
from .bpe_tokenizer import SPACE_MARK, BpeTokenizer, Vocabulary, is_word, without_markers
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
        return {text: i for i, (text, kind) in enumerate(self._typed()) if _is_marker(text, kind)}

    def words(self) -> list[str]:
        """Added tokens that content may contain."""
        return [text for text, kind in self._typed() if kind == _USER_DEFINED and is_word(text)]

    def _typed(self) -> Iterable[tuple[str, int]]:
        return zip(self.texts, self.kinds, strict=True)


def _is_marker(text: str, kind: int) -> bool:
    return kind in _HIDDEN or (kind == _USER_DEFINED and not is_word(text))


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
        plain = _sentence_piece(tokens)
        vocabulary = _vocabulary(tokens, metadata, fingerprint, byte_level=False, adds_bos=True)
    else:
        raise ModelLoadError(
            f"the file's tokenizer is of kind {kind!r}; gpt2 (byte-level BPE) and llama (SentencePiece BPE) can be read",
            hint="use the model's Hugging Face folder, which holds its tokenizer.json",
        )
    return BpeTokenizer(plain, vocabulary)


def _tokens(metadata: Mapping[str, Any]) -> _Tokens:
    texts = metadata.get("tokenizer.ggml.tokens")
    if not texts:
        raise ModelLoadError("the file holds no tokenizer", hint="use a GGUF file with a vocabulary")
    kinds = metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(texts)
    if len(kinds) != len(texts):
        raise ModelLoadError(f"{len(texts)} tokens but {len(kinds)} token types", hint="download the file again")
    return _Tokens(texts, kinds, metadata.get("tokenizer.ggml.scores") or [])


def _vocabulary(
    tokens: _Tokens, metadata: Mapping[str, Any], fingerprint: str, *, byte_level: bool, adds_bos: bool
) -> Vocabulary:
    asked = metadata.get("tokenizer.ggml.add_bos_token")
    stops = (metadata.get(f"tokenizer.ggml.{key}") for key in _STOP_KEYS)
    return Vocabulary(
        token_bytes=[_bytes_of(t, k, byte_level) for t, k in zip(tokens.texts, tokens.kinds, strict=True)],
        markers=tokens.markers(),
        stop_ids=frozenset(token_id for token_id in stops if token_id is not None),
        bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
        adds_bos=adds_bos if asked is None else asked,
        fingerprint=fingerprint,
        unseen_bytes=unseen_bytes(tokens.texts) if byte_level else b"",
        space_after_marker=not byte_level and metadata.get("tokenizer.ggml.add_space_prefix", True),
    )


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
    vocab = {text: i for i, text in enumerate(tokens.texts) if text not in hidden}
    merges = without_markers(metadata.get("tokenizer.ggml.merges", ()), hidden)
    plain = Tokenizer(_model(models.BPE, vocab=vocab, merges=merges, ignore_merges=pre.whole_words))
    plain.pre_tokenizer = pre.build()
    if pre.nfc:
        plain.normalizer = normalizers.NFC()
    plain.add_tokens([AddedToken(text, normalized=False) for text in tokens.words()])
    return plain


def _sentence_piece(tokens: _Tokens) -> Any:
    """BPE over whole text with bytes as fallback. Nothing is put in front: segments start in mid-text."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers

    hidden = tokens.markers()
    vocab = {text: i for i, text in enumerate(tokens.texts) if text not in hidden}
    merges = _merges_by_score(tokens)
    plain = Tokenizer(_model(models.BPE, vocab=vocab, merges=merges, byte_fallback=True))
    plain.normalizer = normalizers.Replace(" ", SPACE_MARK)
    plain.add_tokens([AddedToken(text, normalized=False) for text in tokens.words()])
    return plain


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
