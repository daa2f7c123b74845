"""GGUF files as converters have written them over the years: applied as transformers would, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gguf")
pytestmark = pytest.mark.engine

from sglang_dsl.errors import ModelLoadError
from sglang_dsl.runtime.model.load import load_model, read_model
from sglang_dsl.runtime.model.options import ModelOptions
from sglang_dsl.runtime.supply import locate
from tests.model.conftest import random_model, write_gguf

IDS = torch.randint(0, 64, (1, 120), generator=torch.Generator().manual_seed(2))
OPTIONS = ModelOptions(dtype="float32", device="cpu", kv_bytes=1 << 22)
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 50000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip


def logits(model: Any) -> Any:
    with torch.inference_mode():
        return model(input_ids=IDS, use_cache=False).logits


def with_rope(parameters: dict[str, Any]) -> Any:
    """The random Llama with other rotary parameters."""
    from transformers import LlamaForCausalLM

    model = random_model("llama")
    config = type(model.config)(**(model.config.to_dict() | {"rope_parameters": parameters}))
    scaled = LlamaForCausalLM(config).eval()
    scaled.load_state_dict(model.state_dict())
    return scaled


def test_factors_of_frequencies_are_read_from_their_tensor(tmp_path: Path) -> None:
    """cases: 207."""
    model = with_rope(LLAMA3)
    plain = with_rope({"rope_type": "default", "rope_theta": 50000.0})
    factors = (plain.model.rotary_emb.inv_freq / model.model.rotary_emb.inv_freq).numpy().astype(np.float32)
    path = tmp_path / "a.gguf"
    write_gguf(path, "llama", model, more=lambda w: w.add_tensor("rope_freqs.weight", factors))
    torch.testing.assert_close(logits(read_model(path, torch.float32)), logits(model), atol=2e-5, rtol=0)
    loaded = load_model(path, OPTIONS, fingerprint="x")
    assert loaded.context_tokens == 128
    assert not loaded.positions.borders


def test_any_file_of_a_split_model_opens_it(tmp_path: Path) -> None:
    model = random_model("llama")
    write_gguf(tmp_path / "a.gguf", "llama", model, files_of_tensors=8)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert len(parts) > 2
    for part in parts:
        found = locate(part)
        assert found.path == parts[0]
        torch.testing.assert_close(logits(read_model(part, torch.float32)), logits(model), atol=2e-5, rtol=0)
    parts[1].unlink()
    with pytest.raises(ModelLoadError, match=parts[1].name):
        locate(parts[0])
    parts[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(ModelLoadError, match=f"one of {len(parts)} files"):
        read_model(tmp_path / "renamed.gguf", torch.float32)


@pytest.mark.parametrize(
    "more",
    [
        lambda w: w.add_float32("llama.rope.scale_linear", 4.0),
        lambda w: w.add_float32("llama.rope.scaling.factor", 4.0),
        lambda w: (w.add_string("llama.rope.scaling.type", "linear"), w.add_float32("llama.rope.scaling.factor", 4.0)),
    ],
)
def test_linear_scaling_is_applied_in_each_spelling(more: Callable[[Any], Any], tmp_path: Path) -> None:
    """cases: 208, 209."""
    path = tmp_path / "a.gguf"
    write_gguf(path, "llama", random_model("llama"), more=more)
    expected = with_rope({"rope_type": "linear", "rope_theta": 50000.0, "factor": 4.0})
    torch.testing.assert_close(logits(read_model(path, torch.float32)), logits(expected), atol=2e-5, rtol=0)
    assert load_model(path, OPTIONS, fingerprint="x").context_tokens == 512


@pytest.mark.parametrize(
    ("more", "without", "named"),
    [
        (lambda w: w.add_string("llama.rope.scaling.type", "yarn"), (), "yarn"),
        (lambda w: w.add_string("llama.rope.scaling.type", "longrope"), (), "longrope"),
        (lambda w: w.add_rope_dimension_count(8), (), "rotates 8 of the 16"),
        (lambda w: None, ("add_layer_norm_rms_eps",), "layer_norm_rms_epsilon"),
        (lambda w: None, ("add_context_length",), "context_length"),
        (lambda w: None, ("add_head_count",), "head_count"),
        (lambda w: w.add_tensor("blk.0.odd.weight", np.zeros(4, np.float32)), (), "blk.0.odd.weight"),
    ],
)
def test_what_a_file_does_not_say_or_cannot_have_here_is_refused_by_name(
    more: Callable[[Any], Any], without: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.gguf"
    write_gguf(path, "llama", random_model("llama"), more=more, without=without)
    with pytest.raises(ModelLoadError, match=named):
        load_model(path, OPTIONS, fingerprint="x")


def test_scale_of_one_and_an_end_id_outside_change_nothing(tmp_path: Path) -> None:
    """cases: 206."""
    model = random_model("llama")
    path = tmp_path / "a.gguf"
    write_gguf(
        path,
        "llama",
        model,
        more=lambda w: (
            w.add_float32("llama.rope.scale_linear", 1.0),
            w.add_eos_token_id(50256),
            w.add_rope_dimension_count(16),
        ),
    )
    torch.testing.assert_close(logits(read_model(path, torch.float32)), logits(model), atol=2e-5, rtol=0)


def test_tensors_of_other_shapes_are_refused_by_name(tmp_path: Path) -> None:
    """cases: 205."""
    model = random_model("llama")
    model.model.layers[1].mlp.up_proj.weight.data = torch.zeros(80, 64)
    write_gguf(tmp_path / "a.gguf", "llama", model)
    with pytest.raises(ModelLoadError, match=r"layers\.1\.mlp\.up_proj"):
        read_model(tmp_path / "a.gguf", torch.float32)


@pytest.mark.parametrize("keep", [0, 3, 10, 40, 200, 900, 3000, -5000])
def test_a_file_cut_anywhere_is_refused(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_gguf(path, "llama", random_model("llama"))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelLoadError):
        load_model(path, OPTIONS, fingerprint="x")
