"""Whatever a model's files hold: it opens and equals transformers, or one ModelLoadError says why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.engine

from benchmarks.load_matrix import OPTIONS, plain_logprobs, tiny_model, write_folder
from sglang_dsl.errors import DslError, ModelLoadError
from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.runtime.backends.local import open_engine
from sglang_dsl.runtime.model.options import ModelOptions

IDS = torch.randint(3, 259, (700,), generator=torch.Generator().manual_seed(3)).tolist()
ONE = SamplingSpec(max_tokens=1, temperature=0)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    write_folder(tiny_model("llama"), folder)
    return folder


@pytest.fixture
def folder(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "model"))


def configure(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def rename(folder: Path, change: Callable[[str], str | None]) -> None:
    """Tensors under other names; None leaves one out."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = {change(name): tensor for name, tensor in load_file(file).items()}
    save_file({name: t for name, t in tensors.items() if name}, file, metadata={"format": "pt"})


def without(part: str) -> Callable[[Path], None]:
    return lambda folder: rename(folder, lambda name: None if part in name else name)


def sharded(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    kept = {name: t for name, t in tensors.items() if "layers.1.mlp" not in name}
    save_file(kept, folder / "model-00001-of-00001.safetensors", metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "model-00001-of-00001.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


UNFILLED: dict[str, tuple[Callable[[Path], None], str]] = {
    "no head, not tied": (without("lm_head"), "lm_head.weight"),
    "no q_proj": (without("layers.0.self_attn.q_proj"), r"layers\.0\.self_attn\.q_proj\.weight"),
    "no norm": (without("model.norm"), "model.norm.weight"),
    "other prefix": (lambda folder: rename(folder, lambda name: f"base_model.{name}"), "embed_tokens"),
    "a layer more": (lambda folder: configure(folder, num_hidden_layers=5), r"layers\.4"),
    "index names what no shard holds": (sharded, r"layers\.1\.mlp"),
    "EXL2": (
        lambda folder: rename(folder, lambda n: n.replace("_proj.weight", "_proj.q_weight")),
        r"self_attn\.k_proj\.weight|mlp",
    ),
    "half a tensor": (lambda folder: configure(folder, intermediate_size=48), "mlp"),
}


@pytest.mark.parametrize("how", UNFILLED)
def test_a_checkpoint_that_does_not_fill_its_model_is_refused_naming_tensors(how: str, folder: Path) -> None:
    """cases: 204."""
    spoil, named = UNFILLED[how]
    spoil(folder)
    with pytest.raises(ModelLoadError, match=named):
        open_engine(folder, OPTIONS)


def test_tensors_too_many_are_harmless(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    save_file(load_file(file) | {"model.extra.weight": torch.zeros(3)}, file, metadata={"format": "pt"})
    _equals(folder)


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "fp8", "compressed-tensors", "exl2", "mxfp4", None])
def test_quantized_folders_are_refused_by_the_name_of_their_method(method: str | None, folder: Path) -> None:
    """cases: 205."""
    configure(folder, quantization_config={"quant_method": method, "bits": 4} if method else {"bits": 4})
    with pytest.raises(ModelLoadError, match=f"quantized by {method or 'a method'}") as caught:
        open_engine(folder, OPTIONS)
    assert ".gguf" in caught.value.hint


HOSTILE: list[Any] = [None, "2", -1, 0, 3.5, [], {}, True, 10**9, "\ud800", [[1]], {"rope_type": "nonsense"}]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_any_value_for_any_key_opens_and_equals_or_is_refused(folder: Path) -> None:
    """cases: 205. Values too big for memory are left out."""
    file = folder / "config.json"
    original = file.read_text()
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "num_attention_heads", "head_dim")
    for key in [*json.loads(original), "eos_token_id", "sliding_window", "layer_types", "quantization_config", "dtype"]:
        for value in HOSTILE:
            if value == 10**9 and (key in sizes or key == "num_key_value_heads"):
                continue
            file.write_text(json.dumps(json.loads(original) | {key: value}))
            _equals(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope_parameters", {"rope_type": "nonsense"}),
        ("rope_parameters", {"rope_type": "yarn"}),
        ("eos_token_id", "2"),
        ("num_hidden_layers", "two"),
        ("hidden_size", -1),
        ("model_type", "nonsense"),
        ("model_type", None),
        ("model_type", "vit"),
        ("layer_types", ["linear_attention"] * 4),
        ("num_key_value_heads", 3),
        ("max_position_embeddings", None),
        ("hidden_act", "nonsense"),
        ("architectures", 3),
        ("rms_norm_eps", "small"),
    ],
)
def test_a_config_with_a_wrong_value_opens_and_equals_or_is_refused(key: str, value: Any, folder: Path) -> None:
    configure(folder, **{key: value})
    _equals(folder)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "config.json").write_text("{"),
        lambda folder: (folder / "config.json").write_text("[]"),
        lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe\x00"),
        lambda folder: (folder / "config.json").write_text("[" * 100_000),
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "tokenizer.json").write_text("{"),
        lambda folder: (folder / "tokenizer.json").write_text('{"model": 3}'),
        lambda folder: (folder / "tokenizer.json").unlink(),
        lambda folder: (folder / "model.safetensors").write_bytes(b""),
        lambda folder: (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n"),
        lambda folder: (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-1000]),
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "generation_config.json").write_text("{"),
    ],
)
def test_damaged_files_are_refused(spoil: Callable[[Path], Any], folder: Path) -> None:
    spoil(folder)
    with pytest.raises(DslError):
        open_engine(folder, OPTIONS)


def test_soft_caps_and_batch_invariance_are_refused_by_name(tmp_path: Path) -> None:
    write_folder(tiny_model("gemma2"), tmp_path)
    with pytest.raises(ModelLoadError, match="batch-invariant"):
        open_engine(tmp_path, ModelOptions(dtype="float32", kv_bytes=1 << 22, batch_invariant=True))


@pytest.mark.parametrize("eos", [50256, 288, [2, -1], -1, [2, 10**6]])
def test_end_ids_outside_the_vocabulary_are_left_out(eos: Any, folder: Path) -> None:
    """cases: 206."""
    configure(folder, eos_token_id=eos)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    with open_engine(folder, OPTIONS) as engine:
        assert all(0 <= token_id < 288 for token_id in engine.text.tokenizer.stop_ids)
        assert engine.generate(IDS[:9], ONE).token_ids is not None


SCALED = [
    ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}, 2048),
    ({"rope_type": "linear", "factor": 4.0}, 2048),
    ({"rope_type": "dynamic", "factor": 4.0}, 2048),
    ({"rope_type": "default"}, 512),
]


@pytest.mark.parametrize(("rope", "context"), SCALED)
def test_the_context_of_a_scaled_model_is_factor_times_the_original(
    rope: dict[str, Any], context: int, folder: Path
) -> None:
    """cases: 209."""
    configure(folder, max_position_embeddings=512, rope_parameters=rope | {"rope_theta": 10000.0})
    with open_engine(folder, OPTIONS) as engine:
        assert engine.info.context_tokens == context
        if context > 512:
            found = engine.generate(IDS[:562], ONE, prompt_logprobs=0).prompt_scores
            assert [s.logprob for s in found[1:]] == pytest.approx(plain_logprobs(_plain(folder), IDS[:562]), abs=5e-5)


def test_an_option_decides_the_context(folder: Path) -> None:
    with open_engine(folder, ModelOptions(dtype="float32", kv_bytes=1 << 24, context_tokens=300)) as engine:
        assert engine.info.context_tokens == 300


def test_more_context_than_a_table_of_positions_has_is_refused(tmp_path: Path) -> None:
    write_folder(tiny_model("gpt2"), tmp_path)
    with pytest.raises(ModelLoadError, match="positions"):
        open_engine(tmp_path, ModelOptions(kv_bytes=1 << 22, context_tokens=5000))


def _plain(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def _equals(folder: Path) -> None:
    """It opens and gives the plain forward's log-probabilities, or is refused by one of our errors."""
    try:
        engine = open_engine(folder, OPTIONS)
    except DslError:
        return
    with engine:
        count = min(40, engine.info.context_tokens - 2)
        try:
            found = engine.generate(IDS[:count], ONE, prompt_logprobs=0).prompt_scores
        except DslError:
            return
    assert [s.logprob for s in found[1:]] == pytest.approx(plain_logprobs(_plain(folder), IDS[:count]), abs=5e-5)
