"""What tells two models apart, cheaply enough to compute at every load."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

_BLOCK_BYTES = 64 * 1024
_BLOCKS = 64
_WHOLE_BELOW_BYTES = 32 * 1024 * 1024  # configurations and tokenizers are read whole


def file_fingerprint(*paths: Path) -> str:
    """Of a model in one file, or in several."""
    return _digest(list(paths))


def folder_fingerprint(folder: Path) -> str:
    """Of the weights, configurations and templates in a folder."""
    files = (p for pattern in ("*.safetensors", "*.json", "*.jinja") for p in folder.glob(pattern))
    return _digest(sorted(files))


def _digest(files: list[Path]) -> str:
    """SHA-256 over names, sizes and contents; of large files 64 blocks spread evenly over the whole length.

    Training touches every block of a weight file, so what is left out cannot differ alone except by intent.
    """
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{len(path.name)}:{path.name}:{size}:".encode())
        with path.open("rb") as file:
            for offset, length in _blocks(size):
                file.seek(offset)
                digest.update(file.read(length))
    return digest.hexdigest()


def _blocks(size: int) -> Iterator[tuple[int, int]]:
    if size <= _WHOLE_BELOW_BYTES:
        yield 0, size
        return
    for i in range(_BLOCKS):
        yield (size - _BLOCK_BYTES) * i // (_BLOCKS - 1), _BLOCK_BYTES
