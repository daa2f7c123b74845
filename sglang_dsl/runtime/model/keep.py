"""What a process leaves for the next: a GGUF file's weights dequantized, that a model has passed its check, and the shape of
the native decoder that passed it.

Both lie in the cache folder under names made of everything they depend on: the model's fingerprint, the options, the versions
of the libraries, the processor, and the source of the code that computes. A file is written aside and renamed, so it is whole
or not there, and carries a checksum. The newest weights are kept up to MOST_BYTES; deleting the folder costs time only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import tempfile
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..supply import cache_folder

MOST_BYTES = 4 << 30
_LIBRARIES = ("torch", "transformers", "numpy", "gguf", "safetensors")
_SUM = "crc32"


class Keep:
    """The kept files of one model, opened in one way. `facts`: what its weights and its check depend on beside the code."""

    def __init__(self, fingerprint: str, facts: str, folder: Path | None = None) -> None:
        self._folder = folder or cache_folder() / "opened"
        text = "\n".join((fingerprint, facts, _code(), platform.machine(), torch.backends.cpu.get_cpu_capability()))
        text += "".join(f"\n{name} {version(name)}" for name in _LIBRARIES)
        self._name = hashlib.sha256(text.encode()).hexdigest()[:32]

    def checked(self) -> float | None:
        """The difference that the check measured when the model was last opened in this way; None: it was not."""
        difference = self._noted().get("difference")
        return difference if isinstance(difference, float) else None

    def decoder(self) -> object:
        """What was noted of the native decoder that passed the check; None: the model was served by another."""
        return self._noted().get("decoder") if self.checked() is not None else None

    def note_checked(self, difference: float, decoder: Mapping[str, object] | None = None) -> None:
        """The check has passed, for a native decoder if it is given."""
        noted = {"difference": difference, "decoder": decoder}
        self._write("json", lambda path: path.write_text(json.dumps(noted | {_SUM: _sum_of(noted)})))

    def _noted(self) -> Mapping[str, object]:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            noted = json.loads(self._file("json").read_text())
            if isinstance(noted, dict) and noted.pop(_SUM, None) == _sum_of(noted):
                return noted
        return {}

    def state(self, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """The kept tensors if they are whole, else what `make` gives, which is kept then."""
        from safetensors import SafetensorError, safe_open
        from safetensors.torch import save_file

        file = self._file("safetensors")
        with contextlib.suppress(OSError, SafetensorError, KeyError, TypeError), safe_open(file, "pt") as kept:
            state: dict[str, Tensor] = {name: kept.get_tensor(name) for name in kept.keys()}  # noqa: SIM118
            if kept.metadata()[_SUM] == _checksum(state):
                os.utime(file)
                return state
        state = make()
        size = sum(t.numel() * t.itemsize for t in state.values())
        if self._make_room(size):
            self._write("safetensors", lambda path: save_file(state, path, metadata={_SUM: _checksum(state)}))
        return state

    def _file(self, ending: str) -> Path:
        return self._folder / f"{self._name}.{ending}"

    def _write(self, ending: str, write: Callable[[Path], object]) -> None:
        """A folder that cannot be written to, or is full, keeps nothing."""
        from safetensors import SafetensorError

        with contextlib.suppress(OSError, SafetensorError):
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._folder) as aside:
                path = Path(aside) / "new"
                write(path)
                path.replace(self._file(ending))

    def _make_room(self, size: int) -> bool:
        """Whether `size` bytes may be kept, after the oldest weights have gone for them."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if size > MOST_BYTES or shutil.disk_usage(self._folder).free < 2 * size:
                return False
            kept = sorted(self._folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime, reverse=True)
            for path in kept:
                size += path.stat().st_size
                if size > MOST_BYTES:
                    path.unlink()
        except OSError:
            return False
        return True


def _sum_of(noted: Mapping[str, object]) -> str:
    return f"{zlib.crc32(json.dumps(noted, sort_keys=True).encode()):08x}"


def _checksum(state: Mapping[str, Tensor]) -> str:
    total = 0
    for name in sorted(state):
        total = zlib.crc32(_bytes(state[name]), zlib.crc32(name.encode(), total))
    return f"{total:08x}"


@cache
def _code() -> str:
    """A digest of the source that the computation is made of."""
    package = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for part in (package / "runtime" / "model", package / "kernels"):
        for file in sorted(part.rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    array: Any = tensor.contiguous().view(torch.uint8).numpy()
    return memoryview(array.reshape(-1))
