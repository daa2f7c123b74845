"""SmolLM2, float32, greedy: whatever the cache does, the same tokens; in batch-invariant mode, the same bits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from sglang_dsl.ir.specs import SamplingSpec

pytestmark = [pytest.mark.model, pytest.mark.engine, pytest.mark.timeout(3000)]

NEAR_TIE = 1e-3  # between the two best logits: closer than this, rounding may pick either
KL_LIMIT = 0.003


@dataclass(frozen=True)
class Size:
    prompts: int
    longest: int
    new_tokens: int
    invariant_prompts: int
    invariant_tokens: int


SMALL = Size(prompts=12, longest=129, new_tokens=6, invariant_prompts=6, invariant_tokens=3)
FULL = Size(prompts=64, longest=400, new_tokens=24, invariant_prompts=64, invariant_tokens=8)
SIZES = [pytest.param(SMALL, id="small"), pytest.param(FULL, id="full", marks=pytest.mark.long)]


@dataclass
class Differences:
    """Answers equal to the reference, and the margins where others first differ."""

    equal: int = 0
    margins: list[float] = field(default_factory=list)


def settings(size):
    """Each way to run, with what shows that it really was run that way."""
    pool = size.longest + size.new_tokens + 16  # room for one at its longest, and little more
    ways = {
        "radix": ({}, lambda s: s.cached_tokens > 0),
        "storm": (
            {"pool_tokens": pool, "retract_every_steps": 3, "max_running": 8, "max_batch_tokens": 256},
            lambda s: s.scheduler.retracted > 0 and s.scheduler.evicted_pages > 0,
        ),
        "chunk": ({"prefill_chunk_tokens": 16, "max_batch_tokens": 128}, lambda s: s.steps > size.longest // 16),
        "pages": ({"page_size": 16}, lambda s: s.cached_tokens > 0),
    }
    return ways if size is FULL else {name: way for name, way in ways.items() if name != "pages"}


def differences(reference, prompts, expected, found):
    """Compare; a first difference has to be at a near tie of the reference's own logits."""
    seen = Differences()
    for prompt, wanted, got in zip(prompts, expected, found, strict=True):
        if got.token_ids == wanted.token_ids:
            seen.equal += 1
            continue
        pairs = zip(wanted.token_ids, got.token_ids, strict=True)
        at = next(i for i, (one, other) in enumerate(pairs) if one != other)
        sampling = SamplingSpec(temperature=0, max_tokens=1, ignore_eos=True, logprobs=2)
        again = reference.engine.generate([*prompt, *wanted.token_ids[:at]], sampling, no_cache=True)
        (_, best, _), (_, second, _) = again.token_scores[0].top
        assert best - second < NEAR_TIE, (at, wanted.token_ids, got.token_ids, best - second)
        seen.margins.append(best - second)
    return seen


def divergence(sampled, cold):
    """Mean of exp(d) - 1 - d, which estimates the KL divergence. Source: http://joschu.net/blog/kl-approx.html (k3)."""
    gaps = [c.logprob - s.logprob for s, c in zip(sampled, cold, strict=True)]
    return sum(math.exp(gap) - 1 - gap for gap in gaps) / len(gaps)


@pytest.mark.parametrize("size", SIZES)
def test_smollm2_says_the_same_without_cache_with_it_in_a_storm_and_in_chunks(size):
    from smollm2_engine import open_smollm2, prompts_for, run

    greedy = SamplingSpec(temperature=0, max_tokens=size.new_tokens, ignore_eos=True, logprobs=0)
    reference = open_smollm2(prefix_cache=False, max_running=8)
    prompts = prompts_for(reference.engine, size.prompts, longest=size.longest)
    expected = run(reference, prompts, greedy)
    assert sum(r.cached_tokens for r in expected) == 0
    for name, (options, was_so) in settings(size).items():
        model = open_smollm2(**options)
        found = run(model, prompts, greedy)
        seen = differences(reference, prompts, expected, found)
        print(f"{name}: {seen.equal} of {len(prompts)} equal, first differences at near ties: {seen.margins}")
        assert seen.equal >= 0.9 * len(prompts)
        assert model.canary.found == []
        assert was_so(model.engine.snapshot()), name
        model.engine.check()
        if name == "radix":
            warm = run(model, prompts, greedy)
            assert sum(r.cached_tokens for r in warm) >= sum(len(p) - 1 for p in prompts)
            assert differences(reference, prompts, expected, warm).equal >= 0.9 * len(prompts)
        model.close()
    assert reference.canary.found == []
    reference.close()


@pytest.mark.parametrize("size", SIZES)
def test_smollm2_decoded_logprobs_are_those_of_a_cold_prefill_of_prompt_and_output(size):
    from smollm2_engine import open_smollm2, prompts_for, run

    greedy = SamplingSpec(temperature=0, max_tokens=size.new_tokens, ignore_eos=True, logprobs=0)
    one = SamplingSpec(temperature=0, max_tokens=1, ignore_eos=True)
    model = open_smollm2(prefill_chunk_tokens=64, max_batch_tokens=256)
    prompts = prompts_for(model.engine, size.prompts, longest=size.longest)
    run(model, prompts, one)  # so that what follows decodes on cached prefixes
    decoded = run(model, prompts, greedy)
    assert sum(r.cached_tokens for r in decoded) > 0
    whole = [[*prompt, *result.token_ids] for prompt, result in zip(prompts, decoded, strict=True)]
    cold = run(model, whole, one, no_cache=True, prompt_logprobs=0)
    worst = 0.0
    for prompt, warm, prefilled in zip(prompts, decoded, cold, strict=True):
        assert prefilled.cached_tokens == 0
        worst = max(worst, divergence(warm.token_scores, prefilled.prompt_scores[len(prompt) :]))
    print(f"largest KL divergence of {len(prompts)} outputs: {worst:.2e}")
    assert worst < KL_LIMIT
    model.close()


@pytest.mark.parametrize("size", SIZES)
def test_smollm2_in_batch_invariant_mode_has_the_same_bits_alone_in_a_batch_cold_warm_in_a_storm_and_in_chunks(size):
    """Ids and log-probabilities, of the chosen tokens and of the alternatives, compared with `==`."""
    from smollm2_engine import open_smollm2, prompts_for, run

    greedy = SamplingSpec(temperature=0, max_tokens=size.invariant_tokens, ignore_eos=True, logprobs=3)
    alone = open_smollm2(batch_invariant=True, prefix_cache=False)
    prompts = prompts_for(alone.engine, size.invariant_prompts, longest=size.longest)
    known = {}
    for prompt in prompts:
        if tuple(prompt) not in known:
            known[tuple(prompt)] = alone.engine.generate(prompt, greedy).token_scores
    expected = [known[tuple(prompt)] for prompt in prompts]
    assert alone.canary.found == []
    alone.close()
    for name, (options, was_so) in settings(size).items():
        model = open_smollm2(batch_invariant=True, **options)
        assert [r.token_scores for r in run(model, prompts, greedy)] == expected, name
        assert was_so(model.engine.snapshot()), name
        if name == "radix":
            warm = run(model, prompts, greedy)
            assert [r.token_scores for r in warm] == expected
            assert sum(r.cached_tokens for r in warm) >= sum(len(p) - 1 for p in prompts)
        assert model.canary.found == []
        model.close()
