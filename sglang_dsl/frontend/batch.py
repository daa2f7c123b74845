"""Many runs of one program: bounded concurrency, one Result per item, in order or as they finish."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from queue import SimpleQueue
from typing import Any, TypeVar

from ..errors import SpecError
from .result import Interrupted, Result
from .session import Session

R = TypeVar("R")
BATCH_CONCURRENCY = 32
Opened = Callable[[], Session[R]]
Advance = Callable[[], None]


def run_all(
    opens: Sequence[Opened[R]], *, concurrency: int, progress: bool, asynchronous: bool, label: str
) -> Iterator[tuple[int, Result[R]]]:
    """(index, Result) as the runs finish.

    Raises:
        Interrupted: Ctrl-C; all runs were cancelled, and it holds what had finished by then.
    """
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise SpecError(f"concurrency={concurrency!r} is not a whole number above 0", hint="concurrency=32")
    pool = _Pool(opens, concurrency, asynchronous)
    return _run_all(opens, pool, _bar(label, len(opens)) if progress else _no_bar())


def _run_all(
    opens: Sequence[Opened[R]], pool: _Pool, bar: AbstractContextManager[Advance]
) -> Iterator[tuple[int, Result[R]]]:
    pool.begin()
    finished: list[tuple[int, Result[R]]] = []
    with bar as advance:
        try:
            for _ in opens:
                item = pool.next()
                finished.append(item)
                advance()
                yield item
        except KeyboardInterrupt as interrupt:
            pool.stop("interrupted")
            finished.extend(pool.next() for _ in range(len(opens) - len(finished)))
            raise Interrupted([result for _, result in sorted(finished, key=lambda item: item[0])]) from interrupt
        except GeneratorExit:
            pool.stop("the batch was left")
            raise


class _Pool:
    """At most `concurrency` threads (one, for async programs) that take runs in order. Owner: one batch."""

    def __init__(self, opens: Sequence[Opened[Any]], concurrency: int, asynchronous: bool) -> None:
        self._waiting: Iterator[tuple[int, Opened[Any]]] = iter(enumerate(opens))
        self._lock = threading.Lock()
        self._live: dict[int, Session[Any]] = {}
        self._stopped = ""
        self._done: SimpleQueue[tuple[int, Result[Any] | BaseException]] = SimpleQueue()
        self._width = min(concurrency, len(opens))
        self._work_by = self._work_async if asynchronous else self._work
        threads = min(self._width, 1) if asynchronous else self._width
        self._contexts = [contextvars.copy_context() for _ in range(threads)]  # of the caller, not of the first reader

    def begin(self) -> None:
        """Start the threads."""
        for context in self._contexts:
            threading.Thread(target=context.run, args=(self._work_by,), daemon=True).start()

    def next(self) -> tuple[int, Result[Any]]:
        """The next run to finish."""
        index, result = self._done.get()
        if isinstance(result, BaseException):
            raise result
        return index, result

    def stop(self, reason: str) -> None:
        """Cancel what is under way and, as soon as it begins, what has not begun."""
        with self._lock:
            self._stopped = reason
            live = list(self._live.values())
        for session in live:
            session.cancel(reason)

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            index, session = taken
            self._finish(index, session.execute())

    def _work_async(self) -> None:
        import asyncio

        async def worker() -> None:
            while (taken := self._take()) is not None:
                index, session = taken
                self._finish(index, await session.aexecute())

        async def workers() -> None:
            await asyncio.gather(*(worker() for _ in range(self._width)))

        asyncio.run(workers())

    def _take(self) -> tuple[int, Session[Any]] | None:
        while True:
            with self._lock:
                following = next(self._waiting, None)
            if following is None:
                return None
            index, opened = following
            try:
                session = opened()
            except Exception as error:  # noqa: BLE001  an item that cannot be opened (unknown backend) ends the batch
                self._done.put((index, error))
                continue
            with self._lock:
                self._live[index] = session
                stopped = self._stopped
            if stopped:
                session.cancel(stopped)
            return index, session

    def _finish(self, index: int, result: Result[Any]) -> None:
        with self._lock:
            self._live.pop(index, None)
        self._done.put((index, result))


async def arun_all(calls: Sequence[Callable[[], Awaitable[Result[R]]]], concurrency: int) -> list[Result[R]]:
    """Await all, at most `concurrency` at a time, in order."""
    import asyncio

    gate = asyncio.Semaphore(concurrency)

    async def one(call: Callable[[], Awaitable[Result[R]]]) -> Result[R]:
        async with gate:
            return await call()

    return list(await asyncio.gather(*(one(call) for call in calls)))


@contextmanager
def _no_bar() -> Iterator[Advance]:
    yield lambda: None


@contextmanager
def _bar(label: str, total: int) -> Iterator[Advance]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task(label, total=total)
        yield lambda: bar.advance(task)
