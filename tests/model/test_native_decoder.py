"""The native Llama decoder: the same bits as transformers' modules, used only where the check has found it so."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.engine

from sglang_dsl.errors import ModelLoadError, SelfCheckError, SpecError
from sglang_dsl.kernels.attention import QueryRow, plan_step
from sglang_dsl.runtime.model import llama
from sglang_dsl.runtime.model import weights as keep_module
from sglang_dsl.runtime.model.adapter import PackedTokens, TransformersDecoder
from sglang_dsl.runtime.model.llama import LlamaDecoder, LlamaShape, llama_shape
from sglang_dsl.runtime.model.load import LoadedModel, PackedLinear, can_pack, load_model, serve
from sglang_dsl.runtime.model.options import ModelOptions
from sglang_dsl.runtime.supply import models as fingerprints

MakeModel = Callable[[str], Any]
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "one head of keys": {"num_key_value_heads": 1},
    "wide heads": {"head_dim": 32},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "llama3": {"rope_parameters": LLAMA3},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32
        }
    },
}  # fmt: skip
OTHERS: dict[str, dict[str, Any]] = {
    "biases of attention": {"attention_bias": True},
    "biases of the network": {"mlp_bias": True},
    "another activation": {"hidden_act": "gelu"},
    "factors by length": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}},
}
SIZES = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.3, "tie_word_embeddings": False,
}  # fmt: skip


def tiny(dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    model = LlamaForCausalLM(LlamaConfig(**(SIZES | options))).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.3, 1.5)
        if "bias" in name:
            torch.nn.init.uniform_(parameter, -0.5, 0.5)
    return model.to(dtype)


def options(dtype: str = "float32", **chosen: Any) -> ModelOptions:
    return ModelOptions(**({"dtype": dtype, "device": "cpu", "kv_bytes": 1 << 20} | chosen))


def decoder_of(loaded: LoadedModel) -> Any:
    return loaded.packed._decoder  # type: ignore[attr-defined]


def logits(loaded: LoadedModel, page: int = 0) -> torch.Tensor:
    """Of a prompt, a longer one beside it, and one more token of the first."""
    size, device = loaded.pool.page_size, loaded.device
    pages = [list(range(page, page + 60)), list(range(page + 60, page + 120))]
    rows = [(list(range(3, 20)), 0, 0), (list(range(40, 1, -1)), 0, 1)]
    found = []
    for step in (rows, [([9], 17, 0)]):
        plan = plan_step([QueryRow(len(ids), start, pages[i]) for ids, start, i in step], page_size=size, device=device)
        ids = torch.tensor([i for ids, _, _ in step for i in ids])
        places = torch.cat([torch.arange(start, start + len(ids)) for ids, start, _ in step])
        found.append(loaded.packed.forward(PackedTokens(ids, places), plan, torch.arange(len(ids))))
    return torch.cat(found)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("invariant", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_native_decoder_gives_the_bits_of_transformers(dtype: str, invariant: bool, packed: bool) -> None:
    chosen = {"batch_invariant": invariant, "packed_linears": packed, "threads": 1}
    kind = getattr(torch, dtype)
    native = serve(tiny(kind), options(dtype, **chosen), fingerprint="x")
    other = serve(tiny(kind), options(dtype, **chosen, decoder="transformers"), fingerprint="x")
    assert type(decoder_of(native)) is LlamaDecoder
    assert type(decoder_of(other)) is TransformersDecoder
    assert isinstance(decoder_of(native).head, PackedLinear) is (packed and can_pack(kind, torch.device("cpu")))
    assert torch.equal(logits(native), logits(other))
    assert native.kv_layout == other.kv_layout
    assert native.pool.counters() == other.pool.counters()


@pytest.mark.parametrize("variant", VARIANTS)
def test_native_decoder_gives_the_bits_of_each_variant(variant: str) -> None:
    native = serve(tiny(**VARIANTS[variant]), options(decoder="native"), fingerprint="x")
    other = serve(tiny(**VARIANTS[variant]), options(decoder="transformers"), fingerprint="x")
    assert torch.equal(logits(native), logits(other))
    assert native.context_tokens == other.context_tokens
    assert native.check_difference is not None
    assert native.check_difference < 1e-5


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_no_plain_llama_is_left_to_transformers(other: str) -> None:
    assert type(decoder_of(serve(tiny(**OTHERS[other]), options(), fingerprint="x"))) is TransformersDecoder
    with pytest.raises(ModelLoadError, match="LlamaForCausalLM has no native decoder"):
        serve(tiny(**OTHERS[other]), options(decoder="native"), fingerprint="x")


@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_other_families_are_left_to_transformers(family: str, make_model: MakeModel) -> None:
    assert type(decoder_of(serve(make_model(family), options(), fingerprint="x"))) is TransformersDecoder


def test_a_model_with_a_part_of_another_kind_is_no_plain_llama() -> None:
    class Special(torch.nn.Linear):
        pass

    model = tiny()
    assert llama_shape(model, 128) is not None
    model.model.layers[1].mlp.up_proj.__class__ = Special
    assert llama_shape(model, 128) is None
    mixed = tiny()
    mixed.model.norm.to(torch.bfloat16)
    assert llama_shape(mixed, 128) is None


def _turned_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    right = llama._rotated
    monkeypatch.setattr(llama, "_rotated", lambda x, turns: right(x, (turns[0], turns[1] * 1.01)))


def test_a_native_decoder_that_differs_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = logits(serve(tiny(), options(decoder="transformers"), fingerprint="x"))
    _turned_too_far(monkeypatch)
    loaded = serve(tiny(), options(), fingerprint="x")
    assert type(decoder_of(loaded)) is TransformersDecoder
    assert torch.equal(logits(loaded), expected)
    assert "the native decoder is not used: " in caplog.text
    assert "the native Llama decoder gives different logits on pages" in caplog.text
    with pytest.raises(SelfCheckError, match="native Llama decoder gives different logits on pages"):
        serve(tiny(), options(decoder="native"), fingerprint="x")


def test_without_the_check_transformers_serves() -> None:
    assert type(decoder_of(serve(tiny(), options(self_check=False), fingerprint="x"))) is TransformersDecoder
    with pytest.raises(SpecError, match="serves only what the self-check has passed"):
        options(decoder="native", self_check=False)
    with pytest.raises(SpecError, match="decoder='own' is unknown"):
        options(decoder="own")


def test_a_model_that_no_longer_serves_gives_up_its_weights() -> None:
    if not can_pack(torch.float32, torch.device("cpu")):
        pytest.skip("this processor has no packed float32")
    model = tiny()
    serve(model, options(), fingerprint="x")
    assert not list(model.parameters())


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which checks are noted."""
    monkeypatch.setattr(keep_module, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "opened"


def saved(folder: Path, model: Any, **how: Any) -> Path:
    model.save_pretrained(folder, **how)
    return folder


def reopened(path: Path, monkeypatch: pytest.MonkeyPatch, **chosen: Any) -> LoadedModel:
    """Opened once more, where nobody may ask transformers."""
    from sglang_dsl.runtime.model import load

    def refused(*args: Any) -> Any:
        raise AssertionError("transformers was asked")

    with monkeypatch.context() as patch:
        patch.setattr(load, "read_model", refused)
        return opened(path, **chosen)


def opened(path: Path, **chosen: Any) -> LoadedModel:
    digest = fingerprints.folder_fingerprint if path.is_dir() else fingerprints.file_fingerprint
    return load_model(path, options(**chosen), fingerprint=digest(path), keep=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("how", [{}, {"max_shard_size": "60KB"}])
@pytest.mark.parametrize("tied", [True, False])
def test_a_folder_opens_again_without_transformers_and_gives_the_same_bits(
    tied: bool, how: dict[str, Any], dtype: str, tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "model", tiny(tie_word_embeddings=tied), **how)
    first = opened(path, dtype=dtype)
    again = reopened(path, monkeypatch, dtype=dtype)
    other = opened(path, dtype=dtype, decoder="transformers")
    assert type(decoder_of(first)) is type(decoder_of(again)) is LlamaDecoder
    assert torch.equal(logits(first), logits(again))
    assert torch.equal(logits(first), logits(other))
    for name in ("context_tokens", "vocab_size", "dtype", "device", "check_difference", "kv_layout", "fingerprint"):
        assert getattr(first, name) == getattr(again, name)
    assert list(again.positions.borders) == []


def test_a_gguf_file_opens_again_without_transformers(
    make_gguf: Callable[..., Path], make_model: MakeModel, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_gguf("llama", make_model("llama"), "Q8_0")
    first, again = opened(path), reopened(path, monkeypatch)
    assert torch.equal(logits(first), logits(again))
    for file in kept.glob("*.safetensors"):
        file.unlink()  # the weights are read anew, the check stands
    assert torch.equal(logits(first), logits(reopened(path, monkeypatch)))


def test_another_way_of_opening_is_checked_on_its_own(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "model", tiny())
    opened(path)
    for chosen in ({"dtype": "bfloat16"}, {"packed_linears": False}, {"context_tokens": 64}, {"decoder": "native"}):
        with pytest.raises(ModelLoadError, match="transformers was asked"):
            reopened(path, monkeypatch, **chosen)
    reopened(path, monkeypatch)
    saved(path, tiny(rope_parameters=LLAMA3))  # other contents, the same place
    with pytest.raises(ModelLoadError, match="transformers was asked"):
        reopened(path, monkeypatch)


@pytest.mark.parametrize(
    "spoil",
    [lambda text: "{", lambda text: "[]", lambda text: text.replace('"layers": 3', '"layers": 2'), lambda text: ""],
)
def test_a_damaged_note_is_not_believed(
    spoil: Callable[[str], str], tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "model", tiny())
    expected = logits(opened(path))
    (note,) = kept.glob("*.json")
    note.write_text(spoil(note.read_text()))
    with pytest.raises(ModelLoadError, match="transformers was asked"):
        reopened(path, monkeypatch)
    assert torch.equal(logits(opened(path)), expected)
    reopened(path, monkeypatch)


@pytest.mark.parametrize(
    "change",
    [
        {"heads": True}, {"layers": 2.0}, {"rotary_frequencies": [1.0]}, {"rotary_frequencies": None}, {"more": 1},
        {"norm_epsilon": "1e-6"}, {"tied": 1},
    ],
)  # fmt: skip
def test_what_is_no_shape_is_read_as_none(change: dict[str, Any]) -> None:
    shape = llama_shape(tiny(), 128)
    assert shape is not None
    assert LlamaShape.from_json(shape.to_json() | change) is None


def test_weights_that_only_transformers_finds_are_left_to_it(tmp_path: Path, kept: Path) -> None:
    """Names of a base model, without the prefix of the language model: transformers renames them."""
    from safetensors.torch import load_file, save_file

    path = saved(tmp_path / "model", tiny(tie_word_embeddings=True))
    file = path / "model.safetensors"
    save_file({name.removeprefix("model."): t for name, t in load_file(file).items()}, file, metadata={"format": "pt"})
    assert type(decoder_of(opened(path))) is TransformersDecoder
    assert type(decoder_of(opened(path))) is TransformersDecoder


def test_a_shape_is_written_and_read_exactly() -> None:
    shape = llama_shape(tiny(rope_parameters=LLAMA3), 128)
    assert shape is not None
    assert LlamaShape.from_json(json.loads(json.dumps(shape.to_json()))) == shape
    assert LlamaShape.from_json(None) is None


PROGRAM = """
import sys
import sglang_dsl as dsl

@dsl.program
def ask(s):
    with s.user():
        s += "Name a metal."
    with s.assistant():
        s += dsl.gen("metal", max_tokens=8, temperature=0)

print(repr(ask.run(options=dsl.RunOptions(backend="local:smollm2")).text))
print(sorted({"transformers", "xgrammar", "gguf", "networkx", "sympy"} & set(sys.modules)))
"""


@pytest.mark.model
@pytest.mark.timeout(300)
def test_smollm2_answers_again_without_importing_transformers() -> None:
    """cases: 408. Nothing that only a first open or a constraint needs is imported by a later one."""
    said = [
        subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout.splitlines()
        for _ in range(2)
    ]
    assert "Name a metal." in said[0][0]
    assert said[0][0] == said[1][0]
    assert said[1][-1] == "[]"
