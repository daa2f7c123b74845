"""The header of a GGUF file: metadata and where the tensors lie. Reads nothing of the tensors themselves.

Source: the GGUF specification (ggml-org/ggml, docs/gguf.md), versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...errors import ModelLoadError

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
