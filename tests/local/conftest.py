"""A tiny random Llama behind a TorchWorker, and the plain forward it has to agree with."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from sglang_dsl.errors import ConstraintError

if TYPE_CHECKING:
    from sglang_dsl.ir.specs import ConstraintSpec

VOCAB = 97


@dataclass
class ByteTokenizer:
    """Token i is the byte i; 0 is a control token that ends a turn."""

    vocab_size: int = VOCAB
    bos_id: int | None = None
    adds_bos: bool = False
    stop_ids: frozenset[int] = frozenset({0})
    control_ids: frozenset[int] = frozenset({0})
    fingerprint: str = "bytes"

    def encode(self, text: str, *, first: bool = False) -> list[int]:
        return list(text.encode())

    def encode_segment(self, pieces: Any, *, first: bool = False) -> list[int]:
        return [i for piece in pieces for i in piece.text.encode()]

    def fewest_tokens(self, text: str, enough: int) -> int:
        return len(text.encode())

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id in self.control_ids else bytes([token_id])

    def decode(self, token_ids: Any) -> str:
        return b"".join(map(self.token_bytes, token_ids)).decode(errors="replace")


@dataclass
class SequenceMatcher:
    """Allows exactly the given ids, in order."""

    allowed: tuple[int, ...]
    at: int = 0

    def accept(self, token_id: int) -> bool:
        if self.must_end or token_id != self.allowed[self.at]:
            return False
        self.at += 1
        return True

    def fork(self) -> SequenceMatcher:
        return SequenceMatcher(self.allowed, self.at)

    @property
    def may_end(self) -> bool:
        return self.must_end

    @property
    def must_end(self) -> bool:
        return self.at == len(self.allowed)

    def fill_mask(self, row: Any) -> None:
        if self.allowed[0] == 96:
            raise RuntimeError("this matcher is broken")
        row.zero_()
        token = self.allowed[self.at]
        if token != 95:
            row[token // 32] = (1 << (token % 32)) if token % 32 < 31 else -(1 << 31)

    def matcher(self) -> SequenceMatcher:
        return self.fork()


@dataclass
class SequenceCompiler:
    """Reads the regex `5,7,9` as these ids. 95 masks everything; 96 first is a matcher that fails."""

    compiled: list[str] = field(default_factory=list)
    closed: bool = False

    def compile(self, spec: ConstraintSpec) -> Future[Any]:
        future: Future[Any] = Future()
        self.compiled.append(spec.text)
        try:
            future.set_result(SequenceMatcher(tuple(map(int, spec.text.split(",")))))
        except ValueError:
            future.set_exception(ConstraintError(f"{spec.text!r} is not a list of ids"))
        return future

    def close(self) -> None:
        self.closed = True


def tiny_llama(**options: Any) -> Any:
    """A random Llama in float32; equal options give equal weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(11)
    values = {
        "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6,
        "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.3,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**(values | options))).eval()


def _greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """`count` greedy tokens by the plain forward over the whole sequence each time."""
    import torch

    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.fixture(scope="session")
def plain_model() -> Any:
    pytest.importorskip("torch")
    return tiny_llama()


@pytest.fixture
def compiler() -> SequenceCompiler:
    return SequenceCompiler()


@pytest.fixture(
    params=[(1, "native"), (16, "native"), (16, "transformers")], ids=["page1", "page16", "page16-transformers"]
)
def worker(request: pytest.FixtureRequest, compiler: SequenceCompiler) -> Any:
    pytest.importorskip("torch")
    from sglang_dsl.runtime.backends.local.worker import TorchWorker
    from sglang_dsl.runtime.model.load import serve
    from sglang_dsl.runtime.model.options import ModelOptions

    page_size, decoder = request.param
    options = ModelOptions(
        dtype="float32", device="cpu", packed_linears=False, page_size=page_size, kv_bytes=1 << 21, decoder=decoder
    )
    made = TorchWorker(serve(tiny_llama(), options, fingerprint="tiny"), ByteTokenizer(), compiler, name="tiny")
    yield made
    made.close()


@pytest.fixture(scope="session")
def greedy_plain() -> Any:
    """Function (model, prompt, count) -> greedy tokens of the plain forward."""
    return _greedy


@pytest.fixture
def make_tiny() -> Any:
    """Function -> the tiny random model, anew."""
    return tiny_llama


@pytest.fixture
def tokenizer() -> ByteTokenizer:
    return ByteTokenizer()
