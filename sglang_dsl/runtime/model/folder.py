"""Models from a Hugging Face folder, refused by name unless every tensor of the model is in it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...errors import ModelLoadError

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
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{file} cannot be read: {error}", hint="download the file again") from error
    if not isinstance(config, dict):
        raise ModelLoadError(f"{file} holds no JSON object", hint="download the file again")
    return config


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
