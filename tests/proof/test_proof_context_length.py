"""Prompts at, near and over the context length, said in the language: refused at the append that no longer fits."""

from __future__ import annotations

import pytest

from sglang_dsl import State, gen, program, select
from sglang_dsl.errors import ContextLengthError, JoinError
from sglang_dsl.ir.specs import RunOptions, SamplingSpec
from sglang_dsl.runtime.backends.mock import mock

CONTEXT = 64


def words(count):
    """Text of so many tokens."""
    return "a" + " a" * (count - 1)


def chatty():
    return mock(lambda call: " b" * 200, context_tokens=CONTEXT)


@program
def ask(s: State, prompt_tokens: int, max_tokens: int):
    s += words(prompt_tokens)
    s += gen("x", max_tokens=max_tokens)  # the line
    return s["x"]


@pytest.mark.parametrize("prompt_tokens", [62, 63, 64, 65, 100_000])
@pytest.mark.parametrize("max_tokens", [1, 2, 64])
def test_prompt_near_the_context_length_fits_exactly_or_is_refused_with_the_counts(prompt_tokens, max_tokens):
    with chatty() as backend:
        if prompt_tokens + max_tokens <= CONTEXT:
            result = ask.run(prompt_tokens, max_tokens, options=RunOptions(backend=backend))
            assert result.state.meta("x").generated_tokens == max_tokens
            assert result.usage.asked_tokens == prompt_tokens
            return
        with pytest.raises(ContextLengthError) as caught:
            ask.run(prompt_tokens, max_tokens, options=RunOptions(backend=backend))
        error = caught.value
        assert (error.prompt_tokens, error.max_tokens, error.context_tokens) == (prompt_tokens, max_tokens, CONTEXT)
        assert error.code == "E303"
        assert "# the line" in str(error), "names the append"
        assert backend.calls().count == 0, "nothing was computed for it"
        assert ask.run(3, 2, options=RunOptions(backend=backend)).value == " b b", "the engine goes on"


def test_refused_append_keeps_what_was_generated_before_and_can_be_caught():
    @program
    def shorten(s: State):
        s += words(40)
        s += gen("first", max_tokens=16)
        first = s["first"]  # its length is known from here on
        with pytest.raises(ContextLengthError):
            s += gen("second", max_tokens=16)
        s += gen("shorter", max_tokens=8)
        return first, s["shorter"]

    with chatty() as backend:
        value = shorten.run(options=RunOptions(backend=backend)).value
        assert value == (" b" * 16, " b" * 8)
        assert backend.calls().count == 2


def test_append_that_turns_out_not_to_fit_fails_its_value_before_a_token_of_it_is_computed():
    """How long the first answer would be was not known at the second append: that may not wait, and its value raises."""

    @program
    def run_on(s: State):
        s += words(40)
        s += gen("first", max_tokens=16)
        s += gen("second", max_tokens=16)
        with pytest.raises(ContextLengthError) as caught:
            s["second"]
        return s["first"], caught.value.prompt_tokens

    with chatty() as backend:
        result = run_on.start(options=RunOptions(backend=backend)).result(20, raising=False)
        assert result.value == (" b" * 16, 56)
        assert backend.calls().count == 1


def test_branch_that_cannot_fit_is_refused_where_it_is_written_and_its_siblings_end():
    @program
    def fan(s: State):
        s += words(20)
        branches = s.fork(3)
        kept = []
        for i, branch in enumerate(branches):
            branch += words(10 if i != 1 else 60)
            try:
                branch += gen("v", max_tokens=4)
                kept.append(i)
            except ContextLengthError:
                branch += ""
        return kept, [branches[i]["v"] for i in kept]

    with chatty() as backend:
        kept, values = fan.run(options=RunOptions(backend=backend)).value
    assert kept == [0, 2]
    assert values == [" b" * 4] * 2


def test_select_whose_longest_choice_does_not_fit_is_refused_with_the_counts():
    @program
    def choose(s: State, prompt_tokens: int):
        s += words(prompt_tokens)
        s += select("k", ["yes", words(10)])
        return s["k"]

    with mock(unscripted="echo", context_tokens=CONTEXT) as backend:
        assert choose.run(54, options=RunOptions(backend=backend)).value
        with pytest.raises((ContextLengthError, JoinError)) as caught:
            choose.run(58, options=RunOptions(backend=backend))
        assert isinstance(caught.value, ContextLengthError)
        assert caught.value.context_tokens == CONTEXT


@pytest.mark.parametrize("prompt_tokens", [10, 62, 63, 64, 65])
def test_call_without_max_tokens_gets_what_is_left_of_the_context(prompt_tokens):
    @program
    def wish(s: State):
        s += words(prompt_tokens)
        s += gen("x")
        return s["x"]

    with chatty() as backend:
        if prompt_tokens < CONTEXT:
            result = wish.run(options=RunOptions(backend=backend))
            assert result.state.meta("x").generated_tokens == CONTEXT - prompt_tokens
            assert result.state.meta("x").finish_reason == "length"
            return
        with pytest.raises(ContextLengthError):
            wish.run(options=RunOptions(backend=backend))


def test_native_request_without_max_tokens_gets_what_is_left_of_the_context():
    with chatty() as backend:
        prompt = tuple(backend.target.text.tokenizer.encode(words(60)))
        result = backend.engine.generate(prompt, SamplingSpec(ignore_eos=True))
    assert (result.generated_tokens, result.finish_reason) == (4, "length")
