"""What is filled when first needed is filled once, or the same by everyone (cases: 508, 701); readers that vanish (703)."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint

import pytest

from sglang_dsl import gen, program, select
from sglang_dsl.errors import BackendNotFoundError, ModelLoadError
from sglang_dsl.ir import execution
from sglang_dsl.ir.execution import close_all, resolve
from sglang_dsl.ir.specs import RunOptions
from sglang_dsl.testing import mock

MANY = 16


@pytest.fixture
def busy_threads():
    """Threads take turns after every few instructions."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


class Backends:
    """A backend `cold`, whose openings and closings are counted."""

    def __init__(self) -> None:
        self.opened: list[object] = []
        self.closed: list[object] = []
        self.failures = 0
        self.asked = 0

    def open(self, argument: str) -> object:
        self.asked += 1
        time.sleep(0.05)
        if self.asked <= self.failures:
            raise ModelLoadError("the file is damaged")
        backend = mock(unscripted="echo")
        close = backend.close
        backend.close = lambda: (self.closed.append(backend), close())[1]
        self.opened.append(backend)
        return backend


@pytest.fixture
def cold(monkeypatch):
    close_all()
    backends = Backends()

    class Point(EntryPoint):
        def load(self):
            return backends.open

    point = Point(name="cold", value="x:y", group=execution.ENTRY_POINT_GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [point])
    yield backends
    close_all()


def at_once(times, act):
    """`act` on so many threads, begun together; each one's value or error."""
    barrier = threading.Barrier(times)

    def one(_):
        barrier.wait()
        try:
            return act()
        except Exception as error:  # noqa: BLE001
            return error

    with ThreadPoolExecutor(times) as pool:
        return list(pool.map(one, range(times)))


@program
def small(s):
    s += "Q"
    s += gen("a", max_tokens=2)
    for branch in s.fork(2):
        branch += select("b", [" x", " y"])
    return s["a"]


def test_a_cold_backend_is_opened_once_by_all_programs_of_a_batch(cold):
    results = small.run_batch([{}] * MANY, concurrency=MANY, options=RunOptions(backend="cold"))
    assert len({result.value for result in results}) == 1
    assert len(cold.opened) == 1
    close_all()
    close_all()
    assert cold.closed == cold.opened


def test_a_cold_backend_is_opened_once_per_name_whoever_asks(cold):
    found = at_once(MANY, lambda: resolve("cold:m"))
    assert len(set(map(id, found))) == len(cold.opened) == 1
    assert resolve("cold:other") is not found[0]


def test_a_failed_opening_is_told_to_all_who_waited_and_not_remembered(cold):
    cold.failures = 1
    found = at_once(MANY, lambda: resolve("cold"))
    assert {type(each) for each in found} <= {ModelLoadError, type(resolve("cold"))}
    assert sum(isinstance(each, ModelLoadError) for each in found) >= 1
    assert len(cold.opened) == 1


def test_a_backend_that_opens_itself_is_refused_and_hangs_nobody(cold, monkeypatch):
    monkeypatch.setattr(cold, "open", lambda argument: resolve("cold"))
    with pytest.raises(BackendNotFoundError, match="asks for itself"):
        resolve("cold")


def test_an_interrupted_opening_leaves_it_to_the_next(cold, monkeypatch):
    def interrupted(argument):
        raise KeyboardInterrupt

    real = cold.open
    monkeypatch.setattr(cold, "open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        resolve("cold")
    monkeypatch.setattr(cold, "open", real)
    assert resolve("cold") is resolve("cold")


def test_all_executors_are_closed_though_one_fails(cold):
    first, second = resolve("cold:1"), resolve("cold:2")

    def fail():
        raise ValueError("no")

    first.close = fail
    with pytest.raises(ValueError, match="no"):
        close_all()
    assert second in cold.closed


@pytest.mark.usefixtures("busy_threads")
def test_first_concurrent_runs_of_a_program_agree():
    """A program whose call sites nobody has read yet, run by 32 at once, 60 times."""
    source = (
        "from sglang_dsl import gen, program, select\n"
        "@program\n"
        "def fresh(s, i):\n"
        "    s += 'Q'\n"
        "    for branch in s.fork(2):\n"
        "        branch += gen('a', max_tokens=2)\n"
        "    s += select('b', [' x', ' y'])\n"
        "    return i\n"
    )
    for repeat in range(60):
        space: dict[str, object] = {}
        exec(compile(source, f"<fresh {repeat}>", "exec"), space)
        with mock(unscripted="echo") as backend:
            batch = [{"i": i} for i in range(32)]
            results = space["fresh"].run_batch(batch, concurrency=32, options=RunOptions(backend=backend))
            assert [r.value for r in results] == list(range(32)), [r.error for r in results if r.error]
            assert len({tuple(node.id for node in r.graph) for r in results}) == 1


@program
def slow(s, go):
    s += "begin "
    go.wait(10)
    s += gen("a", max_tokens=3)
    return


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("of", [None, "a"])
def test_a_reader_whose_event_loop_closes_leaves_the_others_alone(of, caplog, capsys):
    go = threading.Event()
    with mock({"a": "one two three"}) as backend:
        running = slow.start(go, options=RunOptions(backend=backend))
        read: list[str] = []
        other = threading.Thread(target=lambda: read.extend(running.stream(of)), daemon=True)
        other.start()
        if of is None:
            loop = asyncio.new_event_loop()
            reader = running.stream().__aiter__()
            assert loop.run_until_complete(anext(reader)) == "begin "
            loop.close()
        else:
            assert gone_while_waiting(running.stream(of)) is None
        go.set()
        assert running.result(10).value is None
        other.join(10)
        assert not other.is_alive()
    assert "".join(read) == ("begin one two three" if of is None else "one two three")
    assert not caplog.records
    assert capsys.readouterr().err == ""


def gone_while_waiting(stream):
    """A coroutine begins to wait for the first piece; its event loop is closed meanwhile."""
    loop = asyncio.new_event_loop()
    reader = stream.__aiter__()
    task = loop.create_task(anext(reader))
    loop.call_later(0.05, loop.stop)
    loop.run_forever()
    task._log_destroy_pending = False  # asyncio's own message about the task is not ours to keep
    loop.close()


@pytest.mark.usefixtures("busy_threads")
def test_many_readers_come_and_go_and_each_reads_all_it_stays_for():
    go = threading.Event()
    with mock({"a": "one two three"}) as backend:
        running = slow.start(go, options=RunOptions(backend=backend))

        def read(number):
            pieces = []
            for piece in running.stream():
                pieces.append(piece)
                if number % 3 == 0:
                    break
            return "".join(pieces)

        with ThreadPoolExecutor(12) as pool:
            reading = [pool.submit(read, number) for number in range(12)]
            time.sleep(0.05)
            go.set()
            texts = [future.result(10) for future in reading]
    assert {text for number, text in enumerate(texts) if number % 3} == {"begin one two three"}
    assert running.session.recorder._followers == ()
