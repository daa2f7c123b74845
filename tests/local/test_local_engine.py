"""The engine on a tiny random model: greedy equality with the plain forward, and the batch-invariant mode, end to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.runtime.backends.local.worker import TorchWorker
from sglang_dsl.runtime.engine.border import EngineConfig
from sglang_dsl.runtime.engine.engine import Engine
from sglang_dsl.runtime.model.load import serve
from sglang_dsl.runtime.model.options import ModelOptions
from sglang_dsl.runtime.text.tokenizer import ChatMlTemplate

pytestmark = pytest.mark.engine

MakeModel = Callable[..., Any]
GENERATOR = torch.Generator().manual_seed(21)
COMMON = torch.randint(1, 96, (300,), generator=GENERATOR).tolist()
PROMPTS = [COMMON + torch.randint(1, 96, (3 + 5 * i,), generator=GENERATOR).tolist() for i in range(6)]
PROMPTS += [torch.randint(1, 96, (40,), generator=GENERATOR).tolist() for _ in range(2)]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@contextmanager
def engine(model: Any, tokenizer: Any, compiler: Any, *, config: EngineConfig, **options: Any) -> Iterator[Engine]:
    values = {"dtype": "float32", "device": "cpu", "packed_linears": False, "kv_bytes": 1 << 21}
    loaded = serve(model, ModelOptions(**(values | options)), fingerprint="tiny")
    worker = TorchWorker(loaded, tokenizer, compiler, name="tiny")
    text = SimpleNamespace(tokenizer=tokenizer, template=ChatMlTemplate())
    opened = Engine(worker, text, config=config)
    try:
        yield opened
    finally:
        opened.close()


def together(opened: Engine, sampling: SamplingSpec) -> list[Any]:
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        return list(threads.map(lambda prompt: opened.generate(prompt, sampling), PROMPTS))


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(),
        EngineConfig(prefix_cache=False),
        EngineConfig(cascade_min_tokens=32),
        EngineConfig(max_batch_tokens=48, max_running=8, prefill_chunk_tokens=16),
    ],
    ids=["default", "no-cache", "cascade", "chunks"],
)
def test_engine_batch_equals_plain_greedy(
    config: EngineConfig,
    page_size: int,
    make_tiny: MakeModel,
    tokenizer: Any,
    compiler: Any,
    plain_model: Any,
    greedy_plain: Any,
) -> None:
    expected = [tuple(greedy_plain(plain_model, prompt, 8)) for prompt in PROMPTS]
    greedy = SamplingSpec(temperature=0, max_tokens=8, ignore_eos=True)
    with engine(make_tiny(), tokenizer, compiler, config=config, page_size=page_size) as opened:
        for _ in ("cold", "warm"):
            results = together(opened, greedy)
            assert [r.token_ids for r in results] == expected
        if config.prefix_cache:
            assert all(r.cached_tokens >= r.prompt_tokens - page_size for r in results)


def _facts(result: Any) -> tuple[Any, ...]:
    return result.token_ids, tuple(s.logprob for s in result.token_scores)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_engine_batch_invariant_bits_are_the_same_cold_warm_alone_and_chunked(
    temperature: float, make_tiny: MakeModel, tokenizer: Any, compiler: Any
) -> None:
    """Log-probabilities are compared exactly: any rounding that depended on the batch would show."""
    sampling = SamplingSpec(temperature=temperature, max_tokens=6, seed=7, logprobs=0, ignore_eos=True)
    seen = []
    hits = 0
    for config in (EngineConfig(), EngineConfig(max_batch_tokens=40, max_running=8, prefill_chunk_tokens=16)):
        with engine(make_tiny(), tokenizer, compiler, config=config, batch_invariant=True) as opened:
            seen.append([_facts(r) for r in together(opened, sampling)])
            warm = [opened.generate(prompt, sampling) for prompt in PROMPTS]
            hits += sum(r.cached_tokens for r in warm)
            seen.append([_facts(r) for r in warm])
    with engine(
        make_tiny(), tokenizer, compiler, config=EngineConfig(prefix_cache=False), batch_invariant=True
    ) as opened:
        cold = [_facts(opened.generate(prompt, sampling)) for prompt in PROMPTS]
    assert hits > 1000
    assert all(facts == cold for facts in seen)
    assert len({tokens for tokens, _ in cold}) == len(PROMPTS)
