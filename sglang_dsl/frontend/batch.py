"""Many runs of one program: bounded concurrency, one Result per item, in order or as they finish."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from uuid import uuid4

from ..errors import SpecError
from ..ir.execution import BatchItem
from ..ir.specs import shown

if TYPE_CHECKING:
    from .session import Result, Session

R = TypeVar("R")
BATCH_CONCURRENCY = 32
ENDING_S = 0.5  # how long Ctrl-C waits for bodies that are in code of their own
Opened: TypeAlias = "Callable[[], Session[R]]"
Advance = Callable[[], None]
Call = tuple[tuple[Any, ...], dict[str, Any]]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a run or a batch. `results`: one per item; what did not finish holds an error, and None stands for what
    had not begun (or did not end in time, in code of its own).
    """

    def __init__(self, results: Sequence[Result[Any] | None]) -> None:
        done = sum(result is not None and result.error is None for result in results)
        super().__init__(f"interrupted; {done} of {len(results)} runs had finished")
        self.results = list(results)

    @property
    def result(self) -> Result[Any] | None:
        """That of the first run that did not finish, or None where none had begun."""
        begun = [result for result in self.results if result is not None]
        return next((result for result in begun if result.error is not None), None)


def calls_of(items: Iterable[Any]) -> list[tuple[Call, BatchItem]]:
    """The arguments of each run, by position and by name, with its place in the batch.

    Raises:
        SpecError: `items` is no list.
    """
    if not isinstance(items, Iterable):
        raise SpecError(f"a batch of {shown(items)} is no list of arguments", hint="program.run_batch([{'x': 1}, ...])")
    calls: list[Call] = [
        ((), dict(item)) if isinstance(item, dict) else (item if type(item) is tuple else (item,), {}) for item in items
    ]
    batch_id = uuid4().hex
    return [(call, BatchItem(batch_id, index, len(calls))) for index, call in enumerate(calls)]


def run_all(
    opens: Sequence[Opened[R]], *, concurrency: int, progress: bool, asynchronous: bool, label: str
) -> Iterator[tuple[int, Result[R]]]:
    """(index, Result) as the runs finish.

    Raises:
        SpecError: `concurrency` is below 1. Interrupted: Ctrl-C; the runs under way were cancelled, no other begins, and it
            holds what there is by then.
    """
    _check(concurrency)
    pool = _Pool(opens, concurrency, asynchronous)
    return _run_all(opens, pool, _bar(label, len(opens)) if progress else _no_bar())


def _run_all(
    opens: Sequence[Opened[R]], pool: _Pool, bar: AbstractContextManager[Advance]
) -> Iterator[tuple[int, Result[R]]]:
    pool.begin()
    finished: dict[int, Result[R]] = {}
    with bar as advance:
        try:
            for _ in opens:
                index, result = pool.next()
                finished[index] = result
                advance()
                yield index, result
        except KeyboardInterrupt as interrupt:
            pool.stop("interrupted")
            finished.update(pool.rest(delivered=len(finished)))
            raise Interrupted([finished.get(index) for index in range(len(opens))]) from interrupt
        except BaseException:  # the reader has left, or an item cannot be opened
            pool.stop("the batch was left")
            raise


def _check(concurrency: int) -> None:
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise SpecError(f"concurrency={concurrency!r} is not a whole number above 0", hint="concurrency=32")


class _Pool:
    """At most `concurrency` threads (one, for async programs) that take runs in order. Owner: one batch."""

    def __init__(self, opens: Sequence[Opened[Any]], concurrency: int, asynchronous: bool) -> None:
        self._waiting: Iterator[tuple[int, Opened[Any]]] = iter(enumerate(opens))
        self._lock = threading.Lock()
        self._live: dict[int, Session[Any]] = {}
        self._stopped = ""
        self._begun = 0
        self._done: SimpleQueue[tuple[int, Result[Any] | BaseException]] = SimpleQueue()
        self._width = min(concurrency, len(opens))
        self._work_by = self._work_async if asynchronous else self._work
        self._threads = min(self._width, 1) if asynchronous else self._width
        self._context = contextvars.copy_context()  # of the caller, not of the first reader; each item has a copy

    def begin(self) -> None:
        """Start the threads."""
        for _ in range(self._threads):
            threading.Thread(target=self._work_by, daemon=True).start()

    def next(self) -> tuple[int, Result[Any]]:
        """The next run to finish."""
        index, result = self._done.get()
        if isinstance(result, BaseException):
            raise result
        return index, result

    def rest(self, delivered: int) -> Iterator[tuple[int, Result[Any]]]:
        """After `stop`: what had begun and was not given yet, as far as it ends within ENDING_S."""
        end = time.monotonic() + ENDING_S
        for _ in range(self._begun - delivered):
            try:
                index, result = self._done.get(timeout=max(end - time.monotonic(), 0))
            except Empty:
                return
            if not isinstance(result, BaseException):
                yield index, result

    def stop(self, reason: str) -> None:
        """Cancel what is under way; what has not begun never does."""
        with self._lock:
            self._stopped = reason
            live = list(self._live.values())
        for session in live:
            session.cancel(reason)

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            index, session, context = taken
            self._finish(index, context.run(session.execute))

    def _work_async(self) -> None:
        import asyncio

        async def worker() -> None:
            while (taken := self._take()) is not None:
                index, session, context = taken
                try:
                    result = await asyncio.create_task(session.aexecute(), context=context)
                except asyncio.CancelledError as raised:  # a body that cancels its own task ends its own item
                    result = session.interrupted(raised)
                self._finish(index, result)

        async def workers() -> None:
            await asyncio.gather(*(worker() for _ in range(self._width)))

        asyncio.run(workers())

    def _take(self) -> tuple[int, Session[Any], contextvars.Context] | None:
        while True:
            with self._lock:
                following = None if self._stopped else next(self._waiting, None)
                self._begun += following is not None
            if following is None:
                return None
            index, opened = following
            context = self._context.copy()
            try:
                session = context.run(opened)
            except Exception as error:  # noqa: BLE001  an item that cannot be opened (unknown backend) ends the batch
                self._done.put((index, error))
                continue
            with self._lock:
                self._live[index] = session
                stopped = self._stopped
            if stopped:
                session.cancel(stopped)
            return index, session, context

    def _finish(self, index: int, result: Result[Any]) -> None:
        with self._lock:
            self._live.pop(index, None)
        self._done.put((index, result))


async def arun_all(calls: Sequence[Callable[[], Awaitable[Result[R]]]], concurrency: int) -> list[Result[R]]:
    """Await all, at most `concurrency` at a time, in order. Raises SpecError where that is below 1."""
    import asyncio

    _check(concurrency)
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
