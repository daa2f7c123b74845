"""Models that compute a long sequence otherwise than a short one: each sequence as transformers' plain forward of it alone.

transformers' own generate agrees with that at a LongRoPE border: it drops its cache there and computes the whole sequence
again. With dynamic scaling it does not (it keeps keys that were rotated for shorter lengths); the plain forward is what counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.engine

from benchmarks.load_matrix import plain_logprobs, tiny_model, write_folder
from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.runtime.backends.local import open_engine
from sglang_dsl.runtime.engine.border import EngineConfig
from sglang_dsl.runtime.engine.engine import Engine
from sglang_dsl.runtime.model.options import ModelOptions

IDS = torch.randint(3, 259, (400,), generator=torch.Generator().manual_seed(3)).tolist()
OTHER = torch.randint(3, 259, (400,), generator=torch.Generator().manual_seed(4)).tolist()
BORDER = 32
EXACT = ModelOptions(dtype="float32", device="cpu", kv_bytes=1 << 24)
CHECKED = EngineConfig(check_integrity=True)
MODELS = ["phi3 + longrope", pytest.param("llama + longrope", marks=pytest.mark.long), "llama + dynamic", "llama4_text"]


def greedy(count: int) -> SamplingSpec:
    return SamplingSpec(max_tokens=count, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder and its reference."""
    folder = tmp_path_factory.mktemp("model")
    made = tiny_model(request.param)
    write_folder(made, folder)
    return folder, made


@pytest.fixture(scope="module")
def engine(model: tuple[Path, Any]) -> Iterator[Engine]:
    page_size = 16 if hasattr(model[1].config, "attention_chunk_size") or "dynamic" in str(model[1].config) else 1
    options = ModelOptions(dtype="float32", device="cpu", kv_bytes=1 << 24, page_size=page_size)
    with open_engine(model[0], options, CHECKED) as opened:
        yield opened


def expected(reference: Any, prompt: Sequence[int], count: int) -> list[int]:
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            reference(input_ids=torch.tensor([ids[:1]]), use_cache=False)  # dynamic scaling forgets longer sequences
            ids.append(int(reference(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def test_each_sequence_alone_beside_others_and_warm_equals_its_plain_forward(
    model: tuple[Path, Any], engine: Engine
) -> None:
    """cases: 201, 202."""
    _, reference = model
    engine.flush()
    prompts = [IDS[:20], IDS[:100], OTHER[:20], IDS[:50], OTHER[:90], IDS[:30]]
    wanted = [expected(reference, prompt, 10) for prompt in prompts]
    assert list(engine.generate(prompts[0], greedy(10)).token_ids) == wanted[0]
    together = engine.generate_batch(prompts, greedy(10))
    assert [list(result.token_ids) for result in together] == wanted
    warm = [engine.generate(prompt, greedy(10)) for prompt in prompts]
    assert [list(result.token_ids) for result in warm] == wanted
    assert warm[0].cached_tokens > 0


@pytest.mark.parametrize("start", [BORDER - 4, BORDER])
def test_a_sequence_that_grows_past_the_border_equals_its_plain_forward(
    model: tuple[Path, Any], engine: Engine, start: int
) -> None:
    wanted = expected(model[1], IDS[:start], 10)
    result = engine.generate(IDS[:start], greedy(10))
    assert list(result.token_ids) == wanted
    assert list(engine.generate(IDS[:start], greedy(10)).token_ids) == wanted


def test_prompt_and_choice_scores_on_both_sides_equal_the_plain_forward(
    model: tuple[Path, Any], engine: Engine
) -> None:
    _, reference = model
    for length in (BORDER - 2, BORDER + 40):
        found = engine.generate(IDS[:length], greedy(1), prompt_logprobs=0).prompt_scores
        assert [s.logprob for s in found[1:]] == pytest.approx(plain_logprobs(reference, IDS[:length]), abs=5e-5)
    prompt = IDS[: BORDER - 3]
    choices = [[5], [5, 6, 7], [5, 6, 7, 8, 9, 10], [9, 9, 9, 9]]
    scored = engine.score(prompt, choices, unconditional=True)
    for choice, mine in zip(choices, scored.logprobs, strict=True):
        wanted = plain_logprobs(reference, [*prompt, *choice])[len(prompt) - 1 :]
        assert list(mine) == pytest.approx(wanted, abs=5e-5)


def test_prompts_in_small_chunks_equal_the_plain_forward(model: tuple[Path, Any]) -> None:
    folder, reference = model
    with open_engine(folder, EXACT, EngineConfig(max_batch_tokens=24, max_running=8, check_integrity=True)) as engine:
        prompts = [IDS[:20], IDS[:100], OTHER[:60]]
        found = engine.generate_batch(prompts, greedy(4))
    assert [list(r.token_ids) for r in found] == [expected(reference, p, 4) for p in prompts]


def test_batch_invariant_bits_do_not_depend_on_longer_company(model: tuple[Path, Any]) -> None:
    folder, _ = model
    options = ModelOptions(dtype="float32", device="cpu", kv_bytes=1 << 24, batch_invariant=True)
    with open_engine(folder, options) as engine:
        sampling = SamplingSpec(max_tokens=6, temperature=0, ignore_eos=True, logprobs=0)
        alone = [engine.generate(IDS[:n], sampling) for n in (20, 30)]
        engine.flush()
        beside = engine.generate_batch([IDS[:20], IDS[:30], OTHER[:100]], sampling)[:2]
    for one, other in zip(alone, beside, strict=True):
        assert [s.logprob for s in one.token_scores] == [s.logprob for s in other.token_scores]
        assert one.token_ids == other.token_ids


def test_flushing_a_namespace_frees_its_sequences_of_every_length(engine: Engine) -> None:
    engine.generate(IDS[:20], greedy(2))
    engine.generate(IDS[:100], greedy(2))
    engine.flush(engine.info.namespace)
    state = engine.snapshot().scheduler
    assert state.free_pages == state.total_pages
