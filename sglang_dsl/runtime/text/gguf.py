"""What a GGUF file says about text: its header, and the tokenizer inside it. Nothing is read of the tensors themselves.

Source: the GGUF specification (ggml-org/ggml, docs/gguf.md), versions 2 and 3, little-endian. How text is cut before merges apply
goes by the name in `tokenizer.ggml.pre`; the patterns are those of the models' own tokenizer.json files (openai-community/gpt2,
HuggingFaceTB/SmolLM2, meta-llama/Meta-Llama-3, Qwen/Qwen2, Qwen/Qwen3.5, mistralai/Mistral-Nemo, deepseek-ai/DeepSeek-V3,
openai/o200k).
"""

from __future__ import annotations

import mmap
import secrets
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...errors import ModelLoadError
from .bpe_tokenizer import (
    SPACE_MARK,
    BpeTokenizer,
    Vocabulary,
    looks_like_marker,
    piece_bytes,
    unseen_bytes,
    without_markers,
)

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING = 8
_ARRAY = 9
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as stored: `shape` fastest dimension first, `kind` ggml's type number, `offset` from the data's start."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """metadata: values by key; arrays are lists. data_offset: bytes from the file's start to the first tensor."""

    metadata: Mapping[str, Any]
    tensors: tuple[TensorInfo, ...]
    data_offset: int


def read_header(path: Path) -> GgufHeader:
    """Read the header; read once for as long as the file stays the same.

    Raises:
        ModelLoadError: not a GGUF file, an unknown version, or a file that ends too early.
    """
    state = path.stat()
    return _read(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=4)
def _read(path: Path, size: int, changed_ns: int) -> GgufHeader:
    with path.open("rb") as file, _map(file.fileno(), path) as data:
        if data[:4] != _MAGIC:
            raise ModelLoadError(f"{path} is not a GGUF file", hint="give a .gguf file or a Hugging Face folder")
        try:
            return _Reader(data, path).header()
        except (struct.error, ArithmeticError, MemoryError, RecursionError, TypeError, ValueError) as error:
            raise ModelLoadError(
                f"the header of {path} is damaged or incomplete: {error}", hint="download the file again"
            ) from error


def _map(file_number: int, path: Path) -> mmap.mmap:
    try:
        return mmap.mmap(file_number, 0, access=mmap.ACCESS_READ)
    except ValueError as error:  # an empty file cannot be mapped
        raise ModelLoadError(f"{path} is empty", hint="download the file again") from error


class _Reader:
    """A cursor over the mapped file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._path = path
        self._at = len(_MAGIC)

    def header(self) -> GgufHeader:
        version = self._scalar("I")
        if version not in _VERSIONS:
            raise ModelLoadError(
                f"{self._path} has GGUF version {version}; versions {_VERSIONS} can be read",
                hint="convert the model again with a current tool (big-endian files cannot be read)",
            )
        tensor_count, pair_count = self._scalar("Q"), self._scalar("Q")
        metadata = {self._string(): self._value(self._scalar("I")) for _ in range(pair_count)}
        tensors = tuple(self._tensor() for _ in range(tensor_count))
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        return GgufHeader(metadata, tensors, -(-self._at // alignment) * alignment)

    def _tensor(self) -> TensorInfo:
        name = self._string()
        shape = self._scalars("Q", self._scalar("I"))
        return TensorInfo(name, shape, self._scalar("I"), self._scalar("Q"))

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(self._scalar("I"), self._scalar("Q"))
        return self._scalar(self._code(kind))

    def _array(self, kind: int, count: int) -> list[Any]:
        if kind in (_STRING, _ARRAY):
            return [self._value(kind) for _ in range(count)]
        return list(self._scalars(self._code(kind), count))

    def _code(self, kind: int) -> str:
        code = _SCALARS.get(kind)
        if code is None:
            raise ModelLoadError(f"{self._path} has metadata of unknown type {kind}", hint="download the file again")
        return code

    def _string(self) -> str:
        size = self._scalar("Q")
        raw = self._data[self._at : self._at + size]
        if len(raw) < size:
            raise struct.error(f"a string of {size} bytes passes the end of the file")
        self._at += size
        return raw.decode()

    def _scalar(self, code: str) -> Any:
        return self._scalars(code, 1)[0]

    def _scalars(self, code: str, count: int) -> tuple[Any, ...]:
        size = struct.calcsize("<" + code) * count
        if size > len(self._data) - self._at:
            raise struct.error(f"{count} values pass the end of the file")
        values = struct.unpack_from(f"<{count}{code}", self._data, self._at)
        self._at += size
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizer:
    """patterns: cut out one after the other. whole_words: a piece that is a vocabulary entry is taken without merging.
    adds_bos: what applies where the file does not say.
    """

    patterns: tuple[str, ...]
    nfc: bool = False
    whole_words: bool = False
    adds_bos: bool = False

    def build(self) -> Any:
        """The pre-tokenizer of the `tokenizers` library."""
        from tokenizers import Regex, pre_tokenizers

        splits = [pre_tokenizers.Split(Regex(p), behavior="isolated", invert=False) for p in self.patterns]
        return pre_tokenizers.Sequence(
            [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False, trim_offsets=False)]
        )


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BREAKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BREAKS}"
)


def _words(digits: str, letters: str = r"\p{L}") -> str:
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{digits}| ?[^\s{letters}\p{{N}}]+[\r\n]*|{_BREAKS}"


def _cased(digits: str, ending: str) -> str:
    return rf"{_UPPER}*{_LOWER}+{ending}|{_UPPER}+{_LOWER}*{ending}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BREAKS}"


_GPT2_WORDS = PreTokenizer(patterns=(_GPT2,))
_SINGLE_DIGITS = PreTokenizer(patterns=(r"\p{N}", _GPT2))
_LLAMA3 = PreTokenizer(patterns=(_words(r"\p{N}{1,3}"),), whole_words=True, adds_bos=True)
_QWEN2 = PreTokenizer(patterns=(_words(r"\p{N}"),), nfc=True)

PRE_TOKENIZERS = {
    "gpt-2": _GPT2_WORDS,
    "phi-2": _GPT2_WORDS,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "codeshell": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "qwen35": PreTokenizer(patterns=(_words(r"\p{N}", r"\p{L}\p{M}"),), nfc=True),
    "tekken": PreTokenizer(patterns=(_cased(r"\p{N}", ""),), whole_words=True, adds_bos=True),
    "gpt-4o": PreTokenizer(patterns=(_cased(r"\p{N}{1,3}", _CONTRACTIONS + "?"),)),
    "deepseek-v3": PreTokenizer(patterns=(r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", _DEEPSEEK)),
}


def pre_tokenizer(name: str) -> PreTokenizer:
    """By the name in the file.

    Raises:
        ModelLoadError: this name is not known; a guess would give wrong ids without any error.
    """
    found = PRE_TOKENIZERS.get(name)
    if found is None:
        raise ModelLoadError(
            f"the file's pre-tokenizer {name!r} is not known here; known: {', '.join(sorted(PRE_TOKENIZERS))}",
            hint="use the model's Hugging Face folder, which holds its tokenizer.json",
        )
    return found


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
