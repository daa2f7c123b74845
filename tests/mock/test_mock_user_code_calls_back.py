"""User code that calls back into its own run, that is refused before it is called, and that ends what is not its own.
Cases: 107, 108, 121, 123.
"""

from __future__ import annotations

import asyncio
import functools
import operator
from typing import Any

import pytest

from sglang_dsl import RunOptions, State, gen, program, tool
from sglang_dsl.errors import DslError, JoinError, RunError, SpecError, ToolError
from sglang_dsl.ir.record import dump_record, parse_record
from sglang_dsl.runtime.backends.mock import mock

LIMIT_S = 5.0


@program
def ask(s: State) -> str:
    s += "?" + gen("other")
    return s["other"]


def outcome(body: Any) -> Any:
    """What a run without a deadline comes to; another run on the same backend works afterwards."""
    backend = mock({"a": "x", "b": "y", "other": "fine"})
    result = program(body).start(options=RunOptions(backend=backend)).result(LIMIT_S, raising=False)
    assert ask.run(options=RunOptions(backend=backend)).value == "fine"
    backend.engine.check()
    return result


# --- what waits for itself -------------------------------------------------------------------------------------------


def of_validator(s: State) -> Any:
    s += "?" + gen("a", validate=lambda value: s["a"] == value)
    return s["a"]


def of_async_validator(s: State) -> Any:
    async def check(value: str) -> bool:
        return await s.get("a") == value

    s += "?" + gen("a", validate=check)
    return s["a"]


def of_tool(s: State) -> Any:
    box: list[Any] = []

    @tool
    def t() -> Any:
        while not box:
            pass
        return box[0].value

    box.append(s.call(t))
    return box[0].value


def of_key(s: State) -> Any:
    box: list[Any] = []
    branches = s.fork(2)
    branches += "?" + gen("a")

    def key(value: str) -> Any:
        while not box:
            pass
        return box[0].value

    box.append(branches.best("a", key=key))
    return box[0].value


def of_what_comes_later(s: State) -> Any:
    box: list[Any] = []

    def check(value: str) -> bool:
        while not box:
            pass
        return s["b"] == value

    s += "?" + gen("a", validate=check)
    s += "!" + gen("b")
    box.append(1)
    return s["b"]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (of_validator, RunError),
        (of_async_validator, RunError),
        (of_tool, ToolError),
        (of_key, JoinError),
        (of_what_comes_later, RunError),
    ],
)
def test_user_code_that_waits_for_itself_fails_at_once(body: Any, kind: type[Exception]) -> None:
    error = outcome(body).error
    assert isinstance(error, kind)
    assert "waits for" in str(error)


def test_user_code_may_append_fork_join_and_read_what_does_not_wait_for_it() -> None:
    def body(s: State) -> Any:
        branches = s.fork(2)
        branches += "?" + gen("a")

        @tool
        def inner() -> str:
            return "i"

        @tool
        def t() -> list[Any]:
            more = s.fork(2)
            more += "!" + gen("b")
            return [list(more.join("b")), branches[0]["a"], s.call(inner).value]

        def key(value: str) -> int:
            more = s.fork(1)
            more += "!" + gen("b")
            return len(list(more.join("b")))

        return s.call(t).value, branches.best("a", key=key).value

    assert outcome(body).value == ([["y", "y"], "x", "i"], "x")


def test_user_code_that_cancels_all_tasks_of_its_loop_ends_every_call_on_it() -> None:
    async def key(value: str) -> int:
        for task in asyncio.all_tasks():
            task.cancel()
        await asyncio.sleep(0)
        return 1

    def body(s: State) -> Any:
        branches = s.fork(4)
        branches += "?" + gen("a")
        return branches.best("a", key=key).value

    assert isinstance(outcome(body).error, JoinError)


# --- what is refused where it is given -------------------------------------------------------------------------------


def generates(value: str) -> Any:
    yield value


async def generates_async(value: str) -> Any:
    yield value


class Generates:
    def __call__(self, value: str) -> Any:
        yield value


WRONG: dict[str, Any] = {
    "number": 5,
    "text": "check",
    "no parameter": lambda: True,
    "two parameters": lambda one, other: True,
    "keyword only": lambda *, value: True,
    "generator": generates,
    "async generator": generates_async,
    "partial of a generator": functools.partial(generates),
    "generating object": Generates(),
    "program": ask,
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_judge_one_value_is_refused_before_a_model_is_asked(wrong: str) -> None:
    with pytest.raises(SpecError, match="validate="):
        gen("a", validate=WRONG[wrong])

    def body(s: State) -> Any:
        branches = s.fork(2)
        branches += "?" + gen("a")
        return branches.best("a", key=WRONG[wrong])

    error = outcome(body).error
    assert isinstance(error, SpecError)
    assert "key=" in str(error)


class Judge:
    def __call__(self, value: str) -> bool:
        return value == "x"

    def method(self, value: str, more: int = 1) -> bool:
        return value == "x"

    async def later(self, value: str) -> bool:
        return value == "x"


@pytest.mark.parametrize(
    "right",
    [
        len,
        str.upper,
        bool,
        Judge(),
        Judge().method,
        Judge().later,
        functools.partial(operator.eq, "x"),
        functools.lru_cache(str.isalpha),
        functools.singledispatch(lambda value: True),
        operator.methodcaller("isalpha"),
        operator.itemgetter(0),
        lambda *values: True,
    ],
)
def test_whatever_takes_one_value_judges_it(right: Any) -> None:
    def body(s: State) -> Any:
        branches = s.fork(2)
        branches += "?" + gen("a", validate=right)
        return branches.best("a", key=right).value

    assert outcome(body).value == "x"


def test_tool_whose_wrapping_goes_in_a_circle_is_refused() -> None:
    def loops() -> int:
        return 1

    loops.__wrapped__ = loops  # type: ignore[attr-defined]
    with pytest.raises(SpecError, match="has no signature"):
        tool(loops)


# --- what it says ----------------------------------------------------------------------------------------------------


def test_lone_surrogates_of_user_code_are_in_errors_and_records_without_breaking_them() -> None:
    @tool
    def fails() -> str:
        raise ValueError("half \ud83d")

    @tool
    def gives() -> str:
        return "half \ud83d"

    def check(value: str) -> bool:
        raise ValueError("half \ud83d")

    def of_failing_tool(s: State) -> Any:
        return s.call(fails).value

    def of_check(s: State) -> Any:
        s += "?" + gen("a", validate=check)

    def of_giving_tool(s: State) -> Any:
        return s.call(gives).value

    for body in (of_failing_tool, of_check):
        result = outcome(body)
        assert isinstance(result.error, DslError)
        assert "half \\ud83d" in str(result.error)
        dump_record(result.record).encode()
    result = outcome(of_giving_tool)
    text = dump_record(result.record)
    text.encode()
    assert "half \ud83d" in [o.value for o in parse_record(text).outcomes.values()]
