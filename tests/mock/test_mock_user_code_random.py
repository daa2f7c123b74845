"""Random programs whose user code misbehaves in every way: each run ends in time, no other run notices, nothing is left behind."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sglang_dsl import RunOptions, State, gen, program, tool
from sglang_dsl.errors import DslError
from sglang_dsl.runtime.backends.mock import MockExecutor, mock

DEADLINE_S = 0.3
SLACK_S = 5.0  # for a machine that is busy with something else
cv: ContextVar[str] = ContextVar("cv", default="default")


class Stranger(BaseException):
    """No Exception, and it cannot say what it is."""

    def __str__(self) -> str:
        raise Stranger


FAULTS: tuple[Callable[[], BaseException], ...] = (
    ValueError, KeyError, RuntimeError, SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, StopAsyncIteration,
    asyncio.CancelledError, TimeoutError, RecursionError, MemoryError, Stranger, AssertionError,
    lambda: DslError("of a run of the user's own"), lambda: pytest.fail.Exception("x"),
)  # fmt: skip
Deed = Literal["give", "refuse", "raise", "wait", "wait too long", "ask", "nest"]
Place = Literal["tool", "idempotent tool", "tool with a timeout", "validator", "key", "body of a map", "arm"]


@dataclass(frozen=True)
class Act:
    """One piece of user code: what it does, where it stands, and whether it is `async def`."""

    place: Place
    deed: Deed
    asynchronous: bool
    fault: int


acts = st.builds(
    Act,
    place=st.sampled_from(Place.__args__),
    deed=st.sampled_from(Deed.__args__),
    asynchronous=st.booleans(),
    fault=st.integers(0, len(FAULTS) - 1),
)


@program
def bystander(s: State, i: int):
    branches = s.fork(2)
    branches += gen("v", validate=lambda value: bool(value))
    return i, len(branches.best("v", key=len).value) > 0


@program
def judge(s: State, question: str):
    s += question + gen("verdict", validate=lambda value: cv.get() != "item")
    return len(s["verdict"])


@dataclass
class World:
    """What the user code of one example shares."""

    backend: MockExecutor
    free: threading.Event
    seen: list[str]

    def code(self, act: Act) -> Callable[..., Any]:
        """The function of an act."""

        deed = act.deed
        if deed == "wait too long" and act.place in ("body of a map", "arm"):
            deed = "wait"  # a program's own code is no node of its run: nobody ends it

        def begin(value: Any) -> None:
            self.seen.append(cv.get())
            if act.place != "arm":  # which runs in the program's own context
                cv.set("set by user code")
            assert "engine" not in threading.current_thread().name
            if deed == "raise":
                raise FAULTS[act.fault]()
            if deed == "refuse":
                raise ValueError("refused")

        def plain(*given: Any) -> Any:
            begin(given)
            if deed == "wait":
                time.sleep(0.005)
            elif deed == "wait too long":
                self.free.wait(SLACK_S)
            elif deed in ("ask", "nest"):
                return self.asked(deed)
            return 1

        async def later(*given: Any) -> Any:
            begin(given)
            if deed == "wait":
                await asyncio.sleep(0.005)
            elif deed == "wait too long":
                await asyncio.sleep(SLACK_S)
            elif deed in ("ask", "nest"):
                return await asyncio.to_thread(self.asked, deed)
            return 1

        return later if act.asynchronous else plain

    def asked(self, deed: Deed) -> int:
        """What another run says, on the same backend; nested: a run whose user code asks one."""
        options = RunOptions(backend=self.backend, deadline_s=DEADLINE_S)
        if deed == "nest":

            @program
            def outer(s: State):
                branches = s.fork(2)
                branches += gen("w")
                return branches.best("w", key=lambda value: judge.run(value, options=options).value).value

            return len(outer.run(options=options).value)
        return judge.run("fine?", options=options).value


def append(s: State, world: World, act: Act, *, in_async: bool) -> Any:
    """Use an act's code on a state. Gives what is to be read, or awaited."""
    code = world.code(act)
    if act.place.endswith("tool") or "timeout" in act.place:
        if act.asynchronous:

            async def use() -> Any:
                return await code()
        else:

            def use() -> Any:  # type: ignore[misc]
                return code()

        timeout_s = 0.05 if "timeout" in act.place else None
        made = tool(name="used", idempotent=act.place == "idempotent tool", timeout_s=timeout_s)(use)
        return s.call(made)
    if act.place == "validator":
        handle = gen(validate=code, retries=1)
        s += handle
        return s.get(handle) if in_async else s[handle]
    if act.place == "key":
        branches = s.fork(3)
        branches += gen("k")
        return branches.best("k", key=code)
    if act.place == "arm":
        return s.loop(lambda inner: code(inner), limit=1)
    return s.map([1, 2], code)


def plain_program(world: World, script: list[Act], forked: bool) -> Any:
    @program
    def p(s: State, i: int):
        token = cv.set("item")
        s += f"{i}: " + gen("first")
        for state, act in zip(s.fork(len(script)) if forked else [s] * len(script), script, strict=True):
            append(state, world, act, in_async=False)
        cv.reset(token)
        return i

    return p


def async_program(world: World, script: list[Act], forked: bool) -> Any:
    @program
    async def p(s: State, i: int):
        token = cv.set("item")
        s += f"{i}: " + gen("first")
        for state, act in zip(s.fork(len(script)) if forked else [s] * len(script), script, strict=True):
            found = append(state, world, act, in_async=True)
            if hasattr(found, "__await__"):
                await found
        cv.reset(token)
        return i

    return p


@settings(
    max_examples=40,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    script=st.lists(acts, min_size=1, max_size=4),
    asynchronous=st.booleans(),
    forked=st.booleans(),
    items=st.integers(1, 4),
    concurrency=st.integers(1, 4),
)
def test_runs_end_in_time_and_nobody_notices_whatever_user_code_does(
    script: list[Act], asynchronous: bool, forked: bool, items: int, concurrency: int
) -> None:
    threads = set(threading.enumerate())
    token = cv.set("caller")
    unraisable: list[Any] = []
    hook, sys.unraisablehook = sys.unraisablehook, unraisable.append
    loud, threading.excepthook = threading.excepthook, unraisable.append
    world = World(mock(unscripted="echo"), threading.Event(), [])
    try:
        with world.backend as backend:
            made = (async_program if asynchronous else plain_program)(world, script, forked)
            options = RunOptions(backend=backend, deadline_s=DEADLINE_S)
            others = [bystander.start(i, options=RunOptions(backend=backend)) for i in range(2)]
            began = time.monotonic()
            results = made.run_batch(range(items), options=options, concurrency=concurrency)
            took_s = time.monotonic() - began
            world.free.set()
            assert len(results) == items
            assert took_s < SLACK_S * 0.9
            assert [other.result(SLACK_S).value for other in others] == [(0, True), (1, True)]
            assert bystander.run(9, options=options).value == (9, True)
            assert set(world.seen) <= {"item"}
            assert cv.get() == "caller"
            _await(lambda: backend.engine.snapshot().live == 0)
            backend.engine.check()
            found = backend.engine.snapshot()
            assert (found.scheduler.leases, found.scheduler.waiting, found.scheduler.running) == (0, 0, 0)
            assert (found.request_faults, found.step_faults, found.sink_faults, found.leaks) == (0, 0, 0, 0)
            assert backend.engine.health().status == "ok"
        _await(lambda: not set(threading.enumerate()) - threads)
        assert not unraisable
    finally:
        cv.reset(token)
        sys.unraisablehook, threading.excepthook = hook, loud


def _await(true: Callable[[], bool]) -> None:
    end = time.monotonic() + SLACK_S
    while not true() and time.monotonic() < end:
        time.sleep(0.005)
    assert true()
