"""Models from a GGUF file: its config and its tensors, dequantized, as transformers names them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import torch
from torch import Tensor

from ...errors import ModelLoadError
from ..text.gguf_header import TensorInfo, read_header
from .gguf_names import ARCHITECTURES, Architecture, Array

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class GgufFile:
    """An opened file; tensors are memory-mapped until they are asked for.

    Raises:
        ModelLoadError: not a GGUF file, damaged, or of an architecture that is not mapped here.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._header = read_header(path)
        self._data = np.memmap(path, dtype=np.uint8, mode="r", offset=0)
        name = str(self._field("general.architecture"))
        if name not in ARCHITECTURES:
            raise ModelLoadError(
                f"{path} holds a model of architecture {name!r}; GGUF files can be of {', '.join(ARCHITECTURES)}",
                hint="use the model's Hugging Face folder (safetensors) instead",
            )
        self._name = name
        self._architecture: Architecture = ARCHITECTURES[name]

    def config(self) -> PretrainedConfig:
        """The transformers config, with float32 roundings in the file's numbers undone (0.00000999… is 1e-05)."""
        from transformers import AutoConfig

        values: dict[str, Any] = {}
        for key, option in self._architecture.config.items():
            value = self._field(f"{self._name}.{key}", None)
            if value is not None:
                values[option] = _shortest(value)
        if "vocab_size" not in values:
            values["vocab_size"] = len(self._field("tokenizer.ggml.tokens"))
        values["tie_word_embeddings"] = all(t.name != "output.weight" for t in self._header.tensors)
        values["rope_parameters"] = self._rope()
        if self._name == "gemma3":
            values["query_pre_attn_scalar"] = _gemma_query_scale(values)
        values |= {f"{n}_token_id": self._field(f"tokenizer.ggml.{n}_token_id", None) for n in ("bos", "eos")}
        return AutoConfig.for_model(self._architecture.model_type, **values)

    def state(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Every tensor by its transformers name. Dequantized in float32, then rounded to `dtype`."""
        queries = int(self._field(f"{self._name}.attention.head_count"))
        keys = int(self._field(f"{self._name}.attention.head_count_kv", queries))
        state = {}
        for tensor in self._header.tensors:
            name = self._architecture.parameter(tensor.name)
            if name is None:
                raise ModelLoadError(
                    f"{self._path}: tensor {tensor.name!r} has no place in a {self._name} model",
                    hint="use the model's Hugging Face folder (safetensors) instead",
                )
            values = self._architecture.restore(tensor.name)(self._dequantized(tensor), queries, keys)
            state[name] = torch.from_numpy(np.array(values, dtype=np.float32)).to(dtype)
        return state

    def _dequantized(self, tensor: TensorInfo) -> Array:
        """Float32 values, slowest dimension first."""
        try:
            kind = gguf.GGMLQuantizationType(tensor.kind)
            block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
            shape = (*reversed(tensor.shape[1:]), tensor.shape[0] // block * block_bytes)
            begin = self._header.data_offset + tensor.offset
            stored = self._data[begin : begin + math.prod(shape)].reshape(shape)
            values: Array = gguf.dequantize(stored, kind)
        except (NotImplementedError, ValueError) as error:
            raise ModelLoadError(
                f"{self._path}: tensor {tensor.name} (type {tensor.kind}) cannot be read: {error}",
                hint="download the file again; if it persists, use another quantization of the model",
            ) from error
        return values

    def _rope(self) -> dict[str, Any]:
        if self._field(f"{self._name}.rope.scaling.type", "none") not in ("none", None):
            raise ModelLoadError(
                f"{self._path} scales its rotary positions, which GGUF files do not describe exactly",
                hint="use the model's Hugging Face folder (safetensors) instead",
            )
        theta = _shortest(self._field(f"{self._name}.rope.freq_base", 10000.0))
        if self._name != "gemma3":
            return {"rope_type": "default", "rope_theta": theta}
        return {
            "full_attention": {"rope_type": "default", "rope_theta": theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        }

    def _field(self, key: str, *default: Any) -> Any:
        if key in self._header.metadata:
            return self._header.metadata[key]
        if default:
            return default[0]
        raise ModelLoadError(f"{self._path} does not say {key}", hint="download it again")


def _gemma_query_scale(values: Mapping[str, Any]) -> int:
    """What queries are scaled by the inverse root of. Files do not hold it; the 27B model (62 layers) is the exception.

    Source: llama.cpp, hyperparameters of LLM_ARCH_GEMMA3.
    """
    if values["num_hidden_layers"] == 62:
        return int(values["hidden_size"]) // int(values["num_attention_heads"])
    return int(values["head_dim"])


def _shortest(value: Any) -> Any:
    """The shortest decimal that is this float32."""
    return float(str(np.float32(value))) if isinstance(value, float) else value
