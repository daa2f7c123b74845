"""A text that cannot fit is refused before it is encoded (cases: 315)."""

from __future__ import annotations

from time import perf_counter

import pytest

from sglang_dsl import gen, program, select
from sglang_dsl.errors import ContextLengthError
from sglang_dsl.ir.specs import RunOptions
from sglang_dsl.testing import mock

MEGABYTES = "a word and another " * (20_000_000 // 19)
SOON_S = 2.0  # encoding it takes longer than this on any machine; measured: 0.01 s


@program
def tell(s, text):
    s += text
    s += gen("a")


@program
def tell_in_parts(s, text):
    size = len(text) // 40
    for i in range(40):
        s += text[i * size : (i + 1) * size]
    s += gen("a")


@program
def choose(s, text):
    s += "Which? "
    s += select("a", choices=[text, "no"])


def branch_off(s, text):
    for i in range(40):
        s += text[: len(text) // 40] + str(i)
    for branch in s.fork(2):
        branch += gen("a")


@pytest.mark.parametrize("what", [tell, tell_in_parts, choose, program(branch_off)])
def test_a_text_of_20_megabytes_is_refused_at_its_line_before_it_is_encoded(what):
    with mock(lambda call: "yes", context_tokens=8192) as backend:
        begun = perf_counter()
        with pytest.raises(ContextLengthError, match=r"bytes of text.*tokens or more, and .* takes 8,192") as caught:
            what.run(MEGABYTES, options=RunOptions(backend=backend))
        assert perf_counter() - begun < SOON_S
        assert caught.value.origin is not None
        assert "bytes can never fit" in str(caught.value)
        assert caught.value.prompt_tokens > caught.value.context_tokens == 8192


def test_the_engine_refuses_it_in_every_call():
    with mock(lambda call: "yes", context_tokens=8192) as backend:
        engine = backend.engine
        begun = perf_counter()
        for call in (
            lambda: engine.generate(MEGABYTES),
            lambda: engine.stream(MEGABYTES),
            lambda: engine.score(MEGABYTES, ["a"]),
            lambda: engine.score("a", [MEGABYTES]),
        ):
            with pytest.raises(ContextLengthError, match="bytes of text"):
                call()
        bad, good = engine.generate_batch([MEGABYTES, "hi"])
        assert isinstance(bad, ContextLengthError)
        assert good.finish_reason == "eos"
        assert perf_counter() - begun < SOON_S


def test_one_long_word_is_one_token_here_and_a_larger_model_takes_what_a_smaller_does_not():
    @program
    def ask_other(s, text):
        s += text
        s += gen("a", model="large")

    with (
        mock(lambda call: "yes", context_tokens=64) as small,
        mock(lambda call: "yes", context_tokens=100_000) as large,
    ):
        assert tell.run("a" * 20_000, options=RunOptions(backend=small)).state["a"] == "yes"
        options = RunOptions(backend=small, models={"large": large})
        assert ask_other.run("a b " * 2000, options=options).state["a"] == "yes"
        with pytest.raises(ContextLengthError):
            tell.run("a b " * 2000, options=options)
