"""A decoder of our own for Llama models: the same arithmetic as transformers' modules, without importing transformers.

transformers stays the judge. Everything the decoder needs to know beside the weights is read from transformers' own model
(`llama_shape`, rotary frequencies included), it is compared with that model's plain forward before it serves, and the shape is
remembered with the check (`weights.KeptWeights`). A later process that finds the check builds the decoder from the remembered shape and
the weights, and saves the seconds that importing transformers costs. Whatever is not exactly a plain Llama is none.

Source: transformers, models/llama/modeling_llama.py; the order of operations and of roundings is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, silu

from ...kernels.attention import LayerAttention
from .adapter import BoundAttention, LayerShape, PackedTokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_EMBEDDING, _NORM, _HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """What a decoder is built from beside its weights. rotary_frequencies: radians per position, [head_size / 2], float32;
    rotary_scale: what sines and cosines are multiplied by; tied: the head is the embedding.
    """

    vocab_size: int
    hidden_size: int
    inner_size: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    norm_epsilon: float
    attention_scale: float
    rotary_frequencies: tuple[float, ...]
    rotary_scale: float
    tied: bool
    context_tokens: int

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Names and sizes of all weights, as checkpoints name them."""
        hidden, queries, keys = self.hidden_size, self.heads * self.head_size, self.kv_heads * self.head_size
        layer = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (self.inner_size, hidden),
            "mlp.up_proj": (self.inner_size, hidden),
            "mlp.down_proj": (hidden, self.inner_size),
        }
        named = {f"model.layers.{i}.{name}.weight": size for i in range(self.layers) for name, size in layer.items()}
        head = {} if self.tied else {_HEAD: (self.vocab_size, hidden)}
        return {_EMBEDDING: (self.vocab_size, hidden), **named, _NORM: (hidden,), **head}

    def pools(self) -> dict[int, LayerShape]:
        """Sizes of each layer's keys and values."""
        return {i: LayerShape(self.kv_heads, self.head_size, self.head_size) for i in range(self.layers)}

    def to_json(self) -> dict[str, Any]:
        """Floats are written so that the same floats are read."""
        return asdict(self) | {"rotary_frequencies": list(self.rotary_frequencies)}

    @classmethod
    def from_json(cls, stored: object) -> LlamaShape | None:
        """What `to_json` gave; None for anything else."""
        kinds = {"int": int, "float": float, "bool": bool, "tuple[float, ...]": list}
        if not isinstance(stored, dict) or stored.keys() != {field.name for field in fields(cls)}:
            return None
        if any(type(stored[field.name]) is not kinds[str(field.type)] for field in fields(cls)):
            return None
        frequencies = stored["rotary_frequencies"]
        if not all(type(value) is float for value in frequencies) or 2 * len(frequencies) != stored["head_size"]:
            return None
        return cls(**{**stored, "rotary_frequencies": tuple(frequencies)})


def llama_shape(model: PreTrainedModel, context_tokens: int) -> LlamaShape | None:
    """The shape of a transformers model that is a plain Llama in every part; None if anything about it is not known here."""
    from transformers.models.llama import modeling_llama as llama

    if type(model) is not llama.LlamaForCausalLM:
        return None
    config, decoder = model.config, model.model
    rotary, first = decoder.rotary_emb, decoder.layers[0].self_attn
    parts = (
        llama.LlamaForCausalLM, llama.LlamaModel, llama.LlamaDecoderLayer, llama.LlamaAttention, llama.LlamaMLP,
        llama.LlamaRMSNorm, llama.LlamaRotaryEmbedding, nn.Linear, nn.Embedding, nn.ModuleList, type(decoder.layers[0].mlp.act_fn),
    )  # fmt: skip
    if any(type(module) not in parts for module in model.modules()):
        return None
    if config.hidden_act not in ("silu", "swish") or 2 * rotary.inv_freq.numel() != first.head_dim:
        return None
    shape = LlamaShape(
        vocab_size=int(config.vocab_size),
        hidden_size=int(config.hidden_size),
        inner_size=int(config.intermediate_size),
        layers=len(decoder.layers),
        heads=int(config.num_attention_heads),
        kv_heads=int(first.k_proj.out_features) // int(first.head_dim),
        head_size=int(first.head_dim),
        norm_epsilon=float(decoder.norm.variance_epsilon),
        attention_scale=float(first.scaling),
        rotary_frequencies=tuple(rotary.inv_freq.float().tolist()),
        rotary_scale=float(rotary.attention_scaling),
        tied=model.lm_head.weight is decoder.embed_tokens.weight,
        context_tokens=context_tokens,
    )
    held = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    same_type = all(parameter.dtype == model.dtype for parameter in model.parameters())
    return shape if same_type and held == shape.tensors() else None


class LlamaDecoder(nn.Module):
    """A decoder of a shape, over weights that fill it. Implements `adapter.Decoder`."""

    name = "the native Llama decoder"

    def __init__(self, shape: LlamaShape, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = _parameter(weights[_EMBEDDING])
        self.layers = nn.ModuleList([_Layer(shape, i, weights) for i in range(shape.layers)])
        self.norm = _Norm(weights[_NORM], shape.norm_epsilon)
        self.head = _linear(weights[_EMBEDDING if shape.tied else _HEAD])
        self._frequencies = torch.tensor(shape.rotary_frequencies, device=self.embedding.device)

    def compute(self, tokens: PackedTokens, attention: BoundAttention, wanted: Tensor | None) -> Tensor:
        """Logits as `adapter.Decoder` has them. The length of a sequence never matters."""
        x: Tensor = embedding(tokens.token_ids, self.embedding)
        turns = self._turns(tokens.positions, x.dtype)
        for layer in self.layers:
            x = layer(x, turns, attention)
        if wanted is not None:
            if not wanted.numel():
                return torch.empty(0, 0, device=x.device)
            x = x[wanted]
        logits: Tensor = self.head(self.norm(x))
        return logits

    def _turns(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines [T, 1, D] of every token's rotation, computed in float32."""
        angles = positions[:, None].float() * self._frequencies
        angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)
        scale = self.shape.rotary_scale
        return (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)


class _Layer(nn.Module):
    """Attention and the gated network, each behind a norm and beside what it is added to."""

    def __init__(self, shape: LlamaShape, index: int, weights: Mapping[str, Tensor]) -> None:
        super().__init__()

        def weight(name: str) -> Tensor:
            return weights[f"model.layers.{index}.{name}.weight"]

        self.index = index
        self.head_size = shape.head_size
        self.attention = LayerAttention(shape.attention_scale)
        self.attention_norm = _Norm(weight("input_layernorm"), shape.norm_epsilon)
        self.q, self.k, self.v, self.o = (_linear(weight(f"self_attn.{name}_proj")) for name in "qkvo")
        self.mlp_norm = _Norm(weight("post_attention_layernorm"), shape.norm_epsilon)
        self.gate, self.up, self.down = (_linear(weight(f"mlp.{name}_proj")) for name in ("gate", "up", "down"))

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor], attention: BoundAttention) -> Tensor:
        """[T, hidden_size] to the same."""
        y = self.attention_norm(x)
        q, k, v = (linear(y).unflatten(-1, (-1, self.head_size)) for linear in (self.q, self.k, self.v))
        seen = attention(self.index, _rotated(q, turns), _rotated(k, turns), v, self.attention)
        x = x + self.o(seen.flatten(1))
        y = self.mlp_norm(x)
        gated: Tensor = self.down(silu(self.gate(y)) * self.up(y))
        return x + gated


class _Norm(nn.Module):
    """Root mean square norm, computed in float32 and rounded before it is weighted."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight = _parameter(weight)
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return self.weight * wide.to(x.dtype)


def _rotated(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """[T, H, D]: dimension i and its partner D / 2 further on are turned together."""
    cosines, sines = turns
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-second, first), dim=-1) * sines


def _parameter(weight: Tensor) -> nn.Parameter:
    """A parameter that is another model's stays that very one: who changes it for a while changes both."""
    return weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight, requires_grad=False)


def _linear(weight: Tensor) -> nn.Linear:
    linear = nn.Linear(1, 1, bias=False, device="meta")
    linear.weight = _parameter(weight)
    linear.out_features, linear.in_features = weight.shape
    return linear
