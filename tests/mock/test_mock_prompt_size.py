"""A text that cannot fit is refused before it is encoded (cases: 315)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sglang_dsl import gen, program, select
from sglang_dsl.errors import ContextLengthError
from sglang_dsl.ir.specs import RunOptions
from sglang_dsl.runtime.text.tokenizer import PieceTokenizer
from sglang_dsl.testing import mock

MEGABYTES = "a word and another " * (20_000_000 // 19)
MOST_ENCODED = 100_000  # characters, all texts together: what is refused is not encoded, nor any part of it


@pytest.fixture
def encoded(monkeypatch):
    """How many characters each call of a tokenizer was given."""
    sizes = []
    encode, encode_segment = PieceTokenizer.encode, PieceTokenizer.encode_segment

    def encode_counted(self, text: str, **options):
        sizes.append(len(text))
        return encode(self, text, **options)

    def encode_segment_counted(self, pieces: Sequence, **options):
        sizes.append(sum(len(piece.text) for piece in pieces))
        return encode_segment(self, pieces, **options)

    monkeypatch.setattr(PieceTokenizer, "encode", encode_counted)
    monkeypatch.setattr(PieceTokenizer, "encode_segment", encode_segment_counted)
    return sizes


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
def test_a_text_of_20_megabytes_is_refused_at_its_line_before_it_is_encoded(what, encoded):
    with mock(lambda call: "yes", context_tokens=8192) as backend:
        with pytest.raises(ContextLengthError, match=r"bytes of text.*tokens or more, and .* takes 8,192") as caught:
            what.run(MEGABYTES, options=RunOptions(backend=backend))
        assert sum(encoded) < MOST_ENCODED
        assert caught.value.origin is not None
        assert "bytes can never fit" in str(caught.value)
        assert caught.value.prompt_tokens > caught.value.context_tokens == 8192


def test_the_engine_refuses_it_in_every_call(encoded):
    with mock(lambda call: "yes", context_tokens=8192) as backend:
        engine = backend.engine
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
        assert sum(encoded) < MOST_ENCODED


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
