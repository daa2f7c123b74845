"""Receivers of a request's output: a future, and a stream that any number of readers follow.

    loop  --text(delta)-->  TextStream: every delta once, kept until the stream is dropped
                              ^          ^
                            reader     reader       each with a place of its own

The loop never waits for a reader: what a slow one has not taken yet waits in the stream and reaches it in one piece, so
memory is bounded by the text itself. A reader that vanishes leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Generic, Self, TypeVar

from ...errors import EngineClosedError
from ...ir.execution import on_loop
from ..schedule.request import GenerateResult, Result, ScoreResult

R = TypeVar("R", GenerateResult, ScoreResult)


class PendingResult(Generic[R]):
    """A Sink that only waits for the end. `future` resolves to the result or raises why there is none."""

    def __init__(self, kind: type[R]) -> None:
        self._kind: type[R] = kind
        self.future: Future[R] = Future()
        self.future.set_running_or_notify_cancel()  # readers that give up must not cancel it for others

    def started(self) -> None:
        """Nothing to do."""

    def text(self, delta: str, token_ids: Sequence[int]) -> None:
        """The result will hold it."""

    def done(self, result: Result | Exception) -> None:
        """Resolve the future."""
        if isinstance(result, self._kind):
            self.future.set_result(result)
        else:
            self.future.set_exception(result if isinstance(result, Exception) else TypeError(f"got {type(result)}"))


class TextStream:
    """The text of one request, while it is generated and afterwards. Thread-safe.

        with engine.stream("Once upon a time") as stream:
            for delta in stream:
                print(delta, end="", flush=True)
        print(stream.result().finish_reason)

    Iterating (`for`, `async for`) always starts at the beginning; the deltas joined are the result's text. An error of the
    request is raised in every reader, after the text that came before it. Leaving the `with` block cancels what still runs.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._changed = threading.Condition()
        self._deltas: list[str] = []
        self._wakers: dict[object, Callable[[], object]] = {}
        self._pending = PendingResult(GenerateResult)
        self._place = 0
        self._pid = os.getpid()

    def started(self) -> None:
        """Sink: nothing to show yet."""

    def text(self, delta: str, token_ids: Sequence[int]) -> None:
        """Sink: more text."""
        with self._changed:
            self._deltas.append(delta)
            self._wake()

    def done(self, result: Result | Exception) -> None:
        """Sink: the end."""
        with self._changed:
            self._pending.done(result)
            self._wake()

    @property
    def finished(self) -> bool:
        """Whether the request has ended; all its text can then be read without waiting."""
        return self._pending.future.done()

    def result(self, timeout_s: float | None = None) -> GenerateResult:
        """Wait for the end. Raises the request's error, or TimeoutError (the request goes on)."""
        self._check_process()
        return self._pending.future.result(timeout_s)

    async def aresult(self) -> GenerateResult:
        """`result`, for coroutines."""
        self._check_process()
        return await on_loop(self._pending.future)

    def read(self, timeout_s: float | None = None) -> str:
        """All text since the last `read`, waiting for some if there is none; "" once at the end.

        Raises:
            TimeoutError: nothing came in time; reading again is possible.
            DslError: the request failed, after its last text was read.
        """
        delta, self._place = self._next(self._place, timeout_s)
        return delta

    def cancel(self) -> None:
        """End the request where it stands; readers get its text so far, then CancelledError. Harmless after the end."""
        if not self.finished:
            self._cancel()

    def __iter__(self) -> Iterator[str]:
        place = 0
        while True:
            delta, place = self._next(place, None)
            if not delta:
                return
            yield delta

    async def __aiter__(self) -> AsyncIterator[str]:
        self._check_process()
        changed, place = asyncio.Event(), 0
        key = self._watch(asyncio.get_running_loop(), changed)
        try:
            while True:
                changed.clear()
                delta, place, ended = self._take(place)
                if delta:
                    yield delta
                elif ended:
                    self._pending.future.result()
                    return
                else:
                    await changed.wait()
        finally:
            with self._changed:
                self._wakers.pop(key, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.cancel()

    def _next(self, place: int, timeout_s: float | None) -> tuple[str, int]:
        self._check_process()
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._deltas) > place or self.finished, timeout_s):
                raise TimeoutError(f"no text within {timeout_s} s")
            delta, place, _ = self._take(place)
        if not delta:
            self._pending.future.result()
        return delta, place

    def _check_process(self) -> None:
        if not self.finished and os.getpid() != self._pid:
            raise EngineClosedError(
                f"this stream is written in process {self._pid}; a forked process would wait for ever",
                hint="read it where it was made",
            )

    def _take(self, place: int) -> tuple[str, int, bool]:
        """Text from delta `place` on, the place after it, and whether no more will come."""
        with self._changed:
            return "".join(self._deltas[place:]), len(self._deltas), self.finished

    def _watch(self, loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> object:
        key = object()
        with self._changed:
            self._wakers[key] = partial(loop.call_soon_threadsafe, changed.set)
        return key

    def _wake(self) -> None:
        self._changed.notify_all()
        for key, waker in tuple(self._wakers.items()):
            try:
                waker()
            except RuntimeError:  # its event loop was closed: the reader is gone
                self._wakers.pop(key, None)
