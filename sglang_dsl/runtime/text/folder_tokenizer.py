"""The tokenizer in a Hugging Face folder: tokenizer.json and the files beside it.

The `tokenizers` library reads the file, with the tokens that only stand beside it added in the order in which transformers
adds them: that is the *library* tokenizer, and its ids are the truth. What content is encoded with is the same tokenizer with
its markers withheld. Both are compared when the folder is opened.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import ModelLoadError, SpecError
from .bpe_tokenizer import (
    SPACE_MARK,
    BpeTokenizer,
    PieceDecoder,
    Vocabulary,
    looks_like_marker,
    parts_of,
    piece_bytes,
    unseen_bytes,
    without_markers,
)
from .tokenizer import TextPiece, read_json

# The attributes that name one token each. Source: transformers, SPECIAL_TOKENS_ATTRIBUTES.
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_PROBES = (
    "Hello, world! It's 12 o'clock.",
    "The quick brown fox\njumps  over\tthe lazy dog.\n\n",
    "def f(x):\n        return x ** 2 + 3.14\n",
    " naïve café — 日本語 Привет 🙂 e\u0301 ",
    "1234567890 1,000.50 x²\u00a0½",
)

_log = logging.getLogger(__name__)


class FolderTokenizer(NamedTuple):
    """tokenizer: what the runtime uses. library: the `tokenizers.Tokenizer` that it is compared with. markers: the texts that
    it keeps out of content. names: the text of the folder's named tokens, as its template may use them.
    """

    tokenizer: BpeTokenizer
    library: Any
    markers: Collection[str]
    names: Mapping[str, str]


def tokenizer_from_folder(folder: Path, fingerprint: str) -> FolderTokenizer:
    """Build the tokenizer of a folder.

    The stop ids are those of tokenizer_config.json (or special_tokens_map.json), config.json and generation_config.json together.

    Raises:
        ModelLoadError: tokenizer.json is missing, damaged, or not BPE; a named token is none; the result would not equal the library.
    """
    try:
        return _Folder(folder).build(fingerprint)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelLoadError(
            f"the tokenizer files in {folder} are damaged: {type(error).__name__}: {error}",
            hint="download the model again",
        ) from error


def check_control_text(found: FolderTokenizer, pieces: Sequence[TextPiece]) -> None:
    """Compare with the library on text with markers in it. Content that the library would take for a marker is left alone.

    Raises:
        ModelLoadError: the ids differ.
    """
    if any(marker in piece.text for piece in pieces if not piece.control for marker in found.markers):
        return
    try:
        ids = found.tokenizer.encode_segment(pieces, first=True)
    except SpecError:
        return  # a character without a token: the library would drop it
    _compare(ids, found.library, "".join(piece.text for piece in pieces))


@dataclass(frozen=True, slots=True)
class _Beside:
    """The tokens that stand beside tokenizer.json. names: by attribute. listed: with their flags. special: those that are special
    whatever tokenizer.json says. Both in the order in which they are added.
    """

    names: Mapping[str, str]
    listed: Sequence[Mapping[str, Any]]
    special: Sequence[str]


class _Folder:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stored = _tokenizer_json(folder)
        self.settings = read_json(folder / "tokenizer_config.json")
        self.config = read_json(folder / "config.json")
        self.beside = _tokens_beside(folder, self.settings)

    def build(self, fingerprint: str) -> FolderTokenizer:
        """All of it, compared with the library."""
        encoders = self._encoders()
        tokenizer = BpeTokenizer(encoders["middle"], self._vocabulary(fingerprint), **self._in_front(encoders))
        found = FolderTokenizer(tokenizer, self.library, self.markers, self.beside.names)
        self._check(found)
        return found

    @cached_property
    def library(self) -> Any:
        """The tokenizer as transformers builds it, without cutting or padding."""
        from tokenizers import AddedToken

        stored = {**self.stored, "truncation": None, "padding": None}
        library = _from_json(stored)
        known = set(map(repr, library.get_added_tokens_decoder().values()))
        listed = [AddedToken(**token) for token in self.beside.listed]
        library.add_tokens([token for token in listed if repr(token) not in known])
        flagged = {token.content: token for token in library.get_added_tokens_decoder().values()}
        library.add_special_tokens(
            [flagged.get(text) or AddedToken(text, normalized=False) for text in self.beside.special]
        )
        return library

    @cached_property
    def added(self) -> Mapping[int, Any]:
        """The library's added tokens by id."""
        found: dict[int, Any] = dict(sorted(self.library.get_added_tokens_decoder().items()))
        return found

    @cached_property
    def pieces(self) -> Mapping[str, int]:
        """Every token's id by its text, as the library has them."""
        return {**self.stored["model"]["vocab"], **{token.content: token_id for token_id, token in self.added.items()}}

    @cached_property
    def rows(self) -> int:
        """Rows of the logits: often more than there are tokens. Models with several parts keep it in `text_config`."""
        text_config = self.config.get("text_config")
        inner = text_config.get("vocab_size") if isinstance(text_config, dict) else 0
        rows = self.config.get("vocab_size") or inner or 0
        return rows if isinstance(rows, int) and rows > 0 else max(self.pieces.values()) + 1

    @cached_property
    def markers(self) -> Mapping[str, int]:
        """Tokens that only control text may contain: special ones, those that look like one, and those that end a text."""
        return {
            token.content: token_id
            for token_id, token in self.added.items()
            if token_id < self.rows and (token.special or looks_like_marker(token.content) or token_id in self.stop_ids)
        }

    @cached_property
    def withheld(self) -> Mapping[str, int]:
        """What content is never encoded to: markers, and tokens for which the model has no row."""
        return {**self.markers, **{text: i for text, i in self.pieces.items() if i >= self.rows}}

    @cached_property
    def _withheld_ids(self) -> frozenset[int]:
        return frozenset(self.withheld.values()) - {self.pieces.get(self.stored["model"].get("unk_token") or "")}

    @cached_property
    def front_ids(self) -> tuple[int, ...]:
        """What stands in front of every text: as tokenizer_config.json says, else as the post-processor does it."""
        if "add_bos_token" in self.settings:
            bos_id = self._named_id("bos_token")
            return (bos_id,) if self.settings["add_bos_token"] and bos_id is not None else ()
        return tuple(_ids_in_front(self.stored.get("post_processor")))

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """Every id that one of the files says ends a text."""
        found = {self._named_id("eos_token")}
        for source in (
            self.config,
            self.config.get("text_config"),
            read_json(self.folder / "generation_config.json"),
        ):
            listed = source.get("eos_token_id") if isinstance(source, dict) else None
            found.update(listed if isinstance(listed, list) else [listed])
        return frozenset(token_id for token_id in map(_stop_id, found) if token_id is not None)

    @cached_property
    def byte_level(self) -> bool:
        """Whether pieces are bytes in GPT-2's alphabet."""
        return '"ByteLevel"' in json.dumps([self.stored.get("decoder"), self.stored.get("pre_tokenizer")])

    def _named_id(self, name: str) -> int | None:
        """The id of a named token.

        Raises:
            ModelLoadError: the model has no such token: nothing lists it, and there is no row for it.
        """
        text = self.beside.names.get(name)
        if text is None:
            return None
        token_id = self.pieces[text]
        listed = {token["content"] for token in (*(self.stored.get("added_tokens") or ()), *self.beside.listed)}
        if token_id >= self.rows and text not in listed and text not in self.stored["model"]["vocab"]:
            raise ModelLoadError(
                f"{self.folder} names {text!r} as its {name}, which is no token of this model",
                hint="correct tokenizer_config.json (or special_tokens_map.json), or download the model again",
            )
        return token_id

    def _vocabulary(self, fingerprint: str) -> Vocabulary:
        bos_id = self._named_id("bos_token")
        front = self.front_ids
        if front and bos_id is None:
            bos_id = front[0]
        flags = {token.content: token for token in self.added.values()}
        return Vocabulary(
            token_bytes=self._token_bytes(),
            markers=self.markers,
            stop_ids=self.stop_ids,
            bos_id=bos_id,
            adds_bos=bool(front),
            fingerprint=fingerprint,
            strips_left=frozenset(text for text in self.markers if flags[text].lstrip),
            strips_right=frozenset(text for text in self.markers if flags[text].rstrip),
            whole_words=frozenset(text for text, token in flags.items() if token.single_word),
            words=frozenset(text for text in flags if text not in self.withheld),
            found_late=frozenset(text for text, token in flags.items() if token.normalized),
            unseen_bytes=unseen_bytes(self.pieces) if self.byte_level else b"",
            unknown_id=self.pieces.get(self.stored["model"].get("unk_token") or ""),
        )

    def _token_bytes(self) -> list[bytes]:
        """The bytes of each row, as the folder's own decoder shows them."""
        table = [b""] * self.rows
        show = PieceDecoder(self.stored).bytes_of if not self.byte_level else piece_bytes
        for piece, token_id in self.stored["model"]["vocab"].items():
            if token_id < self.rows:
                table[token_id] = show(piece)
        for token_id, token in self.added.items():
            if token_id < self.rows:
                shown = self._shown(token)
                shown = shown if self.byte_level else shown.replace(SPACE_MARK, " ")
                table[token_id] = b"" if token.special else shown.encode()
        return table

    def _shown(self, token: Any) -> str:
        """The text an added token is searched for, and shown as: its normalized one, if it says so."""
        normalizer = self.library.normalizer if token.normalized else None
        text: str = normalizer.normalize_str(token.content) if normalizer is not None else token.content
        return text

    def _encoders(self) -> dict[str, Any]:
        """The library's tokenizer without its markers: `middle` puts nothing in front, `whole` what the file says."""
        model, renamed = self._model()
        return {
            "middle": self._encoder(model, renamed, _without_prefix),
            "whole": self._encoder(model, renamed, lambda part: part),
        }

    def _in_front(self, encoders: Mapping[str, Any]) -> dict[str, Any]:
        """Which of the two stands where. A Metaspace that prepends "first" does so at the beginning of the prompt only."""
        parts = [self.stored.get("normalizer"), self.stored.get("pre_tokenizer")]
        if not any(_puts_in_front(part) for part in parts):
            return {}
        first_only = not any(_puts_in_front(part, behind_markers=True) for part in parts)
        return {"first": encoders["whole"], "behind_marker": encoders["middle" if first_only else "whole"]}

    def _model(self) -> tuple[Any, Mapping[str, str]]:
        """The BPE model that content is encoded with, and the names under which it hides markers.

        It is the library's own unless that could produce a marker. Then its markers get names that nobody can write, so that
        every other token keeps its id.
        """
        model = self.stored["model"]
        hidden = {text for text in self.withheld if text in model["vocab"]}
        merges = without_markers(model["merges"], hidden)
        reachable = any(len(text) == 1 for text in hidden) or len(merges) < len(model["merges"])
        if not hidden or not (reachable or model.get("ignore_merges") or model.get("unk_token") in hidden):
            return self.library.model, {}
        nonce = secrets.token_hex(16)
        renamed = {text: f"{text}{nonce}" for text in hidden}
        unknown = model.get("unk_token")
        changed = {
            **model,
            "vocab": {renamed.get(piece, piece): i for piece, i in model["vocab"].items()},
            "merges": merges,
            "unk_token": renamed.get(unknown, unknown),
        }
        return _from_json({"version": "1.0", "added_tokens": [], "model": changed}).model, renamed

    def _encoder(self, model: Any, renamed: Mapping[str, str], prefix: Any) -> Any:
        """A tokenizer around `model` that knows the added words, each under its own id, and no markers."""
        from tokenizers import AddedToken

        empty = {"type": "BPE", "vocab": {}, "merges": []}
        shell = {
            "version": "1.0",
            "added_tokens": [],
            "normalizer": prefix(self.stored.get("normalizer")),
            "pre_tokenizer": prefix(self.stored.get("pre_tokenizer")),
            "model": empty,
        }
        encoder = _from_json(shell)
        encoder.model = model
        nonce = secrets.token_hex(16)
        encoder.add_tokens(  # all at once: each call builds the library's search tree again
            [
                AddedToken(f"{token_id}{nonce}", normalized=False) if token.content in self.withheld else token
                for token_id, token in self.added.items()  # a withheld one keeps its place, so that later ones keep theirs
                if token.content not in self.withheld or token.content not in self.stored["model"]["vocab"]
            ]
        )
        for token_id, token in self.added.items():
            if token.content not in self.withheld and encoder.token_to_id(token.content) != token_id:
                raise ModelLoadError(
                    f"the added token {token.content!r} of {self.folder} cannot keep its id {token_id}",
                    hint="save the tokenizer again with the current transformers",
                )
        return encoder

    def _check(self, found: FolderTokenizer) -> None:
        """Raise ModelLoadError where ids or text differ from the library's."""
        if len(self.front_ids) > 1 or (self.front_ids and self.front_ids[0] != found.tokenizer.bos_id):
            raise ModelLoadError(
                f"the tokenizer in {self.folder} puts the ids {list(self.front_ids)} in front of every text; only one "
                "beginning-of-text token is known here",
                hint="use a model whose prompts begin with its bos_token",
            )
        for probe in _PROBES:
            if self._needs_withheld(probe):
                continue
            try:
                ids = found.tokenizer.encode(probe, first=True)
            except SpecError:
                continue  # a character without a token: the library would drop it
            _compare(ids, self.library, probe)
            self._check_text(found.tokenizer, [token_id for token_id in ids if token_id not in self.added])
        for text, token_id in self.pieces.items():
            if token_id in self.added and token_id < self.rows:
                self._check_added(found, text)

    def _check_added(self, found: FolderTokenizer, text: str) -> None:
        for around in (f"A{text}B", f"A {text} b"):
            if text not in self.markers and self._needs_withheld(around):
                continue
            piece = TextPiece(around, control=text in self.markers)
            try:
                ids = found.tokenizer.encode_segment([piece], first=True)
            except SpecError:
                continue
            _compare(ids, self.library, around)

    def _needs_withheld(self, text: str) -> bool:
        """Whether the library makes something of a content that is withheld from contents here, on purpose."""
        return not self._withheld_ids.isdisjoint(self.library.encode(text, add_special_tokens=False).ids)

    def _check_text(self, tokenizer: BpeTokenizer, ids: Sequence[int]) -> None:
        shown = tokenizer.decode(ids)
        library: str = self.library.decode(ids, skip_special_tokens=True).replace(SPACE_MARK, " ")
        if shown.strip(" ") != library.strip(" "):
            raise ModelLoadError(
                f"the decoder of {self.folder} shows {library!r} where token by token the text would be {shown!r}",
                hint="only decoders that show each token by itself are known here; use another model",
            )


def _tokenizer_json(folder: Path) -> dict[str, Any]:
    stored = read_json(folder / "tokenizer.json")
    if not stored:
        raise ModelLoadError(
            f"{folder} has no tokenizer.json", hint="save the model's fast tokenizer into the folder and try again"
        )
    model = stored.get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    if not isinstance(model, dict) or kind != "BPE":
        raise ModelLoadError(
            f"the tokenizer in {folder} is of kind {kind!r}; only BPE can be kept from forging control tokens here",
            hint="use a model with a BPE tokenizer",
        )
    if not isinstance(model.get("vocab"), dict) or not model["vocab"] or not isinstance(model.get("merges"), list):
        raise ModelLoadError(f"{folder}/tokenizer.json has no vocabulary or no merges", hint="download the model again")
    return {**stored, "model": {**model, "dropout": None}}  # drops merges at random: for training


def _tokens_beside(folder: Path, settings: Mapping[str, Any]) -> _Beside:
    """Names and tokens of tokenizer_config.json, special_tokens_map.json and added_tokens.json.

    Source: transformers, PreTrainedTokenizerBase._from_pretrained: the two older files count where tokenizer_config.json has no
    added_tokens_decoder.
    """
    decoder = settings.get("added_tokens_decoder")
    entries = {**settings}
    listed: list[tuple[int, dict[str, Any]]] = []
    if isinstance(decoder, dict):
        listed = [(int(i), _added_token(decoder[i])) for i in sorted(decoder, key=int)]
    else:
        entries.update(read_json(folder / "special_tokens_map.json"))
    named = {name: text for name in NAMED if (text := _text_of(entries.get(name)))}
    extra = [*_texts_of(entries.get("additional_special_tokens")), *_texts_of(entries.get("extra_special_tokens"))]
    special = list(dict.fromkeys([*named.values(), *extra]))
    if not isinstance(decoder, dict):
        older = read_json(folder / "added_tokens.json").items()
        by_id = sorted((i, text) for text, i in older if isinstance(i, int))
        listed = [(i, _added_token(text, special=text in special)) for i, text in by_id]
    return _Beside(named, [token for _, token in listed], special)


def _added_token(entry: Any, *, special: bool = False) -> dict[str, Any]:
    """The fields of an added token as the library takes them."""
    if not isinstance(entry, dict):
        return {"content": str(entry), "special": special, "normalized": not special}
    kept = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    return {key: entry[key] for key in kept if key in entry}


def _text_of(entry: Any) -> str:
    """The text of a special token as tokenizer_config.json writes it: a string, an object, or nothing."""
    if isinstance(entry, dict):
        return str(entry.get("content", ""))
    return entry if isinstance(entry, str) else ""


def _texts_of(entries: Any) -> list[str]:
    listed = entries.values() if isinstance(entries, dict) else entries if isinstance(entries, list) else ()
    return [text for entry in listed if (text := _text_of(entry))]


def _stop_id(value: Any) -> int | None:
    """An entry of `eos_token_id`. Raises ModelLoadError if it is no token id."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ModelLoadError(
        f"eos_token_id is {value!r}; it has to be a token id", hint="correct the model's configuration"
    )


def _from_json(stored: Mapping[str, Any]) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(json.dumps(stored))
    except Exception as error:  # the library raises a bare Exception for any fault
        raise ModelLoadError(f"tokenizer.json is damaged: {error}", hint="download the model again") from error


def _without_prefix(part: Any) -> Any:
    """A normalizer or pre-tokenizer that puts no space in front: a segment may begin in the middle of a text."""
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    if kind == "Prepend":
        return None
    if kind == "Sequence":
        key = "normalizers" if "normalizers" in part else "pretokenizers"
        return {**part, key: [kept for inner in part[key] if (kept := _without_prefix(inner)) is not None]}
    if kind == "ByteLevel":
        return {**part, "add_prefix_space": False}
    if kind == "Metaspace":
        return {**part, "prepend_scheme": "never"}
    return part


def _puts_in_front(part: Any, *, behind_markers: bool = False) -> bool:
    """Whether a normalizer or pre-tokenizer puts something in front of a text; or of text behind a marker, too."""
    schemes = ("always",) if behind_markers else ("always", "first")
    return any(
        inner.get("type") == "Prepend"
        or (inner.get("type") == "ByteLevel" and inner.get("add_prefix_space"))
        or (inner.get("type") == "Metaspace" and inner.get("prepend_scheme", "always") in schemes)
        for inner in parts_of(part)
    )


def _ids_in_front(processor: Any) -> Iterable[int]:
    """Ids a post-processor puts in front of a text."""
    for part in parts_of(processor):
        if part.get("type") in ("RobertaProcessing", "BertProcessing"):
            yield part["cls"][1]
        for item in part.get("single") or () if isinstance(part.get("single"), list) else ():
            name = item.get("SpecialToken", {}).get("id") if isinstance(item, dict) else None
            if name is None:
                break
            yield from part.get("special_tokens", {}).get(name, {}).get("ids", [])


def _compare(ids: Sequence[int], library: Any, text: str) -> None:
    expected = library.encode(text, add_special_tokens=False).ids
    if list(ids) != expected:
        raise ModelLoadError(
            f"this model's tokenizer is not read as the `tokenizers` library reads it: {text!r} gives {list(ids)} here "
            f"and {expected} there",
            hint="report this model; its text would reach it with other tokens than in training",
        )
