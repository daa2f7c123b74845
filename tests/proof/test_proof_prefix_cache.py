"""Prefix hits on a real forward, bit by bit: whole prompts, pages, prompt scores, namespaces, subsequences."""

from __future__ import annotations

import random

import pytest

from sglang_dsl import State, gen, program
from sglang_dsl.ir.specs import RunOptions, SamplingSpec
from sglang_dsl.runtime.backends.mock import mock

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

GREEDY = SamplingSpec(temperature=0, max_tokens=5, ignore_eos=True, logprobs=2)


def letters(count, seed=0):
    rng = random.Random(seed)
    return [rng.randrange(97, 123) for _ in range(count)]


@pytest.fixture
def cold(open_tiny):
    """Function prompt -> scores of its greedy answer, on an engine without a cache."""
    tiny = open_tiny(batch_invariant=True, prefix_cache=False)
    return lambda prompt: tiny.engine.generate(prompt, GREEDY).token_scores


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 32])
def test_whole_prompt_cached_still_computes_its_last_token(open_tiny, cold, length, page_size):
    tiny = open_tiny(batch_invariant=True, page_size=page_size)
    prompt = letters(length)
    expected = cold(prompt)
    hits = []
    for _ in range(3):
        result = tiny.engine.generate(prompt, GREEDY)
        assert result.token_scores == expected
        assert result.cached_tokens + result.computed_tokens == length
        hits.append(result.cached_tokens)
    assert hits[0] == 0
    assert hits[1] == hits[2]
    assert (length - 1) // page_size * page_size <= hits[1] <= length - 1, (
        "whole pages, and what was copied of the next"
    )
    part = prompt[: max(1, length - 1)]
    shorter = tiny.engine.generate(part, GREEDY)
    assert shorter.token_scores == cold(part)
    assert shorter.cached_tokens <= len(part) - 1
    assert tiny.canary.found == []


@pytest.mark.parametrize("order", ["ABA", "BAB"])
def test_prompt_scores_of_prompts_that_share_are_the_same_in_any_order(open_tiny, order):
    stem = letters(20, seed=1)
    prompts = {"A": stem + letters(13, seed=2), "B": stem + letters(9, seed=3)}
    tiny = open_tiny(batch_invariant=True, page_size=16)
    alone = {}
    for name, prompt in prompts.items():
        tiny.engine.flush()
        alone[name] = tiny.engine.generate(prompt, GREEDY, prompt_logprobs=1).prompt_scores
        assert len(alone[name]) == len(prompt)
        assert alone[name][0] is None
        assert all(alone[name][1:])
    tiny.engine.flush()
    for name in order:
        assert tiny.engine.generate(prompts[name], GREEDY, prompt_logprobs=1).prompt_scores == alone[name]


def test_namespaces_whose_names_join_to_the_same_text_share_nothing(open_tiny, cold):
    tiny = open_tiny(batch_invariant=True)
    prompt = letters(30)
    for space in ("", "a", "ab", "a\0b", "abc"):
        first = tiny.engine.generate(prompt, GREEDY, namespace=space)
        assert first.cached_tokens == 0, space
        assert tiny.engine.generate(prompt, GREEDY, namespace=space).cached_tokens == 29
        assert first.token_scores == cold(prompt)


def test_tokens_that_are_no_beginning_are_no_hit(open_tiny, cold):
    tiny = open_tiny(batch_invariant=True)
    tiny.engine.generate([5, 6, 7, 8], GREEDY)
    result = tiny.engine.generate([6, 7, 8, 9], GREEDY)
    assert result.cached_tokens == 0
    assert result.token_scores == cold([6, 7, 8, 9])


@pytest.mark.parametrize("tails", [("//x", " none"), ("|lo", "//x")])
def test_fork_inside_a_word_keeps_the_parents_ids_and_finds_all_of_them(tails):
    """Joint encoding would merge over the fork (`http:` + `//x`); the ids of the parent are kept, so each branch hits."""

    @program
    def look(s: State):
        s += "see http:"
        s += gen("warm", max_tokens=1)
        branches = s.fork(2)
        for branch, tail in zip(branches, tails, strict=True):
            branch += tail
            branch += gen("v", max_tokens=2)
        branches.join("v")
        return [branch.meta("v") for branch in branches]

    with mock(lambda call: " x y") as backend:
        encode = backend.target.text.tokenizer.encode
        metas = look.run(options=RunOptions(backend=backend)).value
        parent = len(encode("see http:")) + 1
        for meta, tail in zip(metas, tails, strict=True):
            assert meta.prompt_tokens == parent + len(encode(tail))
            assert meta.computed_tokens <= len(encode(tail)) + 1


def test_next_turn_hits_all_of_the_answer_that_was_kept():
    """Generated ids are kept, never encoded again from their text."""

    @program
    def talk(s: State):
        for turn in range(3):
            s += f"question {turn}: "
            s += gen(f"a{turn}", max_tokens=3)
        return [s.meta(f"a{turn}") for turn in range(3)]

    with mock(
        lambda call: ["x", "y", "z", "w"][len(call.prompt) % 3 :] and "fru it say", context_tokens=512
    ) as backend:
        metas = talk.run(options=RunOptions(backend=backend)).value
        encode = backend.target.text.tokenizer.encode
        for turn, meta in enumerate(metas[1:], 1):
            new = len(encode(f"question {turn}: "))
            assert meta.computed_tokens == new + 1, "the last token of the answer was sampled, never computed"
