"""Weights from a Hugging Face folder, refused by name unless every tensor of the model is in it; and what a process keeps for the next.

Kept are a GGUF file's weights dequantized, that a model has passed its check, and the shape of the native decoder that passed it.
They lie in the cache folder under names made of everything they depend on: the model's fingerprint, the options, the versions
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
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...errors import ModelLoadError
from ..supply import cache_folder
from ..text.tokenizer import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_SHOWN = 6


def read_folder(path: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model of a folder with config.json and safetensors.

    Raises:
        ModelLoadError: no config, quantized weights, an unknown architecture, or tensors that are missing or do not fit.
        Exception: whatever transformers raises for a configuration it cannot use (`load.named_errors`).
    """
    config = read_config(path)
    _refuse_quantized(path, config)
    _refuse_foreign(path, config)
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        opened: Any = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
        )
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(
            f"the weights in {path} cannot be loaded: {error}",
            hint="they are damaged or incomplete: download them again",
        ) from error
    model: PreTrainedModel = opened[0]
    _refuse_unfilled(path, opened[1])
    return model


def stored_tensors(path: Path, names: Collection[str]) -> dict[str, Tensor] | None:
    """These tensors of a folder as its safetensors hold them, mapped; None unless all are there under these very names."""
    from safetensors import SafetensorError, safe_open

    whole = path / "model.safetensors"
    try:
        if whole.is_file():
            files = {whole.name: set(names)}
        else:
            places = json.loads((path / "model.safetensors.index.json").read_text(encoding="utf-8"))["weight_map"]
            files = {str(places[name]): {n for n in names if places[n] == places[name]} for name in names}
        found: dict[str, Tensor] = {}
        for file, wanted in files.items():
            with safe_open(path / file, "pt") as stored:
                found.update({name: stored.get_tensor(name) for name in wanted})
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError):
        return None
    return found


def read_config(path: Path) -> Mapping[str, Any]:
    """The folder's config.json.

    Raises:
        ModelLoadError: there is none, or it is no JSON object.
    """
    file = path / "config.json"
    if not file.is_file():
        raise ModelLoadError(f"{path} holds no config.json", hint="give a Hugging Face model folder or a .gguf file")
    return read_json(file)


def _refuse_quantized(path: Path, config: Mapping[str, Any]) -> None:
    text = config.get("text_config")
    for part in (config, text if isinstance(text, dict) else {}):
        for key in ("quantization_config", "compression_config"):
            settings = part.get(key)
            if settings:
                method = settings.get("quant_method") if isinstance(settings, dict) else None
                raise ModelLoadError(
                    f"{path} holds weights quantized by {method or 'a method that its config.json does not name'}, "
                    "which are not read here",
                    hint="use the folder of the unquantized model, or a quantized .gguf file of it",
                )


def _refuse_foreign(path: Path, config: Mapping[str, Any]) -> None:
    """Architectures whose code would have to come with the folder, or that transformers does not know."""
    from transformers.models.auto import configuration_auto, modeling_auto

    kind = config.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise ModelLoadError(f"{path / 'config.json'} does not say its model_type", hint="download the file again")
    if kind not in configuration_auto.CONFIG_MAPPING:
        import transformers

        raise ModelLoadError(
            f"{path} holds a model of type {kind!r}, which transformers {transformers.__version__} does not know",
            hint="code that comes with a model is not run here; use a model of a type that transformers has",
        )
    if kind not in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ModelLoadError(
            f"{path} holds a model of type {kind!r}, which writes no text token by token",
            hint="use a causal language model",
        )


def _refuse_unfilled(path: Path, found: Mapping[str, Any]) -> None:
    missing = sorted(map(str, found.get("missing_keys") or ()))
    if missing:
        raise ModelLoadError(
            f"{path} does not fill its model: {len(missing)} tensors are missing: {shown(missing)}",
            hint="its weights are incomplete, of another model, or stored under other names: download it again",
        )
    wrong = [str(item[0]) if isinstance(item, tuple) else str(item) for item in found.get("mismatched_keys") or ()]
    if wrong or found.get("error_msgs"):
        raise ModelLoadError(
            f"{path} does not fit its config.json: {shown(wrong) or found['error_msgs']}", hint="download it again"
        )


def shown(names: Sequence[str]) -> str:
    """The first names of a list, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


MOST_BYTES = 4 << 30
_LIBRARIES = ("torch", "transformers", "numpy", "gguf", "safetensors")
_SUM = "crc32"


class KeptWeights:
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
