"""SmolLM2 behind the whole engine, with a canary before every forward; and prompts that share beginnings of every length."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from canary import CanaryWorker

from sglang_dsl.errors import ModelNotFoundError
from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.runtime.backends.local.worker import TorchWorker
from sglang_dsl.runtime.engine.border import EngineConfig
from sglang_dsl.runtime.engine.engine import Engine
from sglang_dsl.runtime.model.load import load_model
from sglang_dsl.runtime.model.options import ModelOptions
from sglang_dsl.runtime.sample.grammar import GrammarPool
from sglang_dsl.runtime.schedule.request import GenerateResult
from sglang_dsl.runtime.supply import locate
from sglang_dsl.runtime.text.load import load_text

BYTES_PER_TOKEN = 30 * 3 * 2 * 64 * 4  # layers, kv heads, keys and values, head size, float32
EDGES = (1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 399, 400)
SENTENCES = (
    "The harbour master keeps a list of every boat that comes in after dark. ",
    "Water boils at a lower temperature on top of a mountain than at the sea. ",
    "def area(width, height):\n    return width * height\n\n",
    "Nobody in the village remembered who had built the old stone bridge. ",
    "The capital of France is Paris, and the capital of Italy is Rome. ",
    "| name | age |\n|---|---|\n| Ana | 31 |\n| Bo | 27 |\n",
    "She counted slowly: one, two, three, four, five, six, seven, eight. ",
    "Dear Sir or Madam, I am writing to ask about the invoice of last month. ",
    "In winter the lake freezes, and children skate on it until it is night. ",
    'The server answered {"status": "ok", "items": [1, 2, 3]} and closed. ',
    "Copper, iron, tin and zinc are metals; oxygen and nitrogen are gases. ",
    "It was the third time that week that the train had left without him. ",
)


@dataclass
class SmolLm2:
    engine: Engine
    canary: CanaryWorker

    def close(self) -> None:
        self.engine.close()


def open_smollm2(
    *, pool_tokens: int = 16384, page_size: int = 1, batch_invariant: bool = False, **config: Any
) -> SmolLm2:
    """In float32, one thread. The other options are those of EngineConfig; skips the test where the weights are missing."""
    try:
        files = locate("smollm2")
    except ModelNotFoundError as error:
        pytest.skip(str(error))
    options = ModelOptions(
        dtype="float32", packed_linears=False, self_check=False, device="cpu", page_size=page_size, threads=1,
        kv_bytes=pool_tokens * BYTES_PER_TOKEN, batch_invariant=batch_invariant,
    )  # fmt: skip
    text = load_text(files.path, files.fingerprint)
    model = load_model(files.path, options, fingerprint=files.fingerprint)
    worker = TorchWorker(model, text.tokenizer, GrammarPool(text.tokenizer, model.vocab_size), name=files.name)
    canary = CanaryWorker(worker)
    assert canary.info.num_pages * page_size == pool_tokens
    return SmolLm2(Engine(canary, text, config=EngineConfig(**config), background=False), canary)


def prompts_for(engine: Engine, count: int, *, longest: int, seed: int = 7) -> list[list[int]]:
    """Lengths from 1 to `longest`, the edges of pages and blocks first; documents that share beginnings; some equal."""
    rng = random.Random(seed)
    encode = engine.text.tokenizer.encode
    documents = []
    for _ in range(max(2, count // 10)):
        parts = [rng.choice(SENTENCES) for _ in range(40)]
        documents.append([i for part in parts for i in encode(part)])
    lengths = [edge for edge in EDGES if edge <= longest]
    prompts: list[list[int]] = []
    while len(prompts) < count:
        kind = rng.random()
        if kind < 0.15 and prompts:
            prompts.append(list(rng.choice(prompts)))
            continue
        length = lengths.pop() if lengths else rng.randrange(1, longest + 1)
        prompt = list(rng.choice(documents)[:length])
        tail = encode(rng.choice(SENTENCES)) if kind > 0.5 else []
        prompts.append([*prompt[: max(0, length - len(tail))], *tail][:length])
    return prompts


def run(
    model: SmolLm2, prompts: Sequence[Sequence[int]], sampling: SamplingSpec, **options: Any
) -> list[GenerateResult]:
    """All prompts admitted together; an error of one is raised."""
    results = []
    for result in model.engine.generate_batch(prompts, sampling, **options):
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results
