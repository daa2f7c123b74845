"""Ctrl-C: runs and batches end within a second and keep what finished."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from contextlib import contextmanager

import pytest

from sglang_dsl import Interrupted, RunOptions, State, gen, program
from sglang_dsl.testing import mock


def on(backend) -> RunOptions:
    return RunOptions(backend=backend)


@contextmanager
def interrupted_soon():
    """Ctrl-C in a tenth of a second. Without the collector: Python drops an interrupt that arrives in a callback of its."""
    timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    gc.collect()
    gc.disable()
    try:
        timer.start()
        yield time.monotonic()
    finally:
        timer.join()  # also where the test fails: the interrupt is this test's, and nobody else's
        gc.enable()


def test_ctrl_c_while_waiting_ends_the_run_and_keeps_what_finished(fake):
    @program
    def p(s: State):
        s += gen("a") + gen("b")
        return s["b"]

    with interrupted_soon() as began, pytest.raises(Interrupted) as caught:
        p.run(options=on(fake(held=["b"])))
    assert time.monotonic() - began < 1
    (result,) = caught.value.results
    assert result.finished == {"a": "a1"}


def test_ctrl_c_inside_a_map_ends_the_run(fake):
    @program
    def p(s: State):
        def work(branch: State):
            branch += gen("quick" if branch.index else "slow")
            return branch["quick" if branch.index else "slow"]

        return s.fork(50).map(work)

    backend = fake(held=["slow"])
    with interrupted_soon() as began, pytest.raises(KeyboardInterrupt):
        p.run(options=on(backend))
    assert time.monotonic() - began < 1
    assert backend.runs[0].cancelled


def test_ctrl_c_during_a_batch_keeps_what_finished(fake):
    @program
    def p(s: State, name: str):
        s += gen(name)
        return s[name]

    with interrupted_soon() as began, pytest.raises(Interrupted) as caught:
        p.run_batch(["quick", "slow", "quick", "slow"], options=on(fake(held=["slow"])), concurrency=2)
    assert time.monotonic() - began < 1
    assert len(caught.value.results) == 4
    assert caught.value.results[0].value.startswith("quick")


def test_ctrl_c_in_an_async_program_keeps_what_finished(fake):
    @program
    async def p(s: State):
        s += gen("a") + gen("b")
        return await s.get("b")

    with interrupted_soon() as began, pytest.raises(Interrupted) as caught:
        p.run(options=on(fake(held=["b"])))
    assert time.monotonic() - began < 1
    (result,) = caught.value.results
    assert result.finished == {"a": "a1"}


def test_batch_interrupted_keeps_what_finished(fake, monkeypatch):
    backend = fake(held=["slow"])

    @program
    def p(s: State, name: str):
        s += gen(name)
        return s[name]

    batch = p.run_batch_iter(["quick", "slow", "slow"], options=on(backend), concurrency=2)
    assert next(batch)[0] == 0
    began = time.monotonic()
    with pytest.raises(Interrupted) as caught:
        batch.throw(KeyboardInterrupt())
    assert time.monotonic() - began < 1
    assert [r.error is None for r in caught.value.results] == [True, False, False]


def test_batch_interrupted_begins_nothing_more_and_does_not_wait_for_foreign_code(fake):
    began, leave = [], threading.Event()

    @program
    def p(s: State, name: str):
        began.append(name)
        s += gen("quick")
        if name == "busy":
            leave.wait(30)
        return s["quick"]

    batch = p.run_batch_iter(["quick", "busy", *map(str, range(50))], options=on(fake()), concurrency=1)
    next(batch)
    began_s = time.monotonic()
    with pytest.raises(Interrupted) as caught:
        batch.throw(KeyboardInterrupt())
    leave.set()
    assert time.monotonic() - began_s < 1
    assert caught.value.results[0].value == "quick1"
    assert caught.value.results[2:] == [None] * 50
    assert set(began) <= {"quick", "busy"}


@pytest.mark.parametrize("branches", [1, 3])
def test_ctrl_c_while_calls_are_handed_over_is_not_swallowed_and_nobody_waits_for_them(branches):
    pressed = threading.Event()

    def slow(call):  # scripts are asked on the thread that submits
        if not pressed.is_set():
            pressed.set()
            signal.raise_signal(signal.SIGINT)
        return "x"

    @program
    def p(s: State):
        each = s.fork(branches)
        each += gen("a")
        return list(each.join("a"))

    with mock(slow) as backend:
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            p.run(options=on(backend))
        assert time.monotonic() - began < 2
        assert p.run(options=on(backend)).value == ["x"] * branches
        snapshot = backend.engine.snapshot()
        assert (snapshot.live, snapshot.leaks) == (0, 0)
        backend.engine.check()
