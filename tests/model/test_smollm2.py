"""The engine on SmolLM2-135M-Instruct against plain transformers: the same greedy tokens under every cache state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

from sglang_dsl import State, gen, program
from sglang_dsl.errors import ModelNotFoundError
from sglang_dsl.ir.specs import RunOptions, SamplingSpec
from sglang_dsl.runtime.backends.interpreted import InterpretedExecutor
from sglang_dsl.runtime.backends.local import open_engine
from sglang_dsl.runtime.engine.border import EngineConfig
from sglang_dsl.runtime.engine.engine import Engine
from sglang_dsl.runtime.model.load import read_model
from sglang_dsl.runtime.model.options import ModelOptions
from sglang_dsl.runtime.supply import locate

NEW_TOKENS = 24
GREEDY = SamplingSpec(max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True)
NEAR_TIE = 1e-3  # of the reference's two best logits: closer than this, rounding may pick either
EXACT = ModelOptions(dtype="float32", packed_linears=False)
SHARED = "The harbour master keeps a list of every boat that comes in after dark. " * 6
TEXTS = (
    SHARED + "Tonight the first name on it is",
    SHARED + "Nobody knew that the second list",
    SHARED + "In winter",
    "Once upon a time",
    "def fibonacci(n):\n    ",
    "The capital of France is",
    "1, 2, 3, 5, 8,",
    "Dear Sir or Madam,\n\n",
    "Water boils at",
)


@dataclass
class Comparison:
    """Sequences equal to the reference, and first differences at near ties."""

    equal: int = 0
    near_ties: list[float] = field(default_factory=list)


@pytest.fixture(scope="module")
def reference() -> Any:
    try:
        files = locate("smollm2")
    except ModelNotFoundError as error:
        pytest.skip(str(error))
    return read_model(files.path, torch.float32).eval()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with open_engine("smollm2", EXACT) as opened:
        yield opened


@pytest.fixture
def fresh(engine: Engine) -> Engine:
    engine.flush()
    return engine


def expected_ids(reference: Any, prompt_ids: Sequence[int]) -> list[int]:
    with torch.inference_mode():
        out = reference.generate(
            input_ids=torch.tensor([list(prompt_ids)]),
            attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.long),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return out[0, len(prompt_ids) :].tolist()


def compare(reference: Any, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> Comparison:
    found = Comparison()
    for prompt, output in zip(prompts, outputs, strict=True):
        wanted = expected_ids(reference, prompt)
        if list(output) == wanted:
            found.equal += 1
            continue
        at = next(i for i, (a, b) in enumerate(zip(output, wanted, strict=True)) if a != b)
        with torch.inference_mode():
            logits = reference(input_ids=torch.tensor([[*prompt, *wanted[:at]]])).logits[0, -1]
        best = logits.topk(2).values
        gap = float(best[0] - best[1])
        assert gap < NEAR_TIE, f"token {at} is {output[at]}, transformers says {wanted[at]} by a margin of {gap}"
        found.near_ties.append(gap)
    print(f"{found.equal} of {len(prompts)} equal, first differences at near ties: {found.near_ties}")
    return found


@program
def forked_in_mid_turn(s: State) -> list[tuple[int, ...]]:
    with s.user():
        s += "Name two metals."
    with s.assistant():
        s += "They are iron and "
        branches = s.fork(2)
        tails = ("also ", "maybe even ")
        for branch, tail in zip(branches, tails, strict=True):
            branch += tail
            branch += gen("metal", max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True)
        return [branch.meta("metal").token_ids for branch in branches]


def prompts_of(engine: Engine) -> list[tuple[int, ...]]:
    return [tuple(engine.text.tokenizer.encode(text)) for text in TEXTS]


def test_greedy_cold_then_warm_equals_transformers(reference: Any, fresh: Engine) -> None:
    prompts = prompts_of(fresh)
    cold = [fresh.generate(p, GREEDY) for p in prompts]
    warm = [fresh.generate(p, GREEDY) for p in prompts]
    assert compare(reference, prompts, [r.token_ids for r in cold]).equal >= len(prompts) - 1
    assert compare(reference, prompts, [r.token_ids for r in warm]).equal >= len(prompts) - 1
    assert all(r.cached_tokens == r.prompt_tokens - 1 for r in warm)
    assert cold[1].cached_tokens > 0


def test_greedy_in_a_batch_of_eight_equals_transformers(reference: Any, fresh: Engine) -> None:
    prompts = prompts_of(fresh)[:8]
    results = fresh.generate_batch(prompts, GREEDY)
    assert compare(reference, prompts, [r.token_ids for r in results]).equal >= len(prompts) - 1


def test_greedy_of_a_fork_in_mid_turn_equals_transformers(reference: Any, fresh: Engine) -> None:
    executor = InterpretedExecutor("smollm2", fresh, lambda: None)
    result = forked_in_mid_turn.run(options=RunOptions(backend=executor))
    gens = [node for node in result.graph if node.kind == "gen"]
    prompts = [
        [i for segment in executor.meter().render(result.graph.path(gen.context), {}) for i in segment.token_ids]
        for gen in gens
    ]
    assert prompts[0] != prompts[1]
    assert compare(reference, prompts, result.value).equal == 2


@pytest.mark.parametrize("config", [EngineConfig(max_batch_tokens=64, max_running=8), EngineConfig(prefix_cache=False)])
def test_greedy_chunked_or_uncached_equals_transformers(reference: Any, config: EngineConfig) -> None:
    with open_engine("smollm2", EXACT, config) as engine:
        prompts = prompts_of(engine)[:4]
        results = engine.generate_batch(prompts, GREEDY)
    assert compare(reference, prompts, [r.token_ids for r in results]).equal >= len(prompts) - 1


def test_kv_of_a_forty_way_fork_is_the_preamble_once_and_the_private_parts(fresh: Engine) -> None:
    from examples.support_desk import preamble, tickets
    from sglang_dsl import system, user

    new = 8

    @program
    def fan(s: State) -> list[str]:
        s += system(preamble(3))
        answer = gen("answer", max_tokens=new, temperature=0, ignore_eos=True)
        calls = s.fork(40)
        for call, ticket in zip(calls, tickets(40), strict=True):
            call += user(ticket)
            call += answer
        return calls.join(answer)

    before = fresh.snapshot().scheduler
    result = fan.run(options=RunOptions(backend=InterpretedExecutor("smollm2", fresh, lambda: None)))
    usage = result.usage
    preamble_and_private = usage.computed_tokens + usage.generated_tokens
    assert usage.asked_tokens > 100_000
    assert usage.peak_kv_pages <= 1.05 * preamble_and_private
    fresh.check()  # raises if a page has no owner or two
    after = fresh.snapshot().scheduler
    assert after.leases == before.leases == 0
    assert after.free_pages + after.evictable_pages == after.total_pages
