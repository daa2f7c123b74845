"""Architectures whose unmodified transformers modules run on pages: each tiny random model passes its self-check."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sglang_dsl.errors import ModelLoadError
from sglang_dsl.runtime.model.load import serve
from sglang_dsl.runtime.model.options import ModelOptions

pytestmark = pytest.mark.engine

OPTIONS = ModelOptions(dtype="float32", device="cpu", kv_bytes=1 << 20)
COMMON = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "initializer_range": 0.2, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "mistral": {"sliding_window": 16},
    "phi3": {},
    "olmo2": {},
    "granite": {"logits_scaling": 4.0, "attention_multiplier": 0.1},
    "cohere2": {"sliding_window": 16},
    "gemma2": {"sliding_window": 16, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0},
    "gpt_oss": {"sliding_window": 16, **EXPERTS},
    "qwen3_moe": EXPERTS,
    "mixtral": EXPERTS,
    "smollm3": {},
    "gpt_neox": {"rotary_pct": 0.5},
    "stablelm": {},
}


def tiny(name: str) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **(COMMON | ARCHITECTURES.get(name, {})))).eval()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architecture_on_pages_equals_its_plain_forward(name: str) -> None:
    loaded = serve(tiny(name), OPTIONS, fingerprint=name)
    assert loaded.check_difference < 2e-5
    assert loaded.pool.bytes_per_token == sum(
        (key.shape[1] * key.shape[2] + loaded.pool.values[i].shape[1] * loaded.pool.values[i].shape[2]) * 4
        for i, key in loaded.pool.keys.items()
    )


@pytest.mark.parametrize("name", ["mpt", "mamba2", "recurrent_gemma"])
def test_architecture_with_other_state_is_refused(name: str) -> None:
    """Position biases inside the module, or recurrent layers: pages of keys and values are not their whole state."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "mpt": {"d_model": 32, "n_heads": 2, "n_layers": 1, "vocab_size": 64},
        "mamba2": {
            "hidden_size": 32,
            "num_heads": 4,
            "head_dim": 16,
            "n_groups": 1,
            "num_hidden_layers": 1,
            "vocab_size": 64,
        },
        "recurrent_gemma": {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 3, "vocab_size": 64},
    }[name]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **sizes)).eval()
    with pytest.raises(ModelLoadError):
        serve(model, OPTIONS, fingerprint=name)
