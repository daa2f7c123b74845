"""Ids and scores of what a stop cut; a stop inside constrained output (cases: 307)."""

from __future__ import annotations

import pytest

from sglang_dsl import gen, program
from sglang_dsl.errors import TruncatedError
from sglang_dsl.ir.specs import RunOptions
from sglang_dsl.testing import malformed, mock, pieces


@program
def ask(s, call):
    s += gen("a", **call)
    return s["a"]


CUTS = [
    (["wait", "..."], "t.", "wai", 1),
    (["one ", "two ", "three"], "wo", "one t", 2),
    (["one ", "two ", "three"], "two", "one ", 1),
    (["stop"], "stop", "", 0),
    (["a", "b"], "zz", "ab", 2),
    ([b"\xe6\x97", b"\xa5!", "x"], "!", "日", 2),
]


@pytest.mark.parametrize(("tokens", "stop", "text", "covered"), CUTS)
def test_ids_and_scores_reach_up_to_the_token_that_a_stop_cut(tokens, stop, text, covered):
    with mock({"a": pieces(*tokens)}) as backend:
        state = ask.run({"stop": stop, "logprobs": 0}, options=RunOptions(backend=backend)).state
        meta, intern = state.meta("a"), backend.engine.text.tokenizer.intern
        assert state["a"] == text
        assert meta.token_ids == tuple(map(intern, tokens[:covered]))
        assert tuple(score.token_id for score in meta.token_scores) == meta.token_ids


@pytest.mark.parametrize(
    "call", [{"regex": "[a-z]+ [a-z]+"}, {"choices": ["yes it is", "no"]}, {"schema": {"type": "string"}}]
)
def test_a_stop_inside_constrained_output_is_named_and_partial_ok_counts(call):
    text = '"yes it is"' if "schema" in call else "yes it is" if "choices" in call else "ab cd"
    call = {**call, "stop": " "}
    with mock({"a": malformed(text)}) as backend:
        with pytest.raises(TruncatedError, match="cut off by its stop ' '") as caught:
            ask.run(call, options=RunOptions(backend=backend))
        assert caught.value.partial == text.split(" ")[0]
    with mock({"a": malformed(text)}) as backend:
        assert ask.run({**call, "partial_ok": True}, options=RunOptions(backend=backend)).value == text.split(" ")[0]


def test_a_stop_after_a_whole_value_leaves_it_whole():
    with mock({"a": malformed("ab cd")}) as backend:
        assert ask.run({"regex": "[a-z]+( cd)?", "stop": " "}, options=RunOptions(backend=backend)).value == "ab"
