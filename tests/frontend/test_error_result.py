"""The Result of a run that failed hangs on the error, whichever way the run was made (cases: 402)."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sglang_dsl import Result, RunOptions, State, gen, program, tool
from sglang_dsl.errors import DslError, ToolError
from sglang_dsl.testing import mock


class OwnError(Exception):
    """An exception of the user's."""


class HasResult(Exception):
    """A user's exception that has a `result` of its own."""

    def __init__(self) -> None:
        super().__init__("busy")
        self.result = "mine"


class Sealed(Exception):
    """A user's exception that cannot be written to."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


@tool
def broken(x: str) -> str:
    """Fails."""
    raise ValueError("no such order")


@program
def by_tool(s: State) -> str:
    s += "Hi " + gen("first", max_tokens=4)
    found = s.call(broken, x="1")
    return found.value


@program
def by_body(s: State, kind: type[BaseException] = OwnError) -> None:
    s += "Hi " + gen("first", max_tokens=4)
    s["first"]
    raise kind()


@program
async def asynchronous(s: State) -> None:
    s += "Hi " + gen("first", max_tokens=4)
    await s.get("first")
    raise OwnError


@program
def outer(s: State) -> str:
    s += "Outer " + gen("o", max_tokens=4)
    return by_tool.run().text


@pytest.fixture
def options() -> Iterator[RunOptions]:
    with mock(unscripted="echo") as backend:
        yield RunOptions(backend=backend, seed=1)


def drain(stream: Any) -> None:
    for _ in stream:
        pass


async def adrain(stream: Any) -> None:
    async for _ in stream:
        pass


WAYS: dict[str, Callable[[Any, RunOptions], Any]] = {
    "run": lambda p, o: p.run(options=o),
    "arun": lambda p, o: asyncio.run(p.arun(options=o)),
    "start": lambda p, o: p.start(options=o).result(),
    "value": lambda p, o: p.start(options=o).result(raising=False).value,
    "batch": lambda p, o: p.run_batch([{}], options=o)[0].value,
    "arun_batch": lambda p, o: asyncio.run(p.arun_batch([{}], options=o))[0].value,
    "stream": lambda p, o: drain(p.stream(options=o)),
    "astream": lambda p, o: asyncio.run(adrain(p.astream(options=o))),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("prog", [by_tool, by_body, asynchronous], ids=lambda p: p.name)
def test_error_of_a_failed_run_holds_its_result(way: str, prog: Any, options: RunOptions) -> None:
    with pytest.raises((ToolError, OwnError)) as caught:
        WAYS[way](prog, options)
    result = caught.value.result
    assert isinstance(result, Result)
    assert result.error is caught.value
    assert result.finished["first"]
    assert result.usage.calls == 1
    assert "Hi " in result.text
    for form in ("terminal", "mermaid", "dot", "svg", "html", "trace"):
        assert result.draw(form)


def test_error_of_a_tool_is_on_the_node_and_in_the_record(options: RunOptions, tmp_path: Any) -> None:
    from sglang_dsl.ir.record import load_record, save_record

    with pytest.raises(ToolError) as caught:
        by_tool.run(options=options)
    result = caught.value.result
    assert [type(e) for e in result.errors.values()] == [ToolError]
    save_record(result.record, tmp_path / "run.jsonl")
    assert [e.what for e in load_record(tmp_path / "run.jsonl").errors.values()] == [caught.value.what]
    assert "failed: E305" in result.draw("terminal")


def test_error_passes_through_a_run_inside_a_run_and_names_the_outer_one(options: RunOptions) -> None:
    from sglang_dsl import use

    with use(options), pytest.raises(ToolError) as caught:
        outer.run()
    assert caught.value.result.graph.name == "outer"


def test_users_exception_keeps_its_own_result_and_its_own_ways(options: RunOptions) -> None:
    with pytest.raises(HasResult) as caught:
        by_body.run(HasResult, options=options)
    assert caught.value.result == "mine"
    with pytest.raises(Sealed):
        by_body.run(Sealed, options=options)


@pytest.mark.parametrize("prog", [by_tool, by_body], ids=lambda p: p.name)
def test_pickled_error_says_where_its_result_is(prog: Any, options: RunOptions) -> None:
    with pytest.raises((ToolError, OwnError)) as caught:
        prog.run(options=options)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert type(copied) is type(caught.value)
    assert str(copied) == str(caught.value)
    assert "Result" in repr(copied.result)


def test_pickled_result_stands_for_a_run_elsewhere(options: RunOptions) -> None:
    with pytest.raises(ToolError) as caught:
        by_tool.run(options=options)
    result = caught.value.result
    away = pickle.loads(pickle.dumps(result))
    assert (away.usage, away.seed) == (result.usage, 1)
    with pytest.raises(AttributeError, match="save_record"):
        away.graph
    assert copy.copy(result) is result
    assert copy.deepcopy(result) is result


def test_error_that_ended_no_run_has_no_result(options: RunOptions) -> None:
    assert DslError("x").result is None
