"""Sampling through the whole engine on a real forward: seeds, penalties and biases do not depend on who else is there."""

from __future__ import annotations

import pytest

from sglang_dsl.errors import SamplingError, SpecError
from sglang_dsl.ir.specs import ConstraintSpec, SamplingSpec

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

PROMPT = list(b"The weather tomorrow will be")
OTHERS = [list(f"Some other text number {i}".encode()) for i in range(7)]
TOKENS = 10


def seeded(seed, **more):
    return SamplingSpec(temperature=1.0, seed=seed, max_tokens=TOKENS, ignore_eos=True, **more)


def mixed_batch(tiny, row, mine, others):
    """Token ids of the request at `row` of a batch of eight."""
    from test_proof_token_canary import submit

    from sglang_dsl.runtime.schedule.request import GenerateRequest

    space = tiny.engine.info.namespace
    prompts = [*OTHERS[:row], PROMPT, *OTHERS[row:]]
    specs = [*others[:row], mine, *others[row:]]
    sinks = submit(
        tiny,
        [
            GenerateRequest(request_id=f"r{i}", prompt_ids=p, sampling=s, namespace=space)
            for i, (p, s) in enumerate(zip(prompts, specs, strict=True))
        ],
    )
    while tiny.engine.turn():
        pass
    return sinks[row].ends[0].token_ids


@pytest.mark.parametrize("row", [0, 3, 7])
@pytest.mark.parametrize("mates", ["unseeded", "seeded", "greedy"])
def test_seeded_request_has_its_tokens_whatever_its_batch(open_tiny, row, mates):
    tiny = open_tiny(batch_invariant=True)
    alone = tiny.engine.generate(PROMPT, seeded(42)).token_ids
    assert alone != tiny.engine.generate(PROMPT, seeded(43)).token_ids, "the seed matters"
    others = {
        "unseeded": [SamplingSpec(temperature=1.0, max_tokens=TOKENS, ignore_eos=True)] * 7,
        "seeded": [seeded(7)] * 7,
        "greedy": [SamplingSpec(temperature=0, max_tokens=TOKENS, ignore_eos=True)] * 7,
    }[mates]
    assert mixed_batch(tiny, row, seeded(42), others) == alone
    tiny.engine.flush()
    assert mixed_batch(tiny, row, seeded(42), others) == alone


def test_seeded_request_has_its_tokens_after_retraction_in_chunks_and_from_the_cache(open_tiny):
    plain = open_tiny(batch_invariant=True)
    alone = plain.engine.generate(PROMPT, seeded(42)).token_ids
    assert plain.engine.generate(PROMPT, seeded(42)).token_ids == alone, "warm"
    rough = open_tiny(batch_invariant=True, retract_every_steps=2, prefill_chunk_tokens=8)
    assert mixed_batch(rough, 7, seeded(42), [seeded(7)] * 7) == alone
    assert rough.engine.snapshot().scheduler.retracted > 3


@pytest.mark.parametrize(
    "penalty", [{"repetition_penalty": 1.8}, {"presence_penalty": 1.5}, {"frequency_penalty": 1.5}], ids=str
)
def test_penalties_know_the_cached_prompt_and_survive_retraction(open_tiny, penalty):
    """History is lost neither with a prefix hit nor with a retraction, and is not counted twice after one."""
    spec = SamplingSpec(temperature=0, max_tokens=TOKENS, ignore_eos=True, **penalty)
    calm = open_tiny(batch_invariant=True)
    cold = calm.engine.generate(PROMPT, spec).token_ids
    free = calm.engine.generate(PROMPT, SamplingSpec(temperature=0, max_tokens=TOKENS, ignore_eos=True)).token_ids
    assert cold != free, "the penalty does something"
    assert calm.engine.generate(PROMPT, spec).token_ids == cold
    rough = open_tiny(batch_invariant=True, retract_every_steps=2)
    others = [SamplingSpec(temperature=0, max_tokens=TOKENS, ignore_eos=True)] * 7
    assert mixed_batch(rough, 7, spec, others) == cold
    assert rough.engine.snapshot().scheduler.retracted > 3


def test_logit_bias_outside_the_vocabulary_fails_its_request_and_no_other(open_tiny):
    tiny = open_tiny()
    [bad] = tiny.engine.generate_batch([PROMPT], SamplingSpec(temperature=0, logit_bias=((70001, 5.0),)))
    good = tiny.engine.generate(PROMPT, SamplingSpec(temperature=0, max_tokens=3, ignore_eos=True))
    assert isinstance(bad, SamplingError | SpecError)
    assert "70001" in str(bad)
    assert len(good.token_ids) == 3


@pytest.mark.parametrize("bias", [((-1, 5.0),), ((5, 1000.0),), (("x", 1.0),)], ids=["below 0", "above 100", "no id"])
def test_logit_bias_that_is_none_is_refused_when_it_is_said(bias):
    with pytest.raises(SpecError, match="logit_bias"):
        SamplingSpec(logit_bias=bias)


def test_logit_bias_bans_and_forces(open_tiny):
    engine = open_tiny().engine
    sampling = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
    free = engine.generate(PROMPT, SamplingSpec(**sampling)).token_ids
    banned = engine.generate(PROMPT, SamplingSpec(**sampling, logit_bias=((free[0], -100.0),))).token_ids
    assert free[0] not in banned
    forced = engine.generate(PROMPT, SamplingSpec(**sampling, logit_bias=((ord("q"), 100.0),)))
    assert forced.text == "qqqqqq"


def test_logit_bias_against_the_end_runs_to_the_limit(open_tiny):
    from tiny_engine import END

    sampling = SamplingSpec(temperature=1.0, seed=3, max_tokens=200, logit_bias=((END, -100.0),))
    result = open_tiny().engine.generate(PROMPT, sampling)
    assert (result.finish_reason, result.generated_tokens) == ("length", 200)


def test_logit_bias_against_all_that_a_constraint_allows_yields_to_the_constraint(open_tiny):
    bias = tuple((i, -100.0) for i in b"yesno")
    sampling = SamplingSpec(temperature=0, max_tokens=8, logit_bias=bias)
    result = open_tiny().engine.generate(PROMPT, sampling, constraint=ConstraintSpec.choices(("yes", "no")))
    assert result.text in ("yes", "no")


def test_greedy_in_batch_invariant_mode_is_the_same_cold_warm_in_a_batch_of_eight_and_in_chunks(open_tiny):
    """40 prompts; counters show that the warm run hit, the batch was one, and the chunks were chunks."""
    from test_proof_token_canary import paths_of_a_tree

    greedy = SamplingSpec(temperature=0, max_tokens=6, ignore_eos=True, logprobs=2)
    prompts = paths_of_a_tree(40, seed=9)
    tiny = open_tiny(batch_invariant=True)
    cold = [tiny.engine.generate(p, greedy, no_cache=True).token_scores for p in prompts]
    for prompt in prompts:
        tiny.engine.generate(prompt, greedy)
    warm = [tiny.engine.generate(p, greedy) for p in prompts]
    assert [r.token_scores for r in warm] == cold
    assert all(r.cached_tokens == len(p) - 1 for r, p in zip(warm, prompts, strict=True))
    batched = open_tiny(batch_invariant=True, max_running=8)
    assert [r.token_scores for r in batched.engine.generate_batch(prompts, greedy)] == cold
    assert max(len(plan.rows) for plan in batched.canary.plans) == 8
    chunked = open_tiny(batch_invariant=True, prefill_chunk_tokens=16)
    assert [r.token_scores for r in chunked.engine.generate_batch(prompts, greedy)] == cold
    assert max(len(row.token_ids) for plan in chunked.canary.plans for row in plan.rows) == 16


AS_GREEDY = [
    {"temperature": 0}, {"temperature": 1e-40}, {"temperature": 1e-6}, {"temperature": 1e-4}, {"top_p": 0.0},
    {"top_p": 1e-9}, {"min_p": 1.0}, {"top_k": 1},
]  # fmt: skip
AS_PLAIN = [{}, {"top_k": 0}, {"top_k": 10**9}, {"top_p": 1.0}, {"min_p": 0.0}]


def test_numeric_edges_in_one_mixed_batch_are_greedy_or_off(open_tiny):
    """No NaN, no empty nucleus, and no row that disturbs another."""
    from test_proof_token_canary import submit

    from sglang_dsl.runtime.schedule.request import GenerateRequest

    tiny = open_tiny(batch_invariant=True)
    greedy = tiny.engine.generate(PROMPT, SamplingSpec(temperature=0, max_tokens=TOKENS, ignore_eos=True)).token_ids
    plain = tiny.engine.generate(PROMPT, seeded(42)).token_ids
    assert greedy != plain
    specs = [
        SamplingSpec(**({"temperature": 1.0, "seed": 42, "max_tokens": TOKENS, "ignore_eos": True} | edge))
        for edge in (*AS_GREEDY, *AS_PLAIN)
    ]
    space = tiny.engine.info.namespace
    sinks = submit(
        tiny,
        [
            GenerateRequest(request_id=f"r{i}", prompt_ids=PROMPT, sampling=s, namespace=space)
            for i, s in enumerate(specs)
        ],
    )
    while tiny.engine.turn():
        pass
    assert [sink.ends[0].token_ids for sink in sinks] == [greedy] * len(AS_GREEDY) + [plain] * len(AS_PLAIN)


@pytest.mark.parametrize(
    "option", [{"top_k": -1}, {"top_p": 1.5}, {"min_p": -0.1}, {"temperature": float("nan")}], ids=str
)
def test_numeric_edge_that_means_nothing_is_refused_by_name(option):
    with pytest.raises(SpecError, match=next(iter(option))):
        SamplingSpec(**option)
