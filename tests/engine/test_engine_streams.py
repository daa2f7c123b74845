"""Streams: any number of readers, attached at any time, sync and async; slow and vanished ones harm nobody."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sglang_dsl.errors import CancelledError, EngineError
from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.runtime.engine.streams import TextStream
from sglang_dsl.runtime.schedule.request import GenerateResult

GREEDY = SamplingSpec(temperature=0, max_tokens=64)
RESULT = GenerateResult(request_id="r", token_ids=(), text="abc", finish_reason="eos")


def gated(lab, pieces, gate_at):
    """An engine whose step number `gate_at` waits for the returned event."""
    engine = lab.engine({"p": pieces}, stepped=False)
    gate = threading.Event()
    lab.worker.during_step = lambda number: number != gate_at or gate.wait(20)
    return engine, gate


def test_stream_joined_deltas_are_the_text(lab):
    engine = lab.engine({"p": [b"ok", b"\xf0\x9f", b"\x99\x82", b"!"]}, stepped=False)
    stream = engine.stream("p", GREEDY)
    assert "".join(stream) == stream.result().text == "ok🙂!"


def test_stream_reader_attached_after_the_end_reads_everything(lab):
    engine = lab.engine(stepped=False)
    stream = engine.stream("p", GREEDY)
    stream.result()
    assert list(stream) == ["abc"]
    assert list(stream) == ["abc"]


def test_stream_reader_attached_in_the_middle_reads_from_the_beginning(lab):
    engine, gate = gated(lab, ["a", "b", "c", "d"], gate_at=2)
    stream = engine.stream("p", GREEDY)
    assert stream.read(20) in ("a", "ab")
    reader = iter(stream)
    first = next(reader)
    assert first.startswith("a")
    gate.set()
    assert first + "".join(reader) == "abcd"


def test_stream_slow_reader_gets_what_it_missed_in_one_piece_and_holds_nobody_up(lab):
    engine, gate = gated(lab, ["a", "b", "c", "d"], gate_at=1)
    slow = engine.stream("p", GREEDY)
    reader = iter(slow)
    assert next(reader) == "a"
    gate.set()
    assert engine.generate("p", GREEDY).text == "abcd"
    assert slow.result().text == "abcd"
    assert next(reader) == "bcd"
    assert list(reader) == []


def test_stream_error_is_raised_in_every_reader_after_its_text(lab):
    engine = lab.engine({"p": ["a", "b", "c"]}, stepped=False)
    lab.worker.raise_at[1] = RuntimeError("second token")
    stream = engine.stream("p", GREEDY)
    for _ in range(2):
        seen = []
        with pytest.raises(EngineError, match="second token"):
            seen.extend(iter_into(stream, seen))
        assert "".join(seen) == "a"
    with pytest.raises(EngineError):
        stream.result()


def iter_into(stream, seen):
    for delta in stream:
        seen.append(delta)
    return []


def test_stream_read_with_timeout_raises_and_can_go_on(lab):
    engine, gate = gated(lab, ["a", "b"], gate_at=0)
    stream = engine.stream("p", GREEDY)
    with pytest.raises(TimeoutError):
        stream.read(0.01)
    with pytest.raises(TimeoutError):
        stream.result(0.01)
    gate.set()
    assert stream.result().text == "ab"
    assert stream.read() == "ab"
    assert stream.read() == ""


def test_stream_left_early_cancels_and_frees(lab):
    engine, gate = gated(lab, ["t"] * 50, gate_at=2)
    with engine.stream("p", GREEDY) as stream:
        assert stream.read(20)
    gate.set()
    with pytest.raises(CancelledError):
        stream.result(20)
    assert engine.snapshot().cancelled == 1
    lab.assert_clean()


def test_stream_read_to_the_end_cancels_nothing(lab):
    engine = lab.engine(stepped=False)
    with engine.stream("p", GREEDY) as stream:
        assert "".join(stream) == "abc"
    assert engine.snapshot().cancelled == 0


def test_stream_async_readers_get_everything(lab):
    engine = lab.engine({"p": ["a", "b", "c"]}, stepped=False)

    async def read(stream):
        return "".join([delta async for delta in stream])

    async def main():
        stream = engine.stream("p", GREEDY)
        first, second = await asyncio.gather(read(stream), read(stream))
        assert (await stream.aresult()).text == first == second == await read(stream) == "abc"

    asyncio.run(main())


def test_stream_async_iterator_closed_early_cancels(lab):
    engine, gate = gated(lab, ["t"] * 50, gate_at=2)

    async def main():
        deltas = engine.astream("p", GREEDY)
        assert (await anext(deltas)).startswith("t")
        await deltas.aclose()

    asyncio.run(main())
    gate.set()
    assert engine.snapshot().cancelled == 1
    lab.assert_clean()


def test_stream_reader_whose_event_loop_is_gone_is_dropped():
    stream = TextStream(lambda: None)

    async def start_reading():
        reader = aiter(stream)
        task = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0)
        return task

    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(start_reading())
    loop.close()
    stream.text("a", [1])
    stream.text("b", [2])
    stream.done(RESULT)
    assert "".join(stream) == "ab"
    assert stream._wakers == {}
    del task


def test_stream_memory_is_one_text_however_many_readers():
    stream = TextStream(lambda: None)
    readers = [iter(stream) for _ in range(100)]
    for _ in range(10):
        stream.text("x", [0])
    stream.done(RESULT)
    assert {"".join(reader) for reader in readers} == {"x" * 10}
    assert stream._deltas == ["x"] * 10
