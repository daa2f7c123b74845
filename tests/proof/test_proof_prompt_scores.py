"""Log-probabilities on a real forward: the same whatever was cached, on their own path, raw, and as bytes."""

from __future__ import annotations

import pytest

from sglang_dsl.ir.specs import ConstraintSpec, SamplingSpec

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

PROMPT = [*b"Lake Como, June: ", 0xF0, 0x9F, 0x99, 0x82, *b" and"]
ONE = SamplingSpec(temperature=0, max_tokens=1, ignore_eos=True, logprobs=3)


@pytest.fixture(scope="module")
def plain():
    pytest.importorskip("torch")
    from tiny_engine import PlainModel

    return PlainModel()


@pytest.mark.parametrize(("page_size", "chunk"), [(1, None), (1, 7), (16, None), (16, 16)])
def test_bug_61_prompt_scores_are_the_same_for_every_cached_beginning(open_tiny, page_size, chunk):
    """Bit by bit, alternatives and bytes included, cold and after 1, 2, ... all tokens of the prompt were cached."""
    tiny = open_tiny(batch_invariant=True, page_size=page_size, prefill_chunk_tokens=chunk)
    engine = tiny.engine
    cold = engine.generate(PROMPT, ONE, prompt_logprobs=3, no_cache=True)
    for cached in range(1, len(PROMPT) + 1):
        engine.flush()
        engine.generate(PROMPT[:cached], ONE)
        warm = engine.generate(PROMPT, ONE, prompt_logprobs=3)
        assert warm.prompt_scores == cold.prompt_scores, cached
        assert warm.token_scores == cold.token_scores, cached
        hit = engine.generate(PROMPT, ONE)
        assert hit.cached_tokens >= (len(PROMPT) - 1) // page_size * page_size, "the prompt is cached afterwards"
        assert hit.token_scores == cold.token_scores, cached
    assert tiny.canary.found == []


def test_prompt_scores_are_those_of_the_plain_forward(open_tiny, plain):
    scores = open_tiny().engine.generate(PROMPT, ONE, prompt_logprobs=3).prompt_scores
    rows = plain.logprobs(PROMPT)
    assert scores[0] is None
    assert len(scores) == len(PROMPT)
    for position, score in enumerate(scores[1:], 1):
        row = rows[position - 1]
        assert score.token_id == PROMPT[position]
        assert score.logprob == pytest.approx(float(row[PROMPT[position]]), abs=1e-4)
        values, ids = row.topk(3)
        assert [token_id for token_id, _, _ in score.top] == ids.tolist()
        assert [logprob for _, logprob, _ in score.top] == pytest.approx(values.tolist(), abs=1e-4)


def test_prompt_scores_of_partial_characters_are_their_raw_bytes(open_tiny):
    scores = open_tiny().engine.generate(PROMPT, ONE, prompt_logprobs=2).prompt_scores
    assert [score.token_bytes for score in scores[17:21]] == [b"\xf0", b"\x9f", b"\x99", b"\x82"]
    assert all(raw == bytes([i]) for score in scores[1:] for i, _, raw in score.top if i < 256)


def test_output_scores_of_partial_characters_join_to_the_text(open_tiny):
    """The character comes whole; its tokens' bytes are kept apart and join to it."""
    sampling = SamplingSpec(temperature=0, max_tokens=16, logprobs=2)
    smile = ConstraintSpec.choices(("ok\N{SLIGHTLY SMILING FACE}!",))
    result = open_tiny().engine.generate(PROMPT, sampling, constraint=smile)
    assert result.text == "ok\N{SLIGHTLY SMILING FACE}!"
    assert [s.token_bytes for s in result.token_scores] == [bytes([b]) for b in result.text.encode()]


def test_scores_under_a_constraint_are_the_models_own_and_not_renormalised(open_tiny, plain):
    """A constraint that allows one text has a probability of 1 under the mask; what is reported is the model's belief."""
    sampling = SamplingSpec(temperature=0, max_tokens=16, logprobs=2)
    result = open_tiny().engine.generate(PROMPT, sampling, constraint=ConstraintSpec.choices(("zq",)))
    expected = plain.continuation(PROMPT, list(b"zq"))
    assert [s.logprob for s in result.token_scores] == pytest.approx(expected, abs=1e-4)
    assert all(s.logprob < -0.1 for s in result.token_scores)
    assert [s.constrained_logprob for s in result.token_scores] == [0.0, 0.0], "told apart: certain under the mask"
    best = plain.logprobs(PROMPT)[-1].topk(2).indices.tolist()
    assert [i for i, _, _ in result.token_scores[0].top] == best, "alternatives are those of the model, not of the mask"


def test_scores_of_a_choice_under_a_constraint_are_shares_of_what_is_allowed(open_tiny, plain):
    """Raw and constrained values stand beside each other; without a constraint there is no second one."""
    choices = ConstraintSpec.choices(("x", "y", "zz"))
    engine = open_tiny().engine
    score = engine.generate(
        PROMPT, SamplingSpec(temperature=0, max_tokens=4, logprobs=0), constraint=choices
    ).token_scores[0]
    row = plain.logprobs(PROMPT)[-1]
    allowed = row[[ord("x"), ord("y"), ord("z")]].log_softmax(-1)
    assert score.token_id == max(b"xyz", key=lambda i: float(row[i]))
    assert score.logprob == pytest.approx(float(row[score.token_id]), abs=1e-4)
    assert score.constrained_logprob == pytest.approx(float(allowed[score.token_id - ord("x")]), abs=1e-4)
    assert engine.generate(PROMPT, ONE).token_scores[0].constrained_logprob is None


def test_output_scores_equal_those_of_a_prompt_that_holds_the_output(open_tiny):
    tiny = open_tiny(batch_invariant=True)
    sampling = SamplingSpec(temperature=0, max_tokens=12, ignore_eos=True, logprobs=2)
    decoded = tiny.engine.generate(PROMPT, sampling)
    tiny.engine.flush()
    prefilled = tiny.engine.generate([*PROMPT, *decoded.token_ids], ONE, prompt_logprobs=2)
    assert prefilled.prompt_scores[len(PROMPT) :] == decoded.token_scores
