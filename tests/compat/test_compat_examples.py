"""Programs in the style of SGLang's published examples, each with what it gives there."""

from __future__ import annotations

import asyncio

import pytest

import sglang_dsl.sglang as sgl
from sglang_dsl.testing import mock


@sgl.function
def tip_suggestion(s, topic):
    s += "Tips about " + topic + ".\n"
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += f"Tip {i + 1}:" + sgl.gen("tip", max_tokens=64, stop="\n")
    forks.join()
    s += "1." + forks[0]["tip"] + " 2." + forks[1]["tip"] + "\nIn short:" + sgl.gen("summary")


@sgl.function
def expand_tip(s, tip):
    s += "Expand: " + tip + "\n" + sgl.gen("detailed_tip", max_tokens=64)


@sgl.function
def expanded(s):
    details = [expand_tip.run(tip=tip) for tip in ("a", "b")]
    s += details[0]["detailed_tip"] + "/" + details[1]["detailed_tip"]


@sgl.function
def tree_of_thought(s, n):
    s += "Q"
    leaves = []
    for plan in s.fork(n):
        plan += sgl.gen("plan")
        solutions = plan.fork(n)
        for solution in solutions:
            solution += sgl.gen("solution")
        leaves.extend(solutions)
    for leaf in leaves:
        leaf += sgl.gen("score", dtype=int)
    s += max(leaves, key=lambda leaf: int(leaf["score"]))["solution"]


@sgl.function
def react(s, question):
    s += "Question: " + question + "\n"
    for i in range(1, 4):
        s += f"Thought {i}:" + sgl.gen("thought", stop=["\n"]) + f"\nAction {i}:"
        s += sgl.gen(f"act{i}", choices=[" search", " finish"])
        if s[f"act{i}"] == " finish":
            break
        s += "\nObservation: nothing\n"


@sgl.function
def chat(s):
    s += sgl.system("Be kind.")
    with s.user():
        s += "hi"
    with s.assistant():
        s += "say " + sgl.gen("a")
    s += sgl.user_begin() + "more" + sgl.user_end()
    s += sgl.assistant_begin()
    s += sgl.gen("b")
    s += sgl.assistant_end()


@sgl.function
def decoded(s):
    s += sgl.gen("ip", regex=r"\d+\.\d+") + " "
    s += sgl.gen("j", json_schema='{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}')


def part(s, name):
    s += name + sgl.gen("a")
    return s


@sgl.function
def composed(s):
    with s.var_scope("scope"):
        part(s, "k")
    s += "!" + s["scope"]


@sgl.function
def copied(s):
    s += "A"
    with s.copy() as c:
        c += "B" + sgl.gen("a")
        s += c["a"]
    s.set_var("z", 4)
    return s["z"]


@sgl.function(num_api_spec_tokens=64)
def speculated(s):
    forks = s.fork(2, position_ids_offset=[0, 10])
    forks += "name:" + sgl.gen("a", stop="\n")
    forks.join("concate_and_append")
    s += "end:" + sgl.gen("b", stop="\n")


EXAMPLES = {
    "tip suggestion": (tip_suggestion, {"topic": "x"}, {"tip": ["p", "q"], "summary": "z"}, "Tips about x.\n1.p 2.q\nIn short:z"),
    "expand": (expanded, {}, {"detailed_tip": ["1", "2"]}, "1/2"),
    "tree of thought": (tree_of_thought, {"n": 2},
                        {"plan": ["a", "b"], "solution": ["w", "x", "y", "z"], "score": ["1", "4", "3", "2"]}, "Qx"),
    "react": (react, {"question": "why"}, {"thought": ["t1", "t2"], "act1": " search", "act2": " finish"},
              "Question: why\nThought 1:t1\nAction 1: search\nObservation: nothing\nThought 2:t2\nAction 2: finish"),
    "decoding": (decoded, {}, {"ip": "1.2", "j": '{"a":1}'}, '1.2 {"a":1}'),
    "composition": (composed, {}, {"a": "1"}, "k1!k1"),
    "copy": (copied, {}, {"a": "1"}, "A1"),
    "speculation": (speculated, {}, {"a": ["1", "2"], "b": "3"}, "name:1name:2end:3"),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_gives_the_text_it_gives_there(name):
    program, arguments, script, text = EXAMPLES[name]
    state = program.run(**arguments, backend=mock(script))
    assert state.error() is None
    assert state.text() == text


def test_chat_has_its_messages():
    messages = chat.run(backend=mock({"a": "1", "b": "2"})).messages()
    assert [(m["role"], m["content"]) for m in messages] == [
        ("system", "Be kind."), ("user", "hi"), ("assistant", "say 1"), ("user", "more"), ("assistant", "2"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "method",
    [sgl.token_length_normalized, sgl.greedy_token_selection, sgl.unconditional_likelihood_normalized],
    ids=["mean", "greedy", "unconditional"],
)
def test_choices_are_scored_by_each_method_and_have_their_meta(method):
    @sgl.function
    def p(s):
        s += "A" + sgl.select("c", choices=[" x", " yy"], choices_method=method)

    state = p.run(backend=mock({"c": " yy"}))
    assert state["c"] == " yy"
    assert {"input_token_logprobs", "normalized_prompt_logprobs"} <= state.get_meta_info("c").keys()


def test_streams_of_one_name_and_of_all_and_a_batch_in_order():
    @sgl.function
    def p(s, x=""):
        s += x + sgl.gen("a", max_tokens=9) + sgl.gen("b")

    def script():
        return mock({"a": "hello there", "b": "q"})

    async def pieces():
        state = p.run(stream=True, backend=script())
        return "".join([piece async for piece in state.text_async_iter("a")])

    assert "".join(p.run(stream=True, backend=script()).text_iter("a")) == "hello there"
    assert "".join(p.run(stream=True, x="x", backend=script()).text_iter()) == "xhello thereq"
    assert asyncio.run(pieces()) == "hello there"
    states = p.run_batch([{"x": str(i)} for i in range(4)], backend=script(), num_threads=2, progress_bar=False)
    assert [state.text() for state in states] == [f"{i}hello thereq" for i in range(4)]


def test_unknown_variable_is_a_key_error_and_there_is_no_stream_executor():
    state = copied.run(backend=mock({"a": "1"}))
    with pytest.raises(KeyError):
        state["nope"]
    assert not hasattr(state, "stream_executor")
