"""Models from a GGUF file: its config and its tensors, dequantized, as transformers names them.

Source: llama.cpp, gguf-py/gguf/constants.py and tensor_mapping.py (names), convert_hf_to_gguf.py (storage transforms).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import gguf
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...errors import ModelLoadError
from ..supply import gguf_parts
from ..text.gguf import TensorInfo, read_header

if TYPE_CHECKING:
    from transformers import PretrainedConfig


Array: TypeAlias = npt.NDArray[np.float32]

_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_CONFIG = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "vocab_size": "vocab_size",
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """One GGUF architecture. permuted: query and key rows are stored with rotary halves interleaved. shifted_norms: norm
    weights are stored plus one.
    """

    model_type: str
    block: Mapping[str, str] = field(default_factory=lambda: _BLOCK)
    config: Mapping[str, str] = field(default_factory=lambda: _CONFIG)
    permuted: bool = False
    shifted_norms: bool = False

    def parameter(self, tensor: str) -> str | None:
        """The transformers name of a tensor such as "blk.3.attn_q.weight"; None if this architecture has no such tensor."""
        stem, _, kind = tensor.rpartition(".")
        if stem in _TOP:
            return f"{_TOP[stem]}.{kind}"
        prefix, _, rest = stem.partition(".")
        number, _, name = rest.partition(".")
        if prefix != "blk" or name not in self.block:
            return None
        return f"model.layers.{number}.{self.block[name]}.{kind}"

    def restore(self, tensor: str) -> Callable[[Array, int, int], Array]:
        """What undoes the storage transform of a tensor: a function of (values, query heads, key heads)."""
        if self.permuted and ".attn_q." in tensor:
            return lambda values, queries, keys: unpermute(values, queries)
        if self.permuted and ".attn_k." in tensor:
            return lambda values, queries, keys: unpermute(values, keys)
        if self.shifted_norms and "norm" in tensor:
            return lambda values, queries, keys: values - np.float32(1)
        return lambda values, queries, keys: values


def unpermute(values: Array, heads: int) -> Array:
    """Rows of each head from (pairs interleaved) to (first halves, second halves), the order transformers rotates in."""
    half = values.shape[0] // heads // 2
    split = values.reshape(heads, half, 2, *values.shape[1:])
    return split.swapaxes(1, 2).reshape(values.shape)


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("llama", permuted=True),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3", block=_BLOCK | _HEAD_NORMS),
    "gemma3": Architecture(
        "gemma3_text",
        block=_BLOCK | _HEAD_NORMS | _GEMMA_NORMS,
        config=_CONFIG | {"attention.sliding_window": "sliding_window"},
        shifted_norms=True,
    ),
}


_REQUIRED = (
    "context_length",
    "block_count",
    "embedding_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
)
_ROPE_FACTORS = "rope_freqs.weight"
_OTHERWISE = "use the model's Hugging Face folder (safetensors) instead"


class _Part:
    """One file: its header, and its bytes, mapped."""

    def __init__(self, path: Path) -> None:
        self.header = read_header(path)
        self.data = np.memmap(path, dtype=np.uint8, mode="r", offset=0)


class GgufFile:
    """An opened file; tensors are memory-mapped until they are asked for.

    Raises:
        ModelLoadError: not a GGUF file, damaged, or of an architecture that is not mapped here.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parts = [_Part(part) for part in self._files(path)]
        self._header = self._parts[0].header
        name = str(self._field("general.architecture"))
        if name not in ARCHITECTURES:
            raise ModelLoadError(
                f"{path} holds a model of architecture {name!r}; GGUF files can be of {', '.join(ARCHITECTURES)}",
                hint="use the model's Hugging Face folder (safetensors) instead",
            )
        self._name = name
        self._architecture: Architecture = ARCHITECTURES[name]

    def _files(self, path: Path) -> list[Path]:
        """All files of a model that is split into several."""
        count = read_header(path).metadata.get("split.count", 1)
        files = gguf_parts(path)
        if isinstance(count, int) and count > 1 and count != len(files):
            raise ModelLoadError(
                f"{path} is one of {count} files of a model, and their names do not say which",
                hint=f"name them NAME-00001-of-{count:05}.gguf and so on, in one folder, and open any of them",
            )
        return files

    def _tensors(self) -> Iterator[tuple[_Part, TensorInfo]]:
        return ((part, tensor) for part in self._parts for tensor in part.header.tensors)

    def config(self) -> PretrainedConfig:
        """The transformers config, with float32 roundings in the file's numbers undone (0.00000999… is 1e-05)."""
        from transformers import AutoConfig

        values: dict[str, Any] = {"rope_parameters": self._rope()}
        for key, option in self._architecture.config.items():
            value = self._field(f"{self._name}.{key}", None)
            if value is not None:
                values[option] = _shortest(value)
            elif key in _REQUIRED:
                raise ModelLoadError(f"{self._path} does not say {self._name}.{key}", hint=_OTHERWISE)
        if "vocab_size" not in values:
            values["vocab_size"] = len(self._field("tokenizer.ggml.tokens"))
        values["tie_word_embeddings"] = all(t.name != "output.weight" for _, t in self._tensors())
        if self._name == "gemma3":
            values["query_pre_attn_scalar"] = _gemma_query_scale(values)
        for name in ("bos", "eos"):
            token_id = self._field(f"tokenizer.ggml.{name}_token_id", None)
            values[f"{name}_token_id"] = (
                token_id if isinstance(token_id, int) and token_id < values["vocab_size"] else None
            )
        return AutoConfig.for_model(self._architecture.model_type, **values)

    def state(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Every tensor by its transformers name. Dequantized in float32, then rounded to `dtype`."""
        queries = int(self._field(f"{self._name}.attention.head_count"))
        keys = int(self._field(f"{self._name}.attention.head_count_kv", queries))
        state = {}
        for part, tensor in self._tensors():
            if tensor.name == _ROPE_FACTORS:
                continue  # in the config
            name = self._architecture.parameter(tensor.name)
            if name is None:
                raise ModelLoadError(
                    f"{self._path}: tensor {tensor.name!r} has no place in a {self._name} model",
                    hint="use the model's Hugging Face folder (safetensors) instead",
                )
            values = self._architecture.restore(tensor.name)(self._dequantized(part, tensor), queries, keys)
            state[name] = torch.from_numpy(np.array(values, dtype=np.float32)).to(dtype)
        return state

    def _dequantized(self, part: _Part, tensor: TensorInfo) -> Array:
        """Float32 values, slowest dimension first."""
        try:
            kind = gguf.GGMLQuantizationType(tensor.kind)
            block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
            shape = (*reversed(tensor.shape[1:]), tensor.shape[0] // block * block_bytes)
            begin = part.header.data_offset + tensor.offset
            stored = part.data[begin : begin + math.prod(shape)].reshape(shape)
            values: Array = gguf.dequantize(stored, kind)
        except (NotImplementedError, ValueError, KeyError, IndexError, OverflowError) as error:
            raise ModelLoadError(
                f"{self._path}: tensor {tensor.name} (type {tensor.kind}) cannot be read: {error}",
                hint="download the file again; if it persists, use another quantization of the model",
            ) from error
        return values

    def _rope(self) -> dict[str, Any]:
        """Rotary parameters; scaling in each spelling that files have had."""
        theta = _shortest(self._field(f"{self._name}.rope.freq_base", 10000.0))
        plain = {"rope_type": "default", "rope_theta": theta}
        scaled = self._scaled_rope(theta) or plain
        self._refuse_partial_rotation()
        if self._name != "gemma3":
            return scaled
        return {"full_attention": scaled, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}

    def _scaled_rope(self, theta: float) -> dict[str, Any] | None:
        """`rope.scaling.type` with a factor; a factor alone, and the older `rope.scale_linear`, mean linear. Factors per
        frequency come as a tensor (Llama 3.1); transformers takes such a list as LongRoPE's, the same for all lengths.
        """
        kind = self._field(f"{self._name}.rope.scaling.type", None)
        factor = self._field(f"{self._name}.rope.scaling.factor", self._field(f"{self._name}.rope.scale_linear", 0.0))
        if not isinstance(factor, (int, float)) or kind not in (None, "none", "linear"):
            raise ModelLoadError(
                f"{self._path} scales its rotary positions by {kind}, which GGUF files do not describe exactly",
                hint=_OTHERWISE,
            )
        scales = kind != "none" and factor not in (0, 1)
        found = next(((part, t) for part, t in self._tensors() if t.name == _ROPE_FACTORS), None)
        if found is None:
            return {"rope_type": "linear", "rope_theta": theta, "factor": _shortest(factor)} if scales else None
        if scales:
            raise ModelLoadError(f"{self._path} scales its rotary positions twice", hint=_OTHERWISE)
        factors = [float(value) for value in self._dequantized(*found).reshape(-1)]
        return {
            "rope_type": "longrope", "rope_theta": theta, "factor": 1.0, "attention_factor": 1.0,
            "short_factor": factors, "long_factor": factors,
            "original_max_position_embeddings": int(self._field(f"{self._name}.context_length")),
        }  # fmt: skip

    def _refuse_partial_rotation(self) -> None:
        rotated = self._field(f"{self._name}.rope.dimension_count", None)
        if rotated is None:
            return
        heads = int(self._field(f"{self._name}.attention.head_count"))
        size = self._field(
            f"{self._name}.attention.key_length", int(self._field(f"{self._name}.embedding_length")) // heads
        )
        if rotated != size:
            raise ModelLoadError(
                f"{self._path} rotates {rotated} of the {size} dimensions of a head, which a {self._name} model cannot here",
                hint=_OTHERWISE,
            )

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
