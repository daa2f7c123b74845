"""Streaming a named variable of a program, on the production pipeline with a scripted model."""

from __future__ import annotations

import asyncio

import pytest

from sglang_dsl import State, gen, program, select
from sglang_dsl.errors import EngineError, UnknownNameError
from sglang_dsl.ir.specs import RunOptions
from sglang_dsl.runtime.backends.mock import fails, mock, pieces

WORDS = ("one", " two", " three")


@program
def branching(s: State) -> str:
    s += "Pick: "
    s += select("k", ["a", "b"])
    if s["k"] == "a":
        s += gen("v")
    return s.text


def on(backend):
    return RunOptions(backend=backend)


def scripted(k="a", v=None):
    return mock({"k": k} if k == "b" else {"k": k, "v": v or pieces(*WORDS)})


def test_stream_of_a_variable_made_after_a_branch_holds_all_of_it():
    with scripted() as backend:
        chunks = list(branching.stream(options=on(backend)).of("v"))
    assert "".join(chunks) == "one two three"
    assert {chunk.node.name for chunk in chunks} == {"v"}


def test_stream_of_the_choice_of_a_select_is_the_choice():
    with scripted() as backend:
        assert "".join(branching.stream(options=on(backend)).of("k")) == "a"


def test_stream_of_a_variable_is_the_same_for_coroutines():
    async def collect(stream):
        return [chunk async for chunk in stream]

    with scripted() as backend:
        assert "".join(asyncio.run(collect(branching.stream(options=on(backend)).of("v")))) == "one two three"


@pytest.mark.parametrize(("k", "name"), [("a", "vv"), ("b", "v")])
def test_stream_of_a_name_that_no_call_has_is_an_error_at_the_end(k, name):
    """A misspelt one, and one of a branch that was not taken: neither waits for ever nor ends as if it were empty."""
    with scripted(k) as backend, pytest.raises(UnknownNameError, match=repr(name)):
        list(branching.stream(options=on(backend)).of(name))


@pytest.mark.parametrize("name", [None, "v"])
def test_stream_raises_what_failed_after_the_text_that_came(name):
    """The model goes away after its second token."""
    backend = scripted(v=fails("gone", after=2, reply=pieces(*WORDS)))
    stream = branching.stream(options=on(backend))
    shown = []
    with backend, pytest.raises(EngineError, match="gone"):
        shown.extend(iter(stream if name is None else stream.of(name)))
    assert "".join(shown) == ("" if name else "Pick: a") + "one two"


@pytest.mark.parametrize("name", [None, "v"])
def test_stream_of_a_run_under_way_holds_all_of_it_whenever_it_is_asked_for(name):
    """Before the first token, in the middle of the text, and after the end, where it used to be empty elsewhere."""

    async def late(running):
        return [chunk async for chunk in running.stream(name)]

    with scripted() as backend:
        running = branching.start(options=on(backend))
        early = running.stream(name)
        first = next(iter(running.stream(name)))
        assert first
        expected = ("" if name else "Pick: a") + "one two three"
        assert "".join(early) == expected
        running.result(20)
        assert "".join(running.stream(name)) == expected
        assert "".join(asyncio.run(late(running))) == expected
        with pytest.raises(UnknownNameError, match="'vv'"):
            list(running.stream("vv"))


def test_stream_of_a_run_that_is_left_leaves_the_run_and_nothing_behind():
    with scripted() as backend:
        running = branching.start(options=on(backend))
        for _ in running.stream("v"):
            break
        assert running.result(20).text == "Pick: aone two three"
        assert running.session.recorder._followers == ()


def test_stream_of_a_run_raises_its_failure_also_afterwards():
    with scripted(v=fails("gone", after=2, reply=pieces(*WORDS))) as backend:
        running = branching.start(options=on(backend))
        assert running.result(20, raising=False).error is not None
        shown = []
        with pytest.raises(EngineError, match="gone"):
            shown.extend(iter(running.stream("v")))
        assert "".join(shown) == "one two"
