"""A tiny random Llama over single bytes behind the whole engine: real forwards, real grammars, no weights to download."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from canary import CanaryWorker

from sglang_dsl.runtime.backends.local.worker import TorchWorker
from sglang_dsl.runtime.engine.border import EngineConfig
from sglang_dsl.runtime.engine.engine import Engine
from sglang_dsl.runtime.engine.metrics import VirtualClock
from sglang_dsl.runtime.model.load import serve
from sglang_dsl.runtime.model.options import ModelOptions
from sglang_dsl.runtime.sample.grammar import GrammarPool

END = 256
VOCAB = 257


@dataclass
class ByteTokenizer:
    """Token i is byte i; 256 ends a text. `encoded` lists what was tokenized."""

    vocab_size: int = VOCAB
    bos_id: int | None = None
    adds_bos: bool = False
    stop_ids: frozenset[int] = frozenset({END})
    control_ids: frozenset[int] = frozenset({END})
    fingerprint: str = "bytes"
    encoded: list[str] = field(default_factory=list)

    def encode(self, text: str, *, first: bool = False) -> list[int]:
        self.encoded.append(text)
        return list(text.encode())

    def encode_segment(self, pieces: Sequence[Any], *, first: bool = False) -> list[int]:
        return self.encode("".join(piece.text for piece in pieces))

    def fewest_tokens(self, text: str, enough: int) -> int:
        return len(text.encode())

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id == END else bytes([token_id])

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, token_ids)).decode(errors="replace")


@dataclass
class TinyEngine:
    engine: Engine
    canary: CanaryWorker
    tokenizer: ByteTokenizer


def tiny_llama() -> Any:
    """Random weights in float32, the same each time."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.3,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def open_tiny_engine(
    *, page_size: int = 1, pool_tokens: int = 4096, batch_invariant: bool = False, **config: Any
) -> TinyEngine:
    """An engine that its owner turns. The other options are those of EngineConfig."""
    bytes_per_token = 2 * 2 * 2 * 8 * 4  # layers, kv heads, keys and values, head size, float32
    options = ModelOptions(
        dtype="float32", device="cpu", packed_linears=False, self_check=False, page_size=page_size,
        kv_bytes=pool_tokens * bytes_per_token, batch_invariant=batch_invariant,
    )  # fmt: skip
    tokenizer = ByteTokenizer()
    model = serve(tiny_llama(), options, fingerprint="tiny")
    canary = CanaryWorker(TorchWorker(model, tokenizer, GrammarPool(tokenizer, VOCAB), name="tiny"))
    assert canary.info.num_pages * page_size == pool_tokens
    settings = {"check_integrity": True, "idle_check_after_s": 0.0} | config
    text = SimpleNamespace(tokenizer=tokenizer, template=None)
    engine = Engine(canary, text, config=EngineConfig(**settings), clock=VirtualClock(), background=False)
    return TinyEngine(engine, canary, tokenizer)


class PlainModel:
    """The plain forward over one sequence: what everything is compared with."""

    def __init__(self) -> None:
        self._model = tiny_llama()

    def logprobs(self, token_ids: Sequence[int]) -> torch.Tensor:
        """[T, V] log-probabilities of what follows each token."""
        with torch.inference_mode():
            out = self._model(input_ids=torch.tensor([list(token_ids)]), use_cache=False)
        return out.logits[0].log_softmax(-1)

    def continuation(self, prompt: Sequence[int], continuation: Sequence[int]) -> list[float]:
        """Log-probability of each token of a continuation on its own path."""
        rows = self.logprobs([*prompt, *continuation])[len(prompt) - 1 : -1]
        return [float(row[token]) for row, token in zip(rows, continuation, strict=True)]
