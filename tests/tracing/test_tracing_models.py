"""A trace asks no model, whatever the body does (cases: 502)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from trial_runs import breaks

import sglang_dsl.sglang as sgl
from sglang_dsl import RunOptions, State, execute, gen, program, use
from sglang_dsl.errors import ExportError
from sglang_dsl.ir.execution import RunSpec
from sglang_dsl.runtime.backends.mock import mock


@program
def inner(s: State, x: str = "fixed"):
    s += x + gen("d")
    return s["d"]


@sgl.function
def sgl_inner(s, x="fixed"):
    s += x + sgl.gen("d")


def _thread(work: Any) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def _pool(work: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def _swallowed(x: Any) -> None:
    with contextlib.suppress(BaseException):  # what hostile code does
        inner.run(x)


WAYS = {
    "run": lambda x: inner.run(x).value,
    "start": lambda x: inner.start(x).result(),
    "batch": lambda x: inner.run_batch([x]),
    "batch iter": lambda x: next(iter(inner.run_batch_iter([x]))),
    "stream": lambda x: list(inner.stream(x)),
    "arun": lambda x: asyncio.run(inner.arun(x)),
    "arun_batch": lambda x: asyncio.run(inner.arun_batch([x])),
    "sgl run": lambda x: sgl_inner.run(x=x)["d"],
    "sgl stream": lambda x: list(sgl_inner.run(x=x, stream=True).text_iter()),
    "sgl batch": lambda x: sgl_inner.run_batch([{"x": x}]),
    "graph": lambda x: execute(inner.trace("x"), OTHER),
    "opened": lambda x: OTHER.open(RunSpec(program="p")),
    "engine": lambda x: OTHER.engine.generate("x"),
    "thread": lambda x: _thread(lambda: inner.run(x)),
    "pool": lambda x: _pool(lambda: inner.run(x)),
    "swallowed": _swallowed,
}
OTHER = mock(unscripted="echo")


@pytest.mark.filterwarnings("ignore")  # an event loop that may not be made leaves half of itself behind
@pytest.mark.parametrize("way", sorted(WAYS))
@pytest.mark.parametrize("traced_argument", [False, True])
@pytest.mark.parametrize("frontend", ["native", "sglang"])
def test_body_that_runs_something_is_a_break_and_no_model_is_called(way, traced_argument, frontend) -> None:
    ask = WAYS[way]
    backend = mock(unscripted="echo")

    if frontend == "native":

        @program
        def p(s: State):
            s += "a" + gen("first")
            ask(s["first"] if traced_argument else "fixed")
            s += gen("never")

        trace, export = p.trace, p.export
    else:

        @sgl.function
        def f(s):
            s += "a" + sgl.gen("first")
            ask(s["first"] if traced_argument else "fixed")
            s += sgl.gen("never")

        trace, export = f.trace, f._program.export

    before = len(OTHER.calls())
    with use(backend=backend):
        graph = trace()
        (end,) = breaks(graph)
        assert end.origin is not None
        assert end.origin.file == __file__
        assert any(word in end.reason for word in ("a trace asks no model", "a thread", "used a socket"))
        assert "never" not in [getattr(node, "name", None) for node in graph]
        with pytest.raises(ExportError):
            export()
    assert len(backend.calls()) == 0
    assert len(OTHER.calls()) == before


def test_pure_and_explain_call_no_model_but_the_runs_own() -> None:
    backend = mock(unscripted="echo")

    @program(pure=True)
    def p(s: State):
        s += "a" + gen("first")
        s += inner.run("x").value

    with use(backend=backend):
        p.explain()
        assert len(backend.calls()) == 0
        p.run()
    assert sorted(call.name or "" for call in backend.calls()) == ["d", "first"]


def test_an_async_body_that_runs_something_is_a_break() -> None:
    backend = mock(unscripted="echo")

    @program
    async def p(s: State):
        s += gen("first")
        await inner.arun("x")
        s += gen("never")

    with use(RunOptions(backend=backend)):
        (end,) = breaks(p.trace())
    assert "'inner'" in end.reason
    assert len(backend.calls()) == 0


def test_after_a_trace_everything_runs_again() -> None:
    backend = mock(unscripted="echo")

    @program
    def p(s: State):
        s += inner.run("x").value

    with use(backend=backend):
        p.trace()
        assert p.run().error is None
    assert len(backend.calls()) == 1


def test_a_pool_that_has_its_thread_already_is_no_way_around() -> None:
    backend = mock(unscripted="echo")
    with ThreadPoolExecutor(1) as pool, use(backend=backend):
        pool.submit(int).result()

        @program
        def p(s: State):
            s += gen("first")
            pool.submit(inner.run, "x", options=RunOptions(backend=backend)).result()

        (end,) = breaks(p.trace())
    assert "gave work to a thread" in end.reason
    assert len(backend.calls()) == 0
