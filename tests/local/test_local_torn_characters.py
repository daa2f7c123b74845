"""Characters over several tokens and calls, and texts that cannot fit, on real weights (cases: 307, 315)."""

from __future__ import annotations

from time import perf_counter

import pytest

from sglang_dsl import gen, program
from sglang_dsl.errors import ContextLengthError
from sglang_dsl.ir.specs import RunOptions

pytestmark = pytest.mark.model


@program
def token_by_token(s):
    s += "日日日日日日 😀😀😀😀"
    for _ in range(6):
        s += gen("a", max_tokens=1, temperature=0)
    return s.all("a"), s.text


@program
def at_once(s):
    s += "日日日日日日 😀😀😀😀"
    s += gen("a", max_tokens=6, temperature=0)
    return s.text


def test_calls_of_one_token_write_the_text_that_one_call_writes():
    options = RunOptions(backend="local:smollm2")
    parts, text = token_by_token.run(options=options).value
    assert text == at_once.run(options=options).value
    assert "\ufffd" in "".join(parts)
    assert "".join(token_by_token.stream(options=options)) == text


def test_a_text_of_20_megabytes_is_refused_before_it_is_encoded():
    @program
    def tell(s):
        s += "a word and another " * 1_050_000
        s += gen("a")

    options = RunOptions(backend="local:smollm2")
    at_once.run(options=options)
    begun = perf_counter()
    with pytest.raises(ContextLengthError, match="bytes of text"):
        tell.run(options=options)
    assert perf_counter() - begun < 2
