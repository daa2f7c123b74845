"""The check that stands between a wrong model and its users."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sglang_dsl.errors import ModelLoadError, SelfCheckError
from sglang_dsl.kernels.attention import attend
from sglang_dsl.runtime.model import adapter, check
from sglang_dsl.runtime.model.adapter import PackedTokens
from sglang_dsl.runtime.model.load import load_model, serve
from sglang_dsl.runtime.model.options import ModelOptions

pytestmark = pytest.mark.engine

MakeModel = Callable[[str], Any]
EXACT = ModelOptions(dtype="float32", device="cpu", packed_linears=False, kv_bytes=1 << 20)


@pytest.mark.parametrize("page_size", [1, 5, 16])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_self_check_right_model_is_accepted(family: str, page_size: int, make_model: MakeModel) -> None:
    options = ModelOptions(dtype="float32", device="cpu", kv_bytes=1 << 20, page_size=page_size)
    assert serve(make_model(family), options, fingerprint="x").check_difference < 1e-5


def _wrong_scale(q: Any, k: Any, v: Any, keys: Any, values: Any, plan: Any, layer: Any) -> Any:
    return attend(q, k, v, keys, values, plan, layer._replace(scale=layer.scale * 1.01))


def _no_history(q: Any, k: Any, v: Any, keys: Any, values: Any, plan: Any, layer: Any) -> Any:
    plan.spans = ()
    return attend(q, k, v, keys, values, plan, layer)


@pytest.mark.parametrize("wrong", [_wrong_scale, _no_history])
def test_self_check_wrong_attention_is_refused_with_the_difference(
    wrong: Callable[..., Any], make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "attend", wrong)
    with pytest.raises(SelfCheckError, match=r"relative difference [\d.]+, allowed in float32 is 0\.0002"):
        serve(make_model("llama"), EXACT, fingerprint="x")


def test_self_check_model_with_position_biases_is_refused() -> None:
    """Bloom adds ALiBi inside its own attention and never calls the interface."""
    from transformers import BloomConfig, BloomForCausalLM

    model = BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=2)).eval()
    with pytest.raises(ModelLoadError):
        serve(model, EXACT, fingerprint="x")


def test_self_check_low_precision_model_is_checked_in_float32_and_restored(make_model: MakeModel) -> None:
    model = make_model("llama").to(torch.bfloat16)
    before = {name: p.clone() for name, p in model.named_parameters()}
    options = ModelOptions(dtype="bfloat16", device="cpu", packed_linears=False, kv_bytes=1 << 20)
    assert serve(model, options, fingerprint="x").check_difference < 1e-5
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_self_check_without_spare_memory_stays_in_the_models_type(make_model: MakeModel) -> None:
    model = make_model("llama").to(torch.bfloat16)
    with check.in_float32(model, spare_bytes=10) as dtype:
        assert dtype == torch.bfloat16
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_load_model_folder_gives_the_saved_model(tmp_path: Path, make_model: MakeModel) -> None:
    make_model("qwen3").save_pretrained(tmp_path)
    loaded = load_model(tmp_path, EXACT, fingerprint="x")
    assert loaded.check_difference < 1e-5
    assert loaded.kv_layout == "float32/slots-heads-size"


def test_load_model_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no config\.json"):
        load_model(tmp_path, EXACT, fingerprint="x")


def test_load_model_folder_with_damaged_weights_is_refused(tmp_path: Path, make_model: MakeModel) -> None:
    make_model("qwen3").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not a tensor file")
    with pytest.raises(ModelLoadError, match="cannot be loaded"):
        load_model(tmp_path, EXACT, fingerprint="x")


def test_serve_pool_too_small_for_a_page_is_refused(make_model: MakeModel) -> None:
    options = ModelOptions(dtype="float32", device="cpu", kv_bytes=100, self_check=False)
    with pytest.raises(ModelLoadError, match="100 bytes hold no page"):
        serve(make_model("llama"), options, fingerprint="x")


def test_two_models_at_once_do_not_share_a_pool(make_model: MakeModel) -> None:
    first, second = (serve(make_model("llama"), EXACT, fingerprint=name) for name in "ab")
    from sglang_dsl.kernels.attention import QueryRow, plan_step

    plan = plan_step([QueryRow(3, 0, [0, 1, 2], 0)], page_size=1, device=torch.device("cpu"))
    ids = torch.tensor([4, 5, 6])
    second.pool.keys[0].zero_()
    first.packed.forward(PackedTokens(ids, torch.arange(3)), plan, torch.tensor([2]))
    assert first.pool.keys[0][:3].abs().sum() > 0
    assert second.pool.keys[0].abs().sum() == 0
