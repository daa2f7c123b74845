"""Which backend a run takes: its options, the innermost `use`, the process's default, the environment (cases: 405)."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from sglang_dsl import RunOptions, State, gen, program, set_default_backend, tool, use
from sglang_dsl import sglang as sgl
from sglang_dsl.errors import BackendNotFoundError
from sglang_dsl.ir import execution
from sglang_dsl.testing import mock


@program
def who(s: State) -> str:
    s += "Who? " + gen("who")
    return s["who"]


def answering(name: str):
    return mock({"who": [name]}, policy="last")


def in_thread(function: Callable[[], str]) -> str:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def in_pool(function: Callable[[], str]) -> str:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def ask() -> str:
    return who.run().value


@pytest.fixture(autouse=True)
def no_default_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("SGLANG_DSL_BACKEND", raising=False)
    yield
    assert execution._default is None


@pytest.mark.parametrize("elsewhere", [in_thread, in_pool], ids=["thread", "pool"])
def test_default_backend_answers_in_threads_of_the_users_own(elsewhere) -> None:
    with set_default_backend(answering("default")):
        assert elsewhere(ask) == "default"
        assert ask() == "default"


@pytest.mark.parametrize("elsewhere", [in_thread, in_pool], ids=["thread", "pool"])
def test_use_reaches_a_thread_of_the_users_own_in_a_copy_of_the_context_only(elsewhere) -> None:
    with set_default_backend(answering("default")), use(backend=answering("used")):
        context = contextvars.copy_context()
        assert elsewhere(lambda: context.run(ask)) == "used"
        assert elsewhere(ask) == "default"


def test_use_reaches_whatever_the_library_or_asyncio_starts() -> None:
    @tool
    def inside() -> str:
        return ask()

    @program
    def outer(s: State) -> list[str]:
        def body(branch: State, _: int) -> str:
            return branch.call(inside).value + ask()

        return s.map([1, 2], body)

    async def tasks() -> list[str]:
        return [(await asyncio.create_task(who.arun())).value, await asyncio.to_thread(ask)]

    with set_default_backend(answering("default")), use(backend=answering("used")):
        assert outer.run().value == ["usedused"] * 2
        assert who.start().result().value == "used"
        assert [r.value for r in who.run_batch([(), ()])] == ["used"] * 2
        assert "".join(who.stream().of("who")) == "used"
        assert asyncio.run(tasks()) == ["used"] * 2


def test_options_win_over_use_and_use_over_the_default_and_that_over_the_environment(monkeypatch) -> None:
    opened = answering("environment")
    monkeypatch.setattr(execution, "_factory", lambda name: lambda argument: opened)
    monkeypatch.setenv("SGLANG_DSL_BACKEND", "mock:of-the-environment")
    try:
        assert ask() == "environment"
        with set_default_backend(answering("default")):
            assert ask() == "default"
            with use(backend=answering("used")):
                assert ask() == "used"
                assert who.run(options=RunOptions(backend=answering("option"))).value == "option"
            with use(seed=7):  # says nothing of a backend
                assert ask() == "default"
        assert ask() == "environment"
    finally:
        del execution._opened["mock:of-the-environment"]


def test_default_backend_without_a_block_holds_until_it_is_set_again() -> None:
    first = set_default_backend(answering("first"))
    try:
        assert ask() == "first"
        second = set_default_backend(answering("second"))
        assert second.previous is first.backend
        assert ask() == "second"
    finally:
        set_default_backend(None)
    assert execution._default is None


def test_default_backend_of_an_inner_block_gives_way_to_the_outer_one_also_after_an_error() -> None:
    with set_default_backend(answering("outer")):
        with suppress(ZeroDivisionError), set_default_backend(answering("inner")) as inner:
            assert inner is execution._default
            raise ZeroDivisionError
        assert ask() == "outer"


def test_a_run_that_has_begun_keeps_its_backend() -> None:
    began, go_on = threading.Event(), threading.Event()

    @program
    def slow(s: State) -> str:
        began.set()
        go_on.wait(10)
        s += "Who? " + gen("who")
        return s["who"]

    with set_default_backend(answering("early")):
        running = slow.start()
        assert began.wait(10)
    with set_default_backend(answering("late")):
        go_on.set()
        assert running.result(timeout_s=10).value == "early"


def test_default_backend_is_refused_where_it_is_set() -> None:
    with pytest.raises(BackendNotFoundError, match="no backend is called 'lokal'"):
        set_default_backend("lokal:smollm2")
    with pytest.raises(BackendNotFoundError, match="3 is not a backend"):
        set_default_backend(3)  # type: ignore[arg-type]
    with pytest.raises(BackendNotFoundError, match="is not a backend"):
        set_default_backend(RunOptions())  # type: ignore[arg-type]


def test_default_backend_by_name_is_opened_by_the_first_run_only(monkeypatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(execution, "_factory", lambda name: lambda argument: made.append(name) or answering(argument))
    try:
        with set_default_backend("mock:named"):
            assert made == []
            with ThreadPoolExecutor(8) as pool:
                assert {f.result() for f in [pool.submit(ask) for _ in range(16)]} == {"named"}
            assert made == ["mock:named"]
    finally:
        execution._opened.pop("mock:named", None)


def test_default_backend_set_by_many_threads_at_once_is_one_of_theirs() -> None:
    backends = [answering(str(i)) for i in range(8)]

    def busy(i: int) -> None:
        for _ in range(50):
            with set_default_backend(backends[i]):
                assert ask() in {str(n) for n in range(8)}

    with set_default_backend(backends[0]), ThreadPoolExecutor(8) as pool:
        list(pool.map(busy, range(8)))
    set_default_backend(None)  # blocks that overlap restore in the order in which they end


def test_default_backend_is_the_same_in_sglangs_style() -> None:
    @sgl.function
    def qa(s):
        s += "Who? " + sgl.gen("who")

    assert sgl.set_default_backend is set_default_backend
    with set_default_backend(answering("default")):
        assert in_thread(lambda: qa.run()["who"]) == "default"
        assert ask() == "default"


def test_explain_and_batches_take_the_default_backend() -> None:
    with set_default_backend(answering("default")):
        assert "on mock" in str(in_thread(lambda: str(who.explain())))
        assert in_thread(lambda: who.run_batch([()])[0].value) == "default"
