"""The tokenizer in a Hugging Face folder: tokenizer.json and the files beside it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import ModelLoadError
from .bpe_tokenizer import SPACE_MARK, BpeTokenizer, Vocabulary, is_word, without_markers
from .byte_alphabet import piece_bytes, unseen_bytes


def tokenizer_from_folder(folder: Path, fingerprint: str) -> BpeTokenizer:
    """Build the tokenizer of a folder.

    The stop ids are those of tokenizer_config.json, config.json and generation_config.json together.

    Raises:
        ModelLoadError: tokenizer.json is missing, damaged, or not BPE.
    """
    stored = _tokenizer_json(folder)
    settings = read_json(folder / "tokenizer_config.json")
    config = read_json(folder / "config.json")
    pieces = _pieces(stored)
    byte_level = '"ByteLevel"' in json.dumps([stored.get("decoder"), stored.get("pre_tokenizer")])
    added = stored.get("added_tokens", [])
    bos_id = _token_id(settings.get("bos_token"), pieces)
    vocabulary = Vocabulary(
        token_bytes=_token_bytes(pieces, added, byte_level, _rows(config)),
        markers=_markers(added),
        stop_ids=_stop_ids(folder, settings, config, pieces),
        bos_id=bos_id,
        adds_bos=_adds_bos(stored, settings, bos_id),
        fingerprint=fingerprint,
        unseen_bytes=unseen_bytes(pieces) if byte_level else b"",
        space_after_marker=not byte_level
        and _puts_space_in_front([stored.get("normalizer"), stored.get("pre_tokenizer")]),
    )
    return BpeTokenizer(_plain(stored), vocabulary)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no such file.

    Raises:
        ModelLoadError: the file is not JSON, or not an object.
    """
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{path} is not JSON: {error}", hint="download the model again") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} does not hold a JSON object", hint="download the model again")
    return value


def token_text(entry: Any) -> str:
    """The text of a special token as tokenizer_config.json writes it: a string, an object, or nothing."""
    if isinstance(entry, dict):
        return str(entry.get("content", ""))
    return entry if isinstance(entry, str) else ""


def _tokenizer_json(folder: Path) -> dict[str, Any]:
    stored = read_json(folder / "tokenizer.json")
    if not stored:
        raise ModelLoadError(
            f"{folder} has no tokenizer.json", hint="save the model's fast tokenizer into the folder and try again"
        )
    kind = stored.get("model", {}).get("type")
    if kind != "BPE":
        raise ModelLoadError(
            f"the tokenizer in {folder} is of kind {kind!r}; only BPE can be kept from forging control tokens here",
            hint="use a model with a BPE tokenizer",
        )
    return stored


def _markers(added: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Tokens that only control text may contain."""
    return {e["content"]: e["id"] for e in added if e.get("special") or not is_word(e["content"])}


def _pieces(stored: Mapping[str, Any]) -> dict[str, int]:
    added = {entry["content"]: entry["id"] for entry in stored.get("added_tokens", [])}
    return {**stored["model"]["vocab"], **added}


def _plain(stored: Mapping[str, Any]) -> Any:
    """The stored tokenizer without its markers, without anything it puts in front or behind, without cutting."""
    from tokenizers import Tokenizer

    added = stored.get("added_tokens", [])
    hidden = _markers(added)
    model = {
        **stored["model"],
        "vocab": {piece: i for piece, i in stored["model"]["vocab"].items() if piece not in hidden},
        "merges": without_markers(stored["model"]["merges"], hidden),
        "unk_token": None,
    }
    plain = {
        **stored,
        "model": model,
        "added_tokens": [entry for entry in added if entry["content"] not in hidden],
        "normalizer": _without_prefix(stored.get("normalizer")),
        "pre_tokenizer": _without_prefix(stored.get("pre_tokenizer")),
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
    return _load(Tokenizer, json.dumps(plain))


def _load(tokenizer: Any, text: str) -> Any:
    try:
        return tokenizer.from_str(text)
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


def _puts_space_in_front(parts: Iterable[Any]) -> bool:
    """Whether text behind a marker gets a space in front, as with SentencePiece's dummy prefix."""
    for part in parts:
        if not isinstance(part, dict):
            continue
        inner = part.get("normalizers") or part.get("pretokenizers") or ()
        if part.get("type") == "Prepend" or part.get("prepend_scheme") == "always" or _puts_space_in_front(inner):
            return True
    return False


def _token_bytes(
    pieces: Mapping[str, int], added: Sequence[Mapping[str, Any]], byte_level: bool, rows: int
) -> list[bytes]:
    table = [b""] * max(rows, max(pieces.values()) + 1)
    for piece, token_id in pieces.items():
        table[token_id] = piece_bytes(piece) if byte_level else _fallback_bytes(piece)
    for entry in added:
        shown = entry["content"] if byte_level else entry["content"].replace(SPACE_MARK, " ")
        table[entry["id"]] = b"" if entry.get("special") else shown.encode()
    return table


def _fallback_bytes(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace(SPACE_MARK, " ").encode()


def _rows(config: Mapping[str, Any]) -> int:
    """Rows of the logits: often more than there are tokens. Models with several parts keep it in `text_config`."""
    return int(config.get("vocab_size") or config.get("text_config", {}).get("vocab_size") or 0)


def _token_id(entry: Any, pieces: Mapping[str, int]) -> int | None:
    return pieces.get(token_text(entry))


def _adds_bos(stored: Mapping[str, Any], settings: Mapping[str, Any], bos_id: int | None) -> bool:
    if "add_bos_token" in settings:
        return bool(settings["add_bos_token"])
    return bos_id is not None and bos_id in _ids_in_front(stored.get("post_processor"))


def _ids_in_front(processor: Any) -> Iterable[int]:
    """Ids a post-processor puts in front of a text."""
    if not isinstance(processor, dict):
        return []
    if processor.get("type") == "Sequence":
        return [token_id for inner in processor["processors"] for token_id in _ids_in_front(inner)]
    single = processor.get("single") or [{}]
    first = single[0].get("SpecialToken", {}).get("id")
    return processor.get("special_tokens", {}).get(first, {}).get("ids", []) if first else []


def _stop_ids(
    folder: Path, settings: Mapping[str, Any], config: Mapping[str, Any], pieces: Mapping[str, int]
) -> frozenset[int]:
    generation = read_json(folder / "generation_config.json")
    found = {_token_id(settings.get("eos_token"), pieces)}
    for source in (config, config.get("text_config", {}), generation):
        listed = source.get("eos_token_id")
        found.update(listed if isinstance(listed, list) else [listed])
    return frozenset(token_id for token_id in found if token_id is not None)
