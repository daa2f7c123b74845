"""Small model files for the tests of this folder, written by hand."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from sglang_dsl.runtime.text.bpe_tokenizer import byte_of_char

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_gguf(path: Path, metadata: dict[str, Any], *, version: int = 3, tensors: bytes = b"", count: int = 0) -> Path:
    """A GGUF file of metadata only (or with raw tensor headers)."""
    body = b"".join(_string(key) + _typed(value) for key, value in metadata.items())
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, count, len(metadata)) + body + tensors)
    return path


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _typed(value: Any) -> bytes:
    if isinstance(value, list):
        kind = {str: 8, int: 5, float: 6}[type(value[0])]
        return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(_plain(kind, v) for v in value)
    kind = {str: 8, bool: 7, int: 4, float: 6}[type(value)]
    return struct.pack("<I", kind) + _plain(kind, value)


def _plain(kind: int, value: Any) -> bytes:
    if kind == 8:
        return _string(value)
    return struct.pack("<" + {4: "I", 5: "i", 6: "f", 7: "?"}[kind], value)


def byte_vocabulary(merges: tuple[str, ...] = ()) -> list[str]:
    """The 256 bytes and what the merges make."""
    return [*byte_of_char(), *(merge.replace(" ", "") for merge in merges)]


MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "o r")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>")


def byte_level_metadata(**changes: Any) -> dict[str, Any]:
    """A byte-level BPE model in ChatML. Ids: 0 to 2 control, 3 `<think>` (not special), then bytes and merges."""
    words = byte_vocabulary(MERGES)
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [*SPECIAL, *words],
        "tokenizer.ggml.token_type": [CONTROL, CONTROL, CONTROL, USER_DEFINED] + [NORMAL] * len(words),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": CHATML,
    }
    metadata.update({f"tokenizer.{key}": value for key, value in changes.items()})
    return {key: value for key, value in metadata.items() if value is not None}


def sentence_piece_metadata() -> dict[str, Any]:
    """A SentencePiece BPE model with byte fallback. Ids: <unk> <s> </s>, 256 bytes, then pieces."""
    pieces = ["▁", "h", "i", "e", "y", "hi", "▁hi", "he", "hey", "▁hey", "\n\n"]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    scores = [0.0] * 259 + [-100.0] * 5 + [-1.0, -2.0, -3.0, -4.0, -5.0, 0.0]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *fallback, *pieces],
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * 10 + [USER_DEFINED],
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def added_token(token_id: int, content: str, *, special: bool = True) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token_id, "content": content, "special": special, **flags}


def write_folder(folder: Path, **files: dict[str, Any] | str) -> Path:
    """A Hugging Face folder of the same byte-level model. Keywords: file name without .json -> merged content."""
    words = byte_vocabulary(MERGES)
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added_token(i, text, special=i < 3) for i, text in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {text: i for i, text in enumerate([*SPECIAL, *words])},
            "merges": list(MERGES),
            "unk_token": None,
        },
    }
    contents: dict[str, dict[str, Any]] = {
        "tokenizer": tokenizer,
        "tokenizer_config": {"eos_token": {"content": "<|endoftext|>"}, "chat_template": CHATML},
        "config": {"vocab_size": len(SPECIAL) + len(words) + 5},
    }
    folder.mkdir(exist_ok=True)
    for name, value in {**contents, **files}.items():
        merged = {**contents.get(name, {}), **value} if isinstance(value, dict) else value
        path = folder / (name if "." in name else f"{name}.json")
        path.write_text(merged if isinstance(merged, str) else json.dumps(merged), encoding="utf-8")
    return folder
