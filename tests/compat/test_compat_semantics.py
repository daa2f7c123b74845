"""What SGLang's own frontend does, done here too (cases: 503, 504, 505)."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest

import sglang_dsl.sglang as sgl
from sglang_dsl import MISSING
from sglang_dsl.errors import DslError
from sglang_dsl.frontend.tracing.export import export
from sglang_dsl.ir.nodes import Gen
from sglang_dsl.testing import mock, stalls


def failing():
    return mock({"a": ["fine"] * 8, "bad": ["not a number"] * 8, "b": ["more"] * 8})


# looking at a failure keeps it -----------------------------------------------------------------------------------------


def sync(s):
    s += "x" + sgl.gen("bad", dtype=int)
    s.sync()


def error(s):
    s += "x" + sgl.gen("bad", dtype=int)
    assert s.error() is not None


def child_sync(s):
    forks = s.fork(2)
    forks[0] += sgl.gen("bad", dtype=int)
    forks[1] += sgl.gen("a")
    forks[0].sync()


def caught_read(s):
    s += "x" + sgl.gen("bad", dtype=int)
    try:
        s["bad"]
    except DslError:
        return "went on"


def caught_text(s):
    s += "x" + sgl.gen("bad", dtype=int)
    with suppress(DslError):
        s.text()


def caught_child_read(s):
    (fork,) = s.fork(1)
    fork += sgl.gen("bad", dtype=int)
    with suppress(DslError):
        fork["bad"]


LOOKERS = [sync, error, child_sync, caught_read, caught_text, caught_child_read]


@pytest.mark.parametrize("body", LOOKERS)
def test_looking_at_a_failure_keeps_it_in_the_state_and_in_a_batch(body):
    program = sgl.function(body)
    state = program.run(backend=failing())
    assert isinstance(state.error(), DslError)
    assert "bad" in str(state.error())
    with pytest.raises(DslError):
        _ = state.ret_value
    for item in program.run_batch([{}, {}], backend=failing()):
        assert isinstance(item.error(), DslError)
    streamed = program.run(stream=True, backend=failing())
    with pytest.raises(DslError):
        list(streamed.text_iter())
    assert isinstance(streamed.error(), DslError)


# what the original does ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3])
def test_first_of_several_samples_is_what_the_text_goes_on_with(n):
    @sgl.function
    def p(s):
        s += "Q: " + sgl.gen("a", n=n) + "."
        s += sgl.gen("b")

    backend = mock({"a": ["x", "y", "z"][:n], "b": "end"})
    state = p.run(backend=backend)
    assert state["a"] == ["x", "y", "z"][:n]
    assert state.text() == "Q: x.end"


def test_json_schema_as_text_gives_the_text():
    schema = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})

    @sgl.function
    def p(s):
        s += sgl.gen("a", json_schema=schema)
        return json.loads(s["a"])["n"]

    assert p.run(backend=mock({"a": '{"n": 4}'})).ret_value == 4


def test_runs_inside_a_program_do_not_wait_for_each_other():
    @sgl.function
    def inner(s, x):
        s += x + sgl.gen("v", max_tokens=4000)

    @sgl.function
    def outer(s):
        states = [inner.run(x=str(i)) for i in range(4)]
        s += " ".join(state["v"] for state in states)
        assert all(state.error() is None for state in states)

    text = "a text of a good many tokens, one after the other"
    backend = mock(
        {"v": [stalls(text, tokens=2000)] * 4}
    )  # so long that whoever does not wait is there before the first ends
    state = outer.run(backend=backend)
    assert state.text() == " ".join([text] * 4)
    assert backend.calls("v").max_parallel == 4


def test_run_inside_a_program_still_raises_what_its_body_raises():
    @sgl.function
    def inner(s):
        raise KeyError("inner")

    @sgl.function
    def outer(s):
        with pytest.raises(KeyError, match="inner"):
            inner.run()
        s += "on"

    assert outer.run(backend=mock({})).text() == "on"


def test_context_parameters_take_what_more_is_given():
    @sgl.function
    def p(s, question, *context, tone="dry"):
        s += question + "|" + "|".join(context) + "|" + tone

    assert p.run("q", "a", "b", backend=mock({})).text() == "q|a|b|dry"
    assert p.run("q", "a", tone="wet", backend=mock({})).text() == "q|a|wet"
    assert p.run(question="q", backend=mock({})).text() == "q||dry"
    assert [s.text() for s in p.run_batch([("q", "a"), {"question": "r"}], backend=mock({}))] == ["q|a|dry", "r||dry"]


def test_program_that_returns_its_state_exports():
    @sgl.function
    def p(s, question):
        s += "Q: " + question + "\nA:" + sgl.gen("a")
        return s

    graph = export(p._program, (), {}, symbolic=("question",))
    assert [node.name for node in graph if isinstance(node, Gen)] == ["a"]
    assert p.run(question="x", backend=mock({"a": "y"})).ret_value["a"] == "y"


def test_async_pieces_come_with_their_meta():
    @sgl.function
    def p(s):
        s += "Q" + sgl.gen("a", max_tokens=8)

    async def read():
        state = p.run(stream=True, backend=mock({"a": "one two three"}))
        return [pair async for pair in state.text_async_iter("a", return_meta_data=True)]

    pairs = asyncio.run(read())
    assert "".join(piece for piece, _ in pairs) == "one two three"
    *before, (_, last) = pairs
    assert all(piece for piece, _ in before)
    assert [meta["completion_tokens"] for _, meta in before] == list(range(1, len(pairs)))
    assert last["finish_reason"]["type"] == "stop"
    assert {meta["id"] for _, meta in pairs} == {last["id"]}


@pytest.mark.parametrize(("said", "value"), [("True", True), ("False", False)])
def test_bool_is_written_as_python_does(said, value):
    @sgl.function
    def p(s):
        s += "is it? " + sgl.gen("a", dtype=bool)

    state = p.run(backend=mock({"a": said}))
    assert state["a"] is value
    assert state.text() == f"is it? {said}"


def test_messages_have_no_leading_blanks():
    @sgl.function
    def p(s):
        s += sgl.user("  hello ")
        s += sgl.assistant(sgl.gen("a"))

    assert [m["content"] for m in p.run(backend=mock({"a": " hi"})).messages()] == ["hello ", "hi"]


def test_name_joined_twice_keeps_the_first_list():
    @sgl.function
    def p(s):
        for _ in range(2):
            forks = s.fork(2)
            forks += sgl.gen("v")
            forks[0] += sgl.gen("w") if "w" not in s else ""
            forks.join()

    state = p.run(backend=mock({"v": ["1", "2", "3", "4"], "w": "5"}))
    assert state["v"] == ["1", "2"]
    assert state["w"] == ["5", MISSING]


def test_nested_joins_give_the_nested_list():
    @sgl.function
    def p(s):
        outer = s.fork(2)
        for fork in outer:
            inner = fork.fork(2)
            inner += sgl.gen("answer")
            inner.join()
        outer.join()
        s += ",".join(x for xs in s["answer"] for x in xs)

    state = p.run(backend=mock({"answer": ["aa", "bb", "cc", "dd"]}))
    assert state["answer"] == [["aa", "bb"], ["cc", "dd"]]
    assert state.text() == "aa,bb,cc,dd"


def test_repr_of_a_state_is_its_text():
    @sgl.function
    def p(s):
        s += "Q: " + sgl.gen("a")

    assert repr(p.run(backend=mock({"a": "x"}))) == "ProgramState(Q: x)"
    assert "failed" in repr(sgl.function(sync).run(backend=failing()))


def test_reasoning_puts_no_tag_into_the_prompt():
    @sgl.function
    def p(s):
        s += "Q: " + sgl.separate_reasoning(sgl.gen("a"), model_type="qwen3")

    backend = mock({"a": ["<think>\nhm</think>", "one"]})
    state = p.run(backend=backend)
    assert (state["a"], state["a_reasoning_content"]) == ("one", "hm")
    assert not any("<think>" in str(node) for node in state.inner._cursor.path()[:1])
    assert state.text() == "Q: one"
