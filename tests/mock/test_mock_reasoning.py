"""Thoughts are a part of a call with rules of their own (cases: 306)."""

from __future__ import annotations

import pytest

from sglang_dsl import Reasoning, assistant, gen, program, select, user
from sglang_dsl.errors import DslError
from sglang_dsl.ir.specs import RunOptions
from sglang_dsl.runtime.text.tokenizer import ChatMlTemplate
from sglang_dsl.testing import mock, pieces


class Opening(ChatMlTemplate):
    """Opens a block of thoughts in front of each answer, as DeepSeek's and Qwen's templates do."""

    __slots__ = ()

    def open_turn(self, turns, role):
        return ChatMlTemplate.open_turn(self, turns, role) + ("<think>\n" if role == "assistant" else "")


@program
def ask(s, call):
    s += user("Q")
    s += assistant(gen("a", **call))
    return s["a"]


def thinking(script, template=None, **options):
    """(the run's result, what the requests were given, the call's meta)."""
    with mock({"a": script}, template=template) as backend:
        result = ask.run(options, options=RunOptions(backend=backend))
        return result, [call.prompt for call in backend.calls("a")], result.state.meta("a")


def test_stops_of_the_answer_leave_the_thoughts_alone():
    stops = {"stop": "b", "stop_regex": "c+", "min_tokens": 1, "logprobs": 0}
    result, _, meta = thinking([pieces("a", "b", "c", "</think>"), pieces("x", "b", "y")], reasoning=True, **stops)
    assert (result.value, meta.reasoning, meta.reasoning_cut) == ("x", "abc", False)
    assert (meta.finish_reason, meta.matched) == ("stop", "b")


def test_stop_token_ids_apply_to_the_answer_only():
    with mock({"a": [pieces("a", "b", "c", "</think>"), pieces("x", "b", "y")]}) as backend:
        (b_id,) = backend.engine.text.tokenizer.encode("b")
        result = ask.run({"reasoning": True, "stop_token_ids": [b_id]}, options=RunOptions(backend=backend))
        assert (result.value, result.state.meta("a").reasoning) == ("x", "abc")
        assert result.state.meta("a").matched == b_id


def test_an_end_marker_that_is_a_token_without_text_is_seen():
    """The marker's id is a stop of the thoughts: its text never shows."""
    with mock({"a": [pieces("hm"), pieces("x")]}) as backend:
        marker = backend.engine.text.tokenizer.control_id("<|im_start|>")
        asked = []
        submit = backend.engine.submit
        backend.engine.submit = lambda requests: (asked.extend(r for r, _ in requests), submit(requests))[1]
        ask.run({"reasoning": Reasoning(end="<|im_start|>")}, options=RunOptions(backend=backend))
    assert [request.sampling.stop_token_ids for request in asked] == [(marker,), ()]
    assert asked[1].prompt_ids[-1] == marker


@pytest.mark.parametrize("most", [1, 2, 3, 4, 10, 40])
@pytest.mark.parametrize("budget", [None, 0, 1, 2, 100])
def test_max_tokens_are_those_of_both_parts_together(most, budget):
    endless = pieces(*["w "] * 200)
    script = [endless, endless]
    with mock({"a": script}, policy="last") as backend:
        options = {"reasoning": Reasoning(budget_tokens=budget), "max_tokens": most}
        meta = ask.run(options, options=RunOptions(backend=backend)).state.meta("a")
        backend.verify = lambda: None
    assert meta.generated_tokens == most
    assert meta.reasoning_tokens <= (most if budget is None else budget)
    assert meta.reasoning_cut
    assert meta.generated_tokens - meta.reasoning_tokens >= 1


def test_a_block_that_the_template_opens_is_not_opened_twice():
    result, prompts, meta = thinking(["hm</think>", "x"], Opening(), reasoning=True)
    assert prompts[0].count("<think>") == prompts[1].count("<think>") == 1
    assert prompts[0].endswith("<|im_start|>assistant\n<think>\n")
    assert prompts[1].endswith("<think>\nhm</think>")
    assert (result.value, meta.reasoning) == ("x", "hm")


def test_a_block_that_the_program_opened_is_not_opened_twice():
    @program
    def opened(s):
        s += "Q <think>\n"
        s += gen("a", reasoning=True)

    with mock({"a": ["hm</think>", "x"]}) as backend:
        opened.run(options=RunOptions(backend=backend))
        assert [call.prompt for call in backend.calls("a")] == ["Q <think>\n", "Q <think>\nhm</think>"]


def test_a_call_without_thoughts_closes_the_block_that_the_template_opened():
    result, prompts, meta = thinking(["x"], Opening(), reasoning=False)
    assert prompts[0].endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert (result.value, meta.reasoning, meta.reasoning_tokens) == ("x", "", 0)
    assert result.state.messages() == [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "x"}]


def test_a_select_closes_the_block_that_the_template_opened():
    @program
    def choose(s):
        s += user("Q")
        s += assistant(select("a", ["yes", "no"]), gen("b"))

    with mock({"a": "no", "b": "x"}, template=Opening()) as backend:
        choose.run(options=RunOptions(backend=backend))
        assert backend.calls("a")[0].prompt.endswith("<think>\n\n</think>\n\n")
        assert backend.calls("b")[0].prompt.endswith("<think>\n\n</think>\n\nno")


def test_thoughts_can_be_held_to_a_pattern():
    result, prompts, meta = thinking(["12", "x"], reasoning=Reasoning(regex=r"[0-9]{2}"))
    assert (meta.reasoning, meta.reasoning_cut, result.value) == ("12", False, "x")
    assert prompts[1].endswith("<think>12</think>")


def test_thoughts_are_in_no_text_message_or_stream_but_in_the_record():
    with mock({"a": ["secret</think>", "x"]}) as backend:
        stream = ask.stream({"reasoning": True}, options=RunOptions(backend=backend))
        text = "".join(stream)
        result = stream.result
    assert "secret" not in text
    assert "secret" not in result.text
    assert text == result.text
    assert "secret" not in str(result.state.messages())
    assert [o.meta.reasoning for o in result.record.outcomes.values() if o.meta is not None] == ["secret"]


@pytest.mark.parametrize(
    "reasoning",
    ["yes", 1, None, Reasoning(end=""), Reasoning(budget_tokens=-1), Reasoning(budget_tokens=True),
     Reasoning(end="\ud800"), Reasoning(regex="("), Reasoning(begin=5)],
)  # fmt: skip
def test_thoughts_of_no_sense_are_refused_where_they_are_asked_for(reasoning):
    with pytest.raises(DslError) as caught:
        gen("a", reasoning=reasoning)
    assert caught.value.origin.file == __file__
