"""How GGUF files name and store what transformers models hold, per architecture.

Source: llama.cpp, gguf-py/gguf/constants.py and tensor_mapping.py (names), convert_hf_to_gguf.py (storage transforms).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

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
