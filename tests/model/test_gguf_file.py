"""GGUF files against the models they were written from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
gguf = pytest.importorskip("gguf")

from sglang_dsl.errors import ModelLoadError
from sglang_dsl.runtime.model.gguf import (
    GgufFile,
    unpermute,
)
from sglang_dsl.runtime.model.load import load_model
from sglang_dsl.runtime.model.options import ModelOptions

pytestmark = pytest.mark.engine

MakeModel = Callable[[str], Any]
MakeGguf = Callable[..., Path]
EXACT = ModelOptions(dtype="float32", device="cpu", packed_linears=False, kv_bytes=1 << 20)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_gguf_unquantized_tensors_are_bit_identical(family: str, make_model: MakeModel, make_gguf: MakeGguf) -> None:
    model = make_model(family)
    state = GgufFile(make_gguf(family, model)).state(torch.float32)
    expected = dict(model.named_parameters())
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_gguf_gemma_norms_lose_their_stored_shift(make_model: MakeModel, make_gguf: MakeGguf) -> None:
    model = make_model("gemma3")
    state = GgufFile(make_gguf("gemma3", model)).state(torch.float32)
    for name, expected in model.named_parameters():
        torch.testing.assert_close(state[name], expected, atol=1e-6 if "norm" in name else 0, rtol=0)


@pytest.mark.parametrize("quantize", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_gguf_quantized_tensors_equal_the_readers_dequantization(
    quantize: str, make_model: MakeModel, make_gguf: MakeGguf
) -> None:
    """The gguf package's own reader and dequantizer, then the row order undone as transformers does it."""
    model = make_model("llama")
    path = make_gguf("llama", model, quantize)
    state = GgufFile(path).state(torch.float32)
    stored = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(str(path)).tensors}
    down = torch.from_numpy(stored["blk.1.ffn_down.weight"])
    assert torch.equal(state["model.layers.1.mlp.down_proj.weight"], down)
    key = torch.from_numpy(unpermute(stored["blk.0.attn_k.weight"], 2).copy())
    assert torch.equal(state["model.layers.0.self_attn.k_proj.weight"], key)
    assert (state["model.embed_tokens.weight"] - model.model.embed_tokens.weight).abs().max() < 0.2


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_gguf_model_computes_what_the_original_does(family: str, make_model: MakeModel, make_gguf: MakeGguf) -> None:
    model = make_model(family)
    file = GgufFile(make_gguf(family, model))
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_config(file.config(), dtype=torch.float32).eval()
    loaded.load_state_dict(file.state(torch.float32), strict=False)
    loaded.tie_weights()
    ids = torch.arange(40).unsqueeze(0) % 64
    with torch.inference_mode():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_load_model_gguf_passes_its_self_check(family: str, make_model: MakeModel, make_gguf: MakeGguf) -> None:
    """Gemma 3 has a window of 16 in six of seven layers: shorter than the check's sequences."""
    loaded = load_model(make_gguf(family, make_model(family)), EXACT, fingerprint="f")
    assert loaded.check_difference < 1e-5
    assert (loaded.context_tokens, loaded.vocab_size, loaded.fingerprint) == (128, 64, "f")


def test_gguf_config_undoes_float32_rounding(make_model: MakeModel, make_gguf: MakeGguf) -> None:
    config = GgufFile(make_gguf("llama", make_model("llama"))).config()
    assert config.rms_norm_eps == 1e-5
    assert config.rope_parameters["rope_theta"] == 50000.0
    assert config.tie_word_embeddings is True
    assert getattr(config, "quantization_config", None) is None


def _rewritten(path: Path, **changes: Any) -> Path:
    """A file with other metadata, no tensors but one odd one."""
    import numpy as np

    writer = gguf.GGUFWriter(str(path), changes.pop("arch", "llama"))
    for key, value in changes.items():
        if isinstance(value, str):
            writer.add_string(key.replace("__", "."), value)
        else:
            writer.add_uint32(key.replace("__", "."), value)
    writer.add_tensor("blk.0.odd.weight", np.zeros((2, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gguf_unknown_architecture_is_refused_with_those_known(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"'rwkv7'.*llama, qwen2, qwen3, gemma3"):
        GgufFile(_rewritten(tmp_path / "a.gguf", arch="rwkv7"))


def test_gguf_unknown_tensor_is_refused_by_name(tmp_path: Path) -> None:
    file = GgufFile(_rewritten(tmp_path / "a.gguf", llama__attention__head_count=2))
    with pytest.raises(ModelLoadError, match=r"blk\.0\.odd\.weight"):
        file.state(torch.float32)


def test_gguf_scaled_rope_is_refused(tmp_path: Path) -> None:
    file = GgufFile(_rewritten(tmp_path / "a.gguf", llama__rope__scaling__type="yarn", llama__vocab_size=8))
    with pytest.raises(ModelLoadError, match="scales its rotary positions"):
        file.config()


def test_gguf_truncated_file_is_refused(tmp_path: Path, make_model: MakeModel, make_gguf: MakeGguf) -> None:
    whole = make_gguf("llama", make_model("llama")).read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelLoadError, match="download"):
        load_model(cut, EXACT, fingerprint="f")
