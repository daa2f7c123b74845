"""Opening, closing, forking, dropping: no thread left, no one left waiting."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from pathlib import Path

import pytest

from sglang_dsl.errors import CancelledError, EngineClosedError
from sglang_dsl.ir.specs import SamplingSpec

GREEDY = SamplingSpec(temperature=0)


@pytest.fixture
def engine_threads():
    """Counts the threads of engines opened since: other tests leave engines that live as long as the process."""
    others = set(all_engine_threads())
    return lambda: [thread for thread in all_engine_threads() if thread not in others]


def all_engine_threads():
    return [thread for thread in threading.enumerate() if thread.name == "sglang-dsl-engine"]


def test_lifetime_thread_starts_with_the_first_request_and_ends_with_close(lab, engine_threads):
    before = len(engine_threads())
    engine = lab.engine(stepped=False)
    assert len(engine_threads()) == before
    assert engine.generate("p", GREEDY).text == "abc"
    assert len(engine_threads()) == before + 1
    assert lab.worker.on_thread == {"sglang-dsl-engine"}
    engine.close()
    assert len(engine_threads()) == before
    assert lab.worker.closed == 1


def test_lifetime_close_with_work_in_flight_ends_every_request_once(lab, engine_threads):
    engine = lab.engine(default=["t"] * 30, stepped=False)
    started, gate = threading.Event(), threading.Event()
    lab.worker.during_step = lambda number: number != 3 or (started.set(), gate.wait(20))
    recorders = lab.submit(*(lab.request(f"r{i}") for i in range(5)))
    assert started.wait(20)
    lab.submit(lab.request("late"))
    closer = threading.Thread(target=engine.close)
    closer.start()
    gate.set()
    closer.join(20)
    assert all(isinstance(r.end, EngineClosedError) for r in recorders)
    assert all(len(r.ends) == 1 and not r.late for r in recorders)
    assert engine_threads() == []
    engine._loop.check()
    assert engine.snapshot().live == 0
    assert engine.health().status == "closed"


def test_lifetime_closed_engine_refuses_and_forgives(lab):
    engine = lab.engine(stepped=False)
    engine.close()
    engine.close()
    with pytest.raises(EngineClosedError):
        engine.generate("p", GREEDY)
    with pytest.raises(EngineClosedError):
        engine.flush()
    engine.cancel(["x"])
    engine.release(1)
    assert lab.worker.closed == 1


def test_lifetime_close_on_the_loops_own_thread_does_not_wait_for_itself(lab, engine_threads):
    engine = lab.engine(stepped=False)
    lab.worker.during_step = lambda number: engine.close()
    [recorder] = lab.submit(lab.request("r"))
    assert isinstance(recorder.end, EngineClosedError)
    for thread in engine_threads():
        thread.join(20)
    assert lab.worker.closed == 1


def test_lifetime_dropped_engine_ends_its_thread(lab, engine_threads):
    engine = lab.engine(stepped=False)
    engine.generate("p", GREEDY)
    alive = weakref.ref(engine)
    [thread] = engine_threads()
    lab.engines.clear()
    del engine
    gc.collect()
    thread.join(20)
    assert alive() is None
    assert not thread.is_alive()
    assert lab.worker.closed == 1


def test_lifetime_interrupted_wait_cancels_the_request(lab):
    engine = lab.engine(default=["t"] * 200, stepped=False)
    gate = threading.Event()
    main = threading.get_ident()

    def interrupt(number):
        if number == 2:
            signal.pthread_kill(main, signal.SIGINT)
            gate.wait(20)

    lab.worker.during_step = interrupt
    with pytest.raises(KeyboardInterrupt):
        engine.generate("p", SamplingSpec(temperature=0, max_tokens=150))
    gate.set()
    assert engine.snapshot().cancelled == 1
    assert engine.generate("q", SamplingSpec(temperature=0, max_tokens=1)).text == "t"
    lab.assert_clean()


def test_lifetime_interrupt_while_the_thread_starts_leaves_one_loop(lab, engine_threads, monkeypatch):
    engine = lab.engine(stepped=False)
    start = threading.Thread.start

    def interrupted(thread):
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.generate("p", GREEDY)
    monkeypatch.undo()
    assert engine.generate("p", GREEDY).text == "abc"
    assert len(engine_threads()) == 1
    lab.assert_clean()


def test_lifetime_cancelled_task_cancels_its_request(lab):
    engine = lab.engine(default=["t"] * 200, stepped=False)
    gate = threading.Event()
    lab.worker.during_step = lambda number: number != 2 or gate.wait(20)

    async def main():
        task = asyncio.create_task(engine.agenerate("p", SamplingSpec(temperature=0, max_tokens=150)))
        while len(lab.worker.steps) < 3:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    gate.set()
    assert engine.snapshot().cancelled == 1
    lab.assert_clean()


def test_lifetime_many_event_loops_share_an_engine(lab):
    engine = lab.engine(stepped=False)
    for _ in range(3):  # as in a notebook, where cells bring loops of their own
        assert asyncio.run(engine.agenerate("p", GREEDY)).text == "abc"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_lifetime_forked_child_is_told_and_the_parent_goes_on(lab):
    engine = lab.engine(stepped=False)
    engine.generate("p", GREEDY)
    gate = threading.Event()
    lab.worker.during_step = lambda number: gate.wait(20)
    stream = engine.stream("unfinished", GREEDY)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def child():
        try:
            engine.generate("p", GREEDY)
        except EngineClosedError as error:
            answers.put((str(error), engine.health().status))
        try:
            stream.result()
        except EngineClosedError as error:
            answers.put(str(error))
        engine.cancel(["x"])
        engine.close()

    process = context.Process(target=child)
    process.start()
    process.join(20)
    assert process.exitcode == 0
    message, status = answers.get()
    assert "for ever" in answers.get()
    gate.set()
    assert f"process {os.getpid()}" in message
    assert status == "closed"
    assert engine.generate("p", GREEDY).text == "abc"


def test_lifetime_interpreter_exits_with_work_in_flight():
    code = """
        from conftest import Lab
        lab = Lab()
        engine = lab.engine(default=["t"] * 500, stepped=False)
        stream = engine.stream("p")
        print(stream.read(20)[:1])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "t", "")


def test_lifetime_stream_outlives_its_engines_name(lab):
    stream = lab.engine(stepped=False).stream("p", GREEDY)
    lab.engines.clear()
    gc.collect()
    assert stream.result(20).text == "abc"


def test_lifetime_cancelled_error_reaches_the_waiter(lab):
    engine = lab.engine(default=["t"] * 200, stepped=False)
    lab.worker.during_step = lambda number: engine.cancel(["native-1"]) if number == 2 else None
    with pytest.raises(CancelledError):
        engine.generate("p", SamplingSpec(temperature=0, max_tokens=150))
