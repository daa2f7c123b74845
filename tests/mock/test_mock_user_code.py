"""What a user hands over is called through one way in: where it runs, what it sees, and that its faults are its own.

Cases: 107, 108, 121, 122, 123 and `run_batch` of 108.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, field_serializer, field_validator

from sglang_dsl import RunOptions, State, gen, program, select, tool, use
from sglang_dsl.errors import DeadlineError, JoinError, ProgramError, RunError, ToolError
from sglang_dsl.runtime.backends.mock import MockExecutor, cut_off, mock, pieces

LIMIT_S = 5.0
cv: ContextVar[str] = ContextVar("cv", default="default")


class Stranger(BaseException):
    """No Exception, and it cannot even say what it is."""

    def __str__(self) -> str:
        raise SystemExit(3)


def leave() -> None:
    import sys

    sys.exit(1)


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


FAULTS: dict[str, Callable[[], None]] = {
    "sys.exit": leave,
    "CancelledError": raising(asyncio.CancelledError()),
    "pytest.fail": lambda: pytest.fail("x"),
    "KeyboardInterrupt": raising(KeyboardInterrupt()),
    "GeneratorExit": raising(GeneratorExit()),
    "StopIteration": raising(StopIteration(1)),
    "StopAsyncIteration": raising(StopAsyncIteration()),
    "Stranger": raising(Stranger()),
}


@pytest.fixture
def backend() -> Iterator[MockExecutor]:
    with mock(unscripted="echo") as opened:
        yield opened


def options(backend: Any, **more: Any) -> RunOptions:
    return RunOptions(backend=backend, **{"deadline_s": LIMIT_S, **more})


@program
def ask(s: State, question: str = "?"):
    s += question + gen("answer")
    return s["answer"]


def assert_well(backend: MockExecutor) -> None:
    """Other runs are as they were, and the engine's books balance."""
    assert ask.run(options=options(backend)).value
    backend.engine.check()


# what is raised ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True], ids=["tool", "async tool"])
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_a_tool_raises_is_its_own_failure(backend: MockExecutor, fault: str, asynchronous: bool) -> None:
    @tool
    def plain() -> int:
        FAULTS[fault]()
        return 1

    @tool
    async def later() -> int:
        await asyncio.sleep(0)
        FAULTS[fault]()
        return 1

    @program
    def p(s: State):
        s.call(later if asynchronous else plain)
        s += "hello" + gen("a")
        return s["a"]

    result = p.start(options=options(backend)).result(LIMIT_S, raising=False)
    assert isinstance(result.error, ToolError)
    assert_well(backend)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_a_validator_raises_is_its_gens_failure(backend: MockExecutor, fault: str, asynchronous: bool) -> None:
    def plain(value: str) -> bool:
        FAULTS[fault]()
        return True

    async def later(value: str) -> bool:
        await asyncio.sleep(0)
        return plain(value)

    @program
    def p(s: State):
        s += gen("a", validate=later if asynchronous else plain)

    result = p.start(options=options(backend)).result(LIMIT_S, raising=False)
    assert isinstance(result.error, RunError)
    assert "the validator of 'a' raised" in str(result.error)
    assert_well(backend)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_a_key_raises_is_its_joins_failure(backend: MockExecutor, fault: str, asynchronous: bool) -> None:
    def plain(value: str) -> int:
        FAULTS[fault]()
        return 1

    async def later(value: str) -> int:
        return plain(value)

    @program
    def p(s: State):
        branches = s.fork(3)
        branches += gen("v")
        return branches.best("v", key=later if asynchronous else plain).value

    result = p.start(options=options(backend)).result(LIMIT_S, raising=False)
    assert isinstance(result.error, JoinError)
    assert len(result.error.results) == 3
    assert_well(backend)


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_the_comparison_of_keys_raises_is_its_joins_failure(backend: MockExecutor, fault: str) -> None:
    threads: set[threading.Thread] = set()

    class Rank:
        def __gt__(self, other: Rank) -> bool:
            threads.add(threading.current_thread())
            FAULTS[fault]()
            return True

    @program
    def p(s: State):
        branches = s.fork(2)
        branches += gen("v")
        return branches.best("v", key=lambda value: Rank()).value

    result = p.start(options=options(backend)).result(LIMIT_S, raising=False)
    assert isinstance(result.error, JoinError)
    assert "engine" not in {thread.name for thread in threads}.pop()
    assert_well(backend)


def test_async_program_whose_body_raises_a_stray_cancellation_ends(backend: MockExecutor) -> None:
    @program
    async def p(s: State, i: int):
        s += gen("a")
        await s.get("a")
        if i == 1:
            raise asyncio.CancelledError
        if i == 2:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(1)
        return i

    results = p.run_batch(range(4), options=options(backend), concurrency=2)
    assert [type(result.error) for result in results] == [
        type(None), asyncio.CancelledError, asyncio.CancelledError, type(None)
    ]  # fmt: skip
    for i in (1, 2):
        ended = p.start(i, options=options(backend)).result(LIMIT_S, raising=False)
        assert isinstance(ended.error, asyncio.CancelledError)
    assert_well(backend)


class Shown(BaseModel):
    """An object whose JSON is made by user code."""

    fault: str
    seen: ClassVar[list[tuple[str, str]]] = []

    @field_serializer("fault")
    def show(self, fault: str) -> str:
        Shown.seen.append((threading.current_thread().name, cv.get()))
        if fault:
            FAULTS[fault]()
        return "fine"


@tool
def shown(fault: str, after: str) -> Shown:
    return Shown(fault=fault)


@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_how_an_object_reads_is_asked_off_the_engines_thread_and_its_fault_is_the_texts(
    backend: MockExecutor, fault: str
) -> None:
    @program
    def p(s: State):
        branches = s.fork(2)
        branches[0] += gen("a")
        found = branches[0].call(shown, fault, branches[0].ref("a"))
        branches[1] += gen("b")
        cv.set("statement")
        branches[1] += found
        branches[1] += gen("c")
        cv.set("after")
        return branches[1]["c"]

    Shown.seen.clear()
    token = cv.set("caller")
    result = p.start(options=options(backend)).result(LIMIT_S, raising=False)
    cv.reset(token)
    assert Shown.seen
    assert not [thread for thread, _ in Shown.seen if "engine" in thread]
    assert (result.error is None) is (fault == "")
    if not fault:
        assert {seen for _, seen in Shown.seen} == {"statement"}
    assert_well(backend)


@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "Stranger"])
def test_whatever_a_script_of_the_mock_raises_is_its_calls_failure(fault: str) -> None:
    def script(call: Any) -> str:
        if call.name == "second":
            FAULTS[fault]()
        return "fine"

    @program
    def p(s: State):
        s += gen("first") + gen("second")

    backend = mock(script)
    result = p.start(options=options(backend)).result(LIMIT_S, raising=False)
    assert result.error is not None
    assert_well(backend)


# where it runs ----------------------------------------------------------------------------------------------------------


def recorder(seen: dict[str, str], what: str, gives: Any = True) -> Callable[..., Any]:
    def record(*_: Any) -> Any:
        seen[what] = threading.current_thread().name
        return gives

    return record


def test_no_user_code_runs_on_the_engines_thread(backend: MockExecutor) -> None:
    seen: dict[str, str] = {}
    note = partial(recorder, seen)

    class Checked(BaseModel):
        a: int

        @field_validator("a")
        @classmethod
        def check(cls, value: int) -> int:
            note("pydantic validator")()
            return value

    @dataclass
    class Made:
        a: int

        def __post_init__(self) -> None:
            note("__post_init__")()

    class Colour(Enum):
        RED = "red"

        @classmethod
        def _missing_(cls, value: object) -> Any:
            note("_missing_")()
            return cls.RED

    @tool
    def plain(text: str) -> int:
        note("tool")()
        return 1

    @tool
    async def later(text: str) -> int:
        note("async tool")()
        return 1

    async def accepts(value: str) -> bool:
        note("async validator")()
        return True

    @program
    def p(s: State):
        s += "x" + gen("a", validate=note("validator")) + gen("b", validate=accepts)
        s.call(plain, s.ref("b"))
        s.call(later, s.ref("b"))
        s += gen("c", type=Checked) + gen("d", type=Made)
        s += gen("e", type=Colour, partial_ok=True, max_tokens=1)
        branches = s.fork(2)
        branches += gen("v")
        branches.best("v", key=note("key", 1))
        s.map([1, 2], lambda branch, item: note("body of a map")())
        s.switch("c", {None: note("arm")}, default=note("arm"))
        s.loop(note("body of a loop"), limit=1)
        return s["e"]

    with mock(
        {"c": '{"a": 1}', "d": '{"a": 2}', "e": cut_off(pieces("r", "ed"), after=1)}, unscripted="echo"
    ) as scripted:
        p.run(options=options(scripted))
    assert set(seen) == {
        "pydantic validator", "__post_init__", "tool", "async tool", "validator", "async validator", "key",
        "body of a map", "arm", "body of a loop", "_missing_",
    }  # fmt: skip
    assert not [what for what, thread in seen.items() if "engine" in thread]


def test_slow_key_or_validator_holds_up_no_other_run(backend: MockExecutor) -> None:
    begun = threading.Event()
    done = threading.Event()

    def slow(value: str) -> int:
        begun.set()
        done.wait(LIMIT_S)
        return 1

    @program
    def p(s: State):
        branches = s.fork(2)
        branches += gen("v")
        return branches.best("v", key=slow).value

    running = p.start(options=options(backend))
    assert begun.wait(LIMIT_S)
    assert ask.run(options=options(backend)).value
    assert not running.done
    done.set()
    assert running.result(LIMIT_S).value


@pytest.mark.parametrize("as_what", ["key", "validator", "tool", "nested"])
def test_judge_on_the_same_backend_works_also_many_at_once(backend: MockExecutor, as_what: str) -> None:
    @program
    def grade(s: State, value: str):
        s += "grade " + value + gen("grade")
        return len(s["grade"])

    @tool
    def graded(value: str) -> int:
        return grade.run(value, options=options(backend)).value

    def judge(value: str) -> int:
        return grade.run(value, options=options(backend)).value

    @program
    def harder(s: State, value: str):
        branches = s.fork(3)
        branches += gen("w", validate=lambda v: judge(v) > 0)
        return len(branches.best("w", key=judge).value)

    def nested(value: str) -> int:
        return harder.run(value, options=options(backend)).value

    @program
    def p(s: State):
        branches = s.fork(30)
        if as_what == "tool":
            branches += gen("v")
            return [branch.call(graded, branch["v"]).value for branch in branches]
        branches += gen("v", validate=(lambda v: judge(v) > 0) if as_what == "validator" else None)
        return branches.best("v", key={"key": judge, "nested": nested}.get(as_what, len)).value

    assert p.start(options=options(backend, deadline_s=30.0)).result(30.0).value
    assert_well(backend)


def test_tools_that_wait_for_each_other_through_their_run_need_no_more_workers_than_there_are(
    backend: MockExecutor,
) -> None:
    ready = threading.Event()
    bound: list[State] = []

    @program
    def p(s: State):
        @tool
        def waits() -> str:
            ready.wait(LIMIT_S)
            return str(bound[0]["last"])

        @tool(name="last")
        def last() -> str:
            return "here"

        here, there = s.fork(2)
        bound.append(there)
        found = [here.call(waits) for _ in range(20)]
        there.call(last)
        ready.set()
        return [value.value for value in found]

    assert p.start(options=options(backend)).result(LIMIT_S).value == ["here"] * 20


# limits -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "what", ["tool", "async tool", "blocking async tool", "validator", "async validator", "key", "async key"]
)
def test_deadline_ends_whatever_user_code_does(backend: MockExecutor, what: str) -> None:
    never = threading.Event()

    @tool
    def stuck() -> int:
        never.wait(20)
        return 1

    @tool
    async def sleeps() -> int:
        await asyncio.sleep(20)
        return 1

    @tool
    async def blocks() -> int:
        never.wait(20)
        return 1

    async def later(value: Any) -> bool:
        await asyncio.sleep(20)
        return True

    def waits(value: Any) -> bool:
        return never.wait(20)

    called = later if what.startswith("async") else waits

    @program
    def p(s: State):
        if "tool" in what:
            return s.call({"tool": stuck, "async tool": sleeps}.get(what, blocks)).value
        if "validator" in what:
            s += gen("a", validate=called)
            return s["a"]
        branches = s.fork(2)
        branches += gen("v")
        return branches.best("v", key=called).value

    result = p.start(options=options(backend, deadline_s=0.2)).result(LIMIT_S, raising=False)
    never.set()
    assert isinstance(result.error, DeadlineError)
    assert_well(backend)


def test_async_tool_that_blocks_its_loop_and_is_late_holds_back_no_later_one(backend: MockExecutor) -> None:
    free = threading.Event()

    @tool(timeout_s=0.1)
    async def blocks() -> int:
        free.wait(20)
        return 1

    @tool
    async def quick() -> int:
        return 2

    @program
    def p(s: State):
        first, second = s.fork(2)
        with pytest.raises(ToolError):
            _ = first.call(blocks).value
        time.sleep(0.3)
        return second.call(quick).value

    assert p.start(options=options(backend)).result(LIMIT_S).value == 2
    free.set()


def test_run_leaves_no_thread_and_no_task_behind(backend: MockExecutor, recwarn: pytest.WarningsRecorder) -> None:
    closed: list[bool] = []

    @tool
    async def spawns(text: str) -> int:
        async def background() -> None:
            try:
                await asyncio.sleep(100)
            finally:
                closed.append(True)

        task = asyncio.get_running_loop().create_task(background())
        await asyncio.sleep(0)
        return 1 + task.done()

    @program
    def p(s: State):
        s += gen("a", validate=lambda value: True)
        return s.call(spawns, s["a"]).value

    ask.run(options=options(backend))
    before = set(threading.enumerate())
    assert p.run(options=options(backend)).value == 1
    end = time.monotonic() + LIMIT_S
    while (set(threading.enumerate()) - before or not closed) and time.monotonic() < end:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before
    assert closed == [True]
    assert not [str(warning.message) for warning in recwarn.list]


def test_system_exit_in_a_task_that_a_tool_left_behind_ends_no_other_tool(backend: MockExecutor) -> None:
    @tool
    async def leaves() -> int:
        async def exits() -> None:
            raise SystemExit(1)

        asyncio.get_running_loop().create_task(exits())
        return 1

    @tool
    async def waits() -> int:
        await asyncio.sleep(0.1)
        return 2

    @program
    def p(s: State):
        other = s.call(waits)
        return s.call(leaves).value + other.value

    assert p.start(options=options(backend)).result(LIMIT_S).value == 3


# context ----------------------------------------------------------------------------------------------------------------


def test_user_code_sees_the_context_of_its_statement_and_shows_nobody_what_it_sets(backend: MockExecutor) -> None:
    seen: dict[str, list[str]] = {}

    def note(what: str) -> None:
        seen.setdefault(what, []).append(cv.get())
        cv.set(f"set by {what}")

    class Checked(BaseModel):
        a: int

        @field_validator("a")
        @classmethod
        def check(cls, value: int) -> int:
            note("pydantic")
            return value

    @tool
    def plain() -> int:
        note("tool")
        return 1

    @tool
    async def later() -> int:
        note("async tool")
        await asyncio.sleep(0)
        return 1

    async def accepts(value: Any) -> bool:
        note("async validator")
        return True

    def valid(value: Any) -> bool:
        note("validator")
        return True

    def key(value: Any) -> int:
        note("key")
        return 1

    @program
    def p(s: State):
        cv.set("statement")
        s.call(plain)
        s.call(plain)
        s.call(later)
        s.call(later)
        s += gen("a", validate=valid) + gen("b", validate=accepts) + gen("c", type=Checked)
        branches = s.fork(3)
        branches += gen("v")
        best = branches.best("v", key=key)
        cv.set("after")
        _ = best.value, s["a"], s["b"], s["c"]
        return cv.get()

    with mock({"c": '{"a": 1}'}, unscripted="echo") as scripted:
        token = cv.set("caller")
        try:
            assert p.run(options=options(scripted)).value == "after"
        finally:
            cv.reset(token)
    assert set(seen) == {"pydantic", "tool", "async tool", "validator", "async validator", "key"}
    assert {what: set(values) for what, values in seen.items()} == {what: {"statement"} for what in seen}
    assert len(seen["key"]) == 3


@pytest.mark.parametrize("how", ["validate", "pydantic", "key", "tool", "async tool"])
def test_code_inside_use_runs_its_own_programs_on_the_backend_of_use(backend: MockExecutor, how: str) -> None:
    @program
    def verdict(s: State):
        s += "verdict" + gen("verdict")
        return s["verdict"]

    class Claim(BaseModel):
        a: int

        @field_validator("a")
        @classmethod
        def check(cls, value: int) -> int:
            assert verdict.run().value == "inner"
            return value

    def check(value: Any) -> bool:
        return verdict.run().value == "inner"

    @tool
    def asks() -> str:
        return verdict.run().value

    @tool
    async def asks_later() -> str:
        return (await verdict.arun()).value

    @program
    def p(s: State):
        with use(backend=mock({"verdict": "inner"}), deadline_s=LIMIT_S):
            if how == "validate":
                s += gen("a", validate=check)
            elif how == "pydantic":
                s += gen("a", type=Claim)
            elif how == "key":
                branches = s.fork(2)
                branches += gen("a")
                return branches.best("a", key=check).value
            else:
                return s.call(asks if how == "tool" else asks_later).value
        return s["a"]

    outer = mock({"a": '{"a": 1}'})
    value = p.start(options=options(outer)).result(LIMIT_S).value
    assert value == "inner" if "tool" in how else value
    assert not outer.calls("verdict").count
    outer.close()


def test_each_item_of_a_batch_has_a_context_of_its_own(backend: MockExecutor) -> None:
    @program
    def plain(s: State, i: int):
        before = cv.get()
        cv.set(f"item {i}")
        s += gen("a")
        return before, s["a"] is not None

    @program
    async def later(s: State, i: int):
        before = cv.get()
        cv.set(f"item {i}")
        s += gen("a")
        return before, await s.get("a") is not None

    token = cv.set("caller")
    try:
        for each in (plain, later):
            for concurrency in (1, 2):
                found = each.run_batch(range(3), options=options(backend), concurrency=concurrency)
                assert [result.value for result in found] == [("caller", True)] * 3
                found = asyncio.run(each.arun_batch(range(3), options=options(backend), concurrency=concurrency))
                assert [result.value for result in found] == [("caller", True)] * 3
            assert [result.value for _, result in each.run_batch_iter(range(2), options=options(backend))] == [
                ("caller", True)
            ] * 2
        assert cv.get() == "caller"
    finally:
        cv.reset(token)


# async functions --------------------------------------------------------------------------------------------------------


def test_async_validator_is_awaited_and_may_refuse(backend: MockExecutor) -> None:
    seen: list[str] = []

    async def refuses(value: str) -> bool:
        await asyncio.sleep(0)
        seen.append(value)
        return False

    async def raises(value: str) -> None:
        raise ValueError("too short")

    async def asserts(value: str) -> None:
        assert len(value) > 1000, "far too short"

    @program
    def p(s: State, validate: Any):
        s += gen("a", validate=validate, retries=1)

    for validate, reason in [(refuses, "returned False"), (raises, "too short"), (asserts, "far too short")]:
        error = p.start(validate, options=options(backend)).result(LIMIT_S, raising=False).error
        assert reason in str(error)
        assert type(error).__name__ == "InvalidValueError"
    assert len(seen) == 2


def test_async_key_is_awaited(backend: MockExecutor) -> None:
    class Length:
        async def __call__(self, value: str) -> int:
            await asyncio.sleep(0)
            return len(value)

    async def length(value: str, offset: int) -> int:
        return len(value) + offset

    for key in (Length(), partial(length, offset=1)):

        @program
        def p(s: State, key: Any):
            branches = s.fork(3)
            branches += gen("v")
            return branches.best("v", key=key).value

        with mock({"v": ["a", "abc", "ab"]}) as scripted:
            assert p.run(key, options=options(scripted)).value == "abc"


def test_async_body_of_a_map_works_in_an_async_program(backend: MockExecutor) -> None:
    async def body(branch: State, item: str) -> str:
        branch += item + gen("v")
        return item + await branch.get("v")

    @program
    async def p(s: State):
        return await s.map(["a", "b"], body), await s.map([], body), await s.map(["c"], partial(body))

    with mock({"v": "!"}) as scripted:
        assert p.run(options=options(scripted)).value == (["a!", "b!"], [], ["c!"])
    assert [type(node).__name__ for node in p.trace()].count("Gen") == 3


def test_async_functions_where_nobody_would_await_them_are_refused_by_name(
    backend: MockExecutor, recwarn: pytest.WarningsRecorder
) -> None:
    async def body(*_: Any) -> int:
        return 1

    def disguised(*args: Any) -> Any:
        return body(*args)

    @program
    def plain(s: State, act: Callable[[State, Any], Any], function: Any):
        s += select("k", ["a"])
        return act(s, function)

    @program
    async def later(s: State, act: Callable[[State, Any], Any], function: Any):
        s += select("k", ["a"])
        await s.get("k")
        return act(s, function)

    acts: dict[str, Callable[[State, Any], Any]] = {
        "map": lambda s, f: s.map([1], f),
        "branches": lambda s, f: s.fork(2).map(f),
        "switch": lambda s, f: s.switch("k", {"a": f}),
        "default": lambda s, f: s.switch("k", {"b": len}, default=f),
        "loop": lambda s, f: s.loop(f, limit=2),
        "append": lambda s, f: s.append(f(s)),
    }
    for name, act in acts.items():
        for function in (body, disguised):
            error = plain.run_batch([(act, function)], options=options(backend))[0].error
            assert isinstance(error, ProgramError), name
            assert "coroutine" in str(error) or "async def" in str(error), name
            if name not in ("map", "branches") or function is disguised:
                error = later.run_batch([(act, function)], options=options(backend))[0].error
                assert isinstance(error, ProgramError), name
    assert not [str(warning.message) for warning in recwarn.list]


# event loops ------------------------------------------------------------------------------------------------------------


class Client:
    """Something with a connection, which belongs to the loop that it was made on."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.connection = self.loop.create_future()
        self.loop.call_soon(self.connection.set_result, "open")

    async def get(self) -> str:
        assert asyncio.get_running_loop() is self.loop
        return str(await self.connection)


def test_async_tools_of_a_plain_program_share_one_loop_per_run(backend: MockExecutor) -> None:
    shared: dict[str, Any] = {}
    at_once: list[int] = []
    working = 0

    @tool
    async def get(i: int) -> str:
        nonlocal working
        if "client" not in shared:
            shared["client"] = Client()
            shared["gate"] = asyncio.Semaphore(1)
        async with shared["gate"]:
            working += 1
            at_once.append(working)
            await asyncio.sleep(0.01)
            working -= 1
            return str(await shared["client"].get())

    @program
    def p(s: State):
        return [call.value for call in [s.call(get, i) for i in range(3)]] + [s.call(get, 9).value]

    for _ in range(2):
        shared.clear()
        assert p.start(options=options(backend)).result(LIMIT_S).value == ["open"] * 4
    assert set(at_once) == {1}


@pytest.mark.parametrize("how", ["run", "arun", "start", "batch"])
def test_async_tools_validators_and_keys_of_an_async_program_run_on_its_loop(backend: MockExecutor, how: str) -> None:
    loops: list[bool] = []

    async def is_here(home: Any) -> None:
        loops.append(asyncio.get_running_loop() is home)
        await asyncio.sleep(0)

    @program
    async def p(s: State):
        home = asyncio.get_running_loop()
        gate = asyncio.Semaphore(1)
        client = Client()

        @tool
        async def get(i: int) -> str:
            async with gate:
                await is_here(home)
                return await client.get()

        async def valid(value: str) -> bool:
            await is_here(home)
            return await client.get() == "open"

        async def key(value: str) -> int:
            await is_here(home)
            return len(await client.get())

        calls = [s.call(get, i) for i in range(3)]
        s += gen("a", validate=valid)
        branches = s.fork(2)
        branches += gen("v")
        best = branches.best("v", key=key)
        await s.get("a")
        await best
        return [await call for call in calls]

    if how == "run":
        values = [p.run(options=options(backend)).value]
    elif how == "arun":
        values = [asyncio.run(p.arun(options=options(backend))).value]
    elif how == "start":
        values = [p.start(options=options(backend)).result(LIMIT_S).value]
    else:
        with use(options(backend)):
            values = [result.value for result in p.run_batch([()] * 3)]
    assert values == [["open"] * 3] * len(values)
    assert set(loops) == {True}


def test_cancelled_async_program_cancels_its_async_tools(backend: MockExecutor) -> None:
    ended: list[str] = []
    begun = threading.Event()

    @tool
    async def sleeps() -> int:
        begun.set()
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return 1

    @program
    async def p(s: State):
        return await s.call(sleeps)

    async def main() -> None:
        task = asyncio.create_task(p.arun(options=options(backend, deadline_s=None)))
        await asyncio.to_thread(begun.wait, LIMIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.05)
        assert ended == ["cancelled"]

    asyncio.run(main())
    assert_well(backend)
