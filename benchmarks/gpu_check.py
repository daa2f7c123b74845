"""What a GPU has to show, as one script: equality with the plain forward, memory, and the time of W1's shape.

    python benchmarks/gpu_check.py [--model FILE_OR_FOLDER] [--workload FILE] [--device cuda]

Runs from the source tree with torch >= 2.11, transformers 5.24 and numpy. Without --model the weights are random, in the
shape of SmolLM2-135M; without --workload the ids are. A workload file holds `w1` with `prefix_ids`, `suffix_ids`, `max_new`.
Where there is no such device it says so and ends well.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from sglang_dsl.ir.specs import ConstraintSpec, SamplingSpec
from sglang_dsl.runtime.backends.local.worker import TorchWorker
from sglang_dsl.runtime.engine.border import EngineConfig
from sglang_dsl.runtime.engine.engine import Engine
from sglang_dsl.runtime.model.load import LoadedModel, read_model, serve
from sglang_dsl.runtime.model.options import ModelOptions
from sglang_dsl.runtime.text.tokenizer import ChatMlTemplate, TextPiece

NEAR_TIE = 1e-3  # first differences are allowed where the reference's two best logits are this close
EQUAL_TOKENS = 24


class Ids:
    """Stands in for a model's tokenizer: a token's text is its number."""

    vocab_size = 49152
    bos_id = None
    adds_bos = False
    stop_ids: frozenset[int] = frozenset()
    control_ids: frozenset[int] = frozenset()
    fingerprint = "ids"

    def encode(self, text: str, *, first: bool = False) -> list[int]:
        return [int(word) for word in text.split()]

    def encode_segment(self, pieces: Sequence[TextPiece], *, first: bool = False) -> list[int]:
        return [token_id for piece in pieces for token_id in self.encode(piece.text)]

    def token_bytes(self, token_id: int) -> bytes:
        return b"%d " % token_id

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, token_ids)).decode()


@dataclass
class Text:
    tokenizer: Ids = field(default_factory=Ids)
    template: ChatMlTemplate = field(default_factory=ChatMlTemplate)


class NoConstraints:
    """No constraint is asked for here."""

    def compile(self, spec: ConstraintSpec) -> Any:
        raise NotImplementedError(spec.kind)

    def close(self) -> None:
        """Nothing runs."""


@dataclass(frozen=True)
class FanOut:
    prefix: list[int]
    suffixes: list[list[int]]
    max_new: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--workload", type=Path)
    parser.add_argument("--device", default="cuda")
    chosen = parser.parse_args()
    if torch.device(chosen.device).type == "cuda" and not torch.cuda.is_available():
        print(f"no GPU: torch {torch.__version__} sees no CUDA device; nothing was checked")
        return 0
    work = _work(chosen.workload)
    print(f"device {_device_name(chosen.device)}, torch {torch.__version__}")
    checks = [_check_equality(chosen, work), _check_sharing(chosen, work)]
    return 0 if all(checks) else 1


def _check_equality(chosen: argparse.Namespace, work: FanOut) -> bool:
    """float32, greedy: six prompts below one prefix, in a batch, cold and warm, against the plain forward."""
    prompts = [work.prefix[:400] + suffix for suffix in work.suffixes[:6]]
    plain = _model(chosen.model, torch.float32).to(chosen.device).eval()
    with _engine(chosen, ModelOptions(dtype="float32", device=chosen.device, kv_bytes=1 << 29)) as (engine, loaded):
        print(f"self-check: relative difference {loaded.check_difference:.2e}")
        cold = _generate(engine, prompts, EQUAL_TOKENS)
        warm = _generate(engine, prompts, EQUAL_TOKENS)
    verdicts = [_compare(plain, p, got) for p, got in zip(prompts * 2, cold + warm, strict=True)]
    ties, wrong = verdicts.count("tie"), verdicts.count("different")
    print(f"equality: {len(verdicts)} outputs of {EQUAL_TOKENS} tokens, {ties} differ at a near-tie, {wrong} are wrong")
    return wrong == 0


def _check_sharing(chosen: argparse.Namespace, work: FanOut) -> bool:
    """W1's shape: the prefix is computed once and held once; times of a cold and a warm run."""
    with _engine(chosen, ModelOptions(device=chosen.device)) as (engine, loaded):
        before = loaded.pool.counters().written_tokens
        for name in ("cold", "warm"):
            began = time.perf_counter()
            results = _generate(engine, [work.prefix + suffix for suffix in work.suffixes], work.max_new)
            wall_s = time.perf_counter() - began
            tokens = sum(map(len, results))
            print(f"W1 {name}: {tokens} tokens in {wall_s:.2f} s, {tokens / wall_s:.0f} tokens/s")
        written = loaded.pool.counters().written_tokens - before
        once = len(work.prefix) + sum(map(len, work.suffixes)) + 2 * len(work.suffixes) * (work.max_new + 1)
        room = loaded.pool.counters()
        print(
            f"W1 stored {written} tokens (each once: {once}); pool {room.total_bytes >> 20} MiB, {room.bytes_per_token} B/token"
        )
        if loaded.device.type == "cuda":
            print(f"peak device memory {torch.cuda.max_memory_allocated() >> 20} MiB")
    return written <= 1.05 * once


class _engine:  # noqa: N801 - reads as the verb it is used as
    """A model behind an engine, closed at the end."""

    def __init__(self, chosen: argparse.Namespace, options: ModelOptions) -> None:
        dtype = torch.float32 if options.dtype == "float32" else torch.bfloat16
        self._loaded = serve(_model(chosen.model, dtype).to(chosen.device), options, fingerprint="gpu-check")
        worker = TorchWorker(self._loaded, Text().tokenizer, NoConstraints(), name="gpu-check")
        self._engine = Engine(worker, Text(), config=EngineConfig(max_batch_tokens=4096))

    def __enter__(self) -> tuple[Engine, LoadedModel]:
        return self._engine, self._loaded

    def __exit__(self, *exception: object) -> None:
        self._engine.close()


def _generate(engine: Engine, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Greedy tokens of all prompts, asked at once."""
    sampling = SamplingSpec(temperature=0, max_tokens=count, ignore_eos=True)
    ask: Callable[[Sequence[int]], Any] = lambda prompt: engine.generate(prompt, sampling)  # noqa: E731
    with ThreadPoolExecutor(len(prompts)) as threads:
        return [list(result.token_ids) for result in threads.map(ask, prompts)]


@torch.inference_mode()
def _compare(plain: Any, prompt: list[int], got: list[int]) -> str:
    """ "equal", "tie" or "different": the plain forward over prompt and output says what each token should be."""
    ids = torch.tensor([prompt + got], device=plain.device)
    logits = plain(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    best = logits.topk(2)
    for i, token in enumerate(got):
        if token != int(best.indices[i, 0]):
            return "tie" if float(best.values[i, 0] - best.values[i, 1]) < NEAR_TIE else "different"
    return "equal"


def _model(path: Path | None, dtype: torch.dtype) -> Any:
    if path is not None:
        return read_model(path, dtype)
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, rope_theta=100000.0, rms_norm_eps=1e-5,
        tie_word_embeddings=True, initializer_range=0.06,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(dtype)


def _work(path: Path | None) -> FanOut:
    if path is not None:
        w1 = json.loads(path.read_text())["w1"]
        return FanOut(w1["prefix_ids"], w1["suffix_ids"], w1["max_new"])
    ids = torch.randint(3, 49152, (3012 + 40 * 51,), generator=torch.Generator().manual_seed(1)).tolist()
    return FanOut(ids[:3012], [ids[3012 + 51 * i : 3012 + 51 * (i + 1)] for i in range(40)], 64)


def _device_name(name: str) -> str:
    return torch.cuda.get_device_name(name) if torch.device(name).type == "cuda" else name


if __name__ == "__main__":
    sys.exit(main())
