"""Tiny random models, and GGUF files written from them the way llama.cpp's converter does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

VOCAB = 64


def _permute(weight: Any, heads: int) -> Any:
    """The converter's storage order of query and key rows (convert_hf_to_gguf.py, LlamaModel.permute)."""
    return (
        weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    )


def _llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5, rope_theta=50000.0,
            tie_word_embeddings=True, initializer_range=0.3,
        )
    )  # fmt: skip


def _qwen3() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=32, max_position_embeddings=128, rms_norm_eps=1e-6,
            rope_theta=1000000.0, tie_word_embeddings=False, initializer_range=0.3,
        )
    )  # fmt: skip


def _gemma3() -> Any:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    return Gemma3ForCausalLM(
        Gemma3TextConfig(
            vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=7, num_attention_heads=4,
            num_key_value_heads=1, head_dim=32, max_position_embeddings=128, sliding_window=16, query_pre_attn_scalar=32,
            rms_norm_eps=1e-6, initializer_range=0.3,
        )
    )  # fmt: skip


FAMILIES: dict[str, Callable[[], Any]] = {"llama": _llama, "qwen3": _qwen3, "gemma3": _gemma3}
_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
}  # fmt: skip
_NORMS = {
    "llama": {"post_attention_layernorm": "ffn_norm"},
    "qwen3": {"post_attention_layernorm": "ffn_norm"},
    "gemma3": {
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
}
_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def random_model(family: str) -> Any:
    """A random model of a family, the same each time; norm weights are random too."""
    import torch

    torch.manual_seed(5)
    model = FAMILIES[family]().eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, -0.3, 0.3 if family == "gemma3" else 1.5)
    return model


def write_gguf(
    path: Path,
    family: str,
    model: Any,
    quantize: str = "F32",
    *,
    more: Callable[[Any], None] = lambda writer: None,
    without: tuple[str, ...] = (),
    files_of_tensors: int = 0,
) -> None:
    """The model as a GGUF file; matrices in `quantize`. more: what else is written; without: methods of the writer left out;
    files_of_tensors: split into files of so many.
    """
    import gguf

    writer = gguf.GGUFWriter(str(path), family, split_max_tensors=files_of_tensors)
    for name in without:
        setattr(writer, name, lambda value: None)
    config = model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if family != "llama":
        writer.add_key_length(config.head_dim)
    if family == "gemma3":
        writer.add_sliding_window(config.sliding_window)
        writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    else:
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_token_list([f"t{i}" for i in range(VOCAB)])
    for name, parameter in model.named_parameters():
        _write_tensor(writer, family, name, parameter.detach().numpy(), config, quantize)
    more(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_tensor(writer: Any, family: str, name: str, values: Any, config: Any, quantize: str) -> None:
    import gguf

    stem, kind = name.rsplit(".", 1)
    if stem in _TOP:
        stored = _TOP[stem]
    else:
        _, _, number, part = stem.split(".", 3)
        stored = f"blk.{number}.{(_NAMES | _NORMS[family])[part]}"
        if family == "llama" and part.endswith(("q_proj", "k_proj")):
            heads = config.num_attention_heads if part.endswith("q_proj") else config.num_key_value_heads
            values = _permute(values, heads)
    if family == "gemma3" and "norm" in stored:
        values = values + 1
    if values.ndim == 1 or quantize == "F32":
        writer.add_tensor(f"{stored}.{kind}", values)
        return
    qtype = gguf.GGMLQuantizationType[quantize]
    writer.add_tensor(f"{stored}.{kind}", gguf.quantize(values, qtype), raw_dtype=qtype)


@pytest.fixture
def make_model() -> Callable[[str], Any]:
    """Function family -> random model."""
    pytest.importorskip("torch")
    return random_model


@pytest.fixture
def make_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Function (family, model, quantize="F32") -> path of its GGUF file."""
    pytest.importorskip("gguf")

    def make(family: str, model: Any, quantize: str = "F32") -> Path:
        path = tmp_path / f"{family}-{quantize}.gguf"
        write_gguf(path, family, model, quantize)
        return path

    return make
