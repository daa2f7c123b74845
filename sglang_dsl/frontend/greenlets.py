"""Bodies of branches on one thread: where one waits for a value, the next runs. And what a body may be.

A program has one thread. Outside `branches.map` a wait simply blocks it. Inside, each branch body is a greenlet of
that thread: where one waits, the next runs. A hub drives them; nested maps use the hub that is there.

    hub (the thread's own greenlet)  --switch-->  branch 0 .. waits for a future --switch--> hub --switch--> branch 1 ..
"""

from __future__ import annotations

import heapq
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context, copy_context
from inspect import iscoroutine, iscoroutinefunction
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import Origin, ProgramError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from greenlet import greenlet


T = TypeVar("T")
Thunk = Callable[[], Any]
LONG_STACK = 300  # frames; Python allows 1,000 in all
_UNSET = object()


def wait(future: Future[T], timeout_s: float | None = None) -> T:
    """The future's result. Ctrl-C interrupts the wait; inside `map` other branches run meanwhile.

    Raises:
        TimeoutError: nothing after `timeout_s`; else whatever the future holds.
    """
    if future.done():
        return future.result()
    hub = _hub_here()
    return future.result(timeout_s) if hub is None else hub.wait(future, timeout_s)


def run_concurrently(thunks: Sequence[Thunk], limit: int | None = None) -> list[tuple[Any, Exception | None]]:
    """Call all, at most `limit` of them begun and unfinished at a time; each gives (value, None) or (None, error)."""
    hub = _hub_here()
    if hub is not None:
        return hub.run_inside(thunks, limit)
    return Hub().run(thunks, limit)


def on_some_stack(thunk: Callable[[], T]) -> T:
    """Call it: here, or on a stack of its own where this one is long already, so that programs may call each other deeper than
    Python counts frames. What it raises and what it sets in context variables is as if it had been called here.
    """
    long = True
    try:
        sys._getframe(LONG_STACK)
    except ValueError:
        long = False
    if not long:
        return thunk()
    ended: list[tuple[Any, BaseException | None]] = []
    contexts: list[Context] = []

    def body() -> None:
        try:
            ended.append((thunk(), None))
        except Exception as error:  # noqa: BLE001  raised below, in the caller's frame
            ended.append((None, error))
        except BaseException as error:
            if type(error).__name__ == "GreenletExit":  # its hub ends it, and the caller with it
                raise
            ended.append((None, error))
        contexts.append(copy_context())

    run_concurrently([body])
    for variable, value in contexts[0].items():
        if variable.get(_UNSET) is not value:
            variable.set(value)
    value, error = ended[0]
    if error is not None:
        raise error
    found: T = value
    return found


def _hub_here() -> Hub | None:
    """The hub whose greenlet is running, if any; costs nothing in programs that never map."""
    module = sys.modules.get("greenlet")
    return None if module is None else getattr(module.getcurrent(), "hub", None)


class MapBodies:
    """The bodies of one `map`: what is to start, what has finished. Owner: the hub."""

    __slots__ = ("left", "on_end", "results", "waiting")

    def __init__(self, thunks: Sequence[Thunk], on_end: Callable[[], None]) -> None:
        self.left = len(thunks)
        self.results: list[tuple[Any, Exception | None]] = [(None, None)] * len(thunks)
        self.waiting: Iterator[tuple[int, Thunk]] = iter(enumerate(thunks))
        self.on_end = on_end


class Hub:
    """Drives the greenlets of one thread. Wakes come from other threads through `_ready`; all else is single-threaded."""

    def __init__(self) -> None:
        import greenlet as module

        self._module = module
        self._root = module.getcurrent()
        self._ready: SimpleQueue[greenlet] = SimpleQueue()
        self._deadlines: list[tuple[float, int, greenlet]] = []
        self._order = itertools.count()
        self._alive: set[greenlet] = set()

    def run(self, thunks: Sequence[Thunk], limit: int | None) -> list[tuple[Any, Exception | None]]:
        """Drive the bodies until all have ended. What is no Exception (Ctrl-C) ends the others and is raised."""
        group = MapBodies(thunks, on_end=lambda: None)
        try:
            self._start(group, limit)
            while group.left:
                self._switch(self._next())
        except BaseException:
            self._kill()
            raise
        return group.results

    def run_inside(self, thunks: Sequence[Thunk], limit: int | None) -> list[tuple[Any, Exception | None]]:
        """The same from inside a body: this one waits while the hub drives the new ones."""
        me = self._module.getcurrent()
        group = MapBodies(thunks, on_end=lambda: self._ready.put(me))
        self._start(group, limit)
        while group.left:
            self._root.switch()
        return group.results

    def wait(self, future: Future[T], timeout_s: float | None) -> T:
        """Let others run until the future is done."""
        me = self._module.getcurrent()
        future.add_done_callback(lambda _: self._ready.put(me))
        end = None if timeout_s is None else time.monotonic() + timeout_s
        if end is not None:
            heapq.heappush(self._deadlines, (end, next(self._order), me))
        while not future.done():
            if end is not None and time.monotonic() >= end:
                raise TimeoutError
            self._root.switch()
        return future.result()

    def _start(self, group: MapBodies, limit: int | None) -> None:
        for _ in range(group.left if limit is None else min(limit, group.left)):
            self._start_one(group)

    def _start_one(self, group: MapBodies) -> None:
        following = next(group.waiting, None)
        if following is None:
            return
        index, thunk = following
        body = self._module.greenlet(lambda: self._body(group, index, thunk), parent=self._root)
        body.hub = self
        body.gr_context = copy_context()
        self._alive.add(body)
        self._ready.put(body)

    def _body(self, group: MapBodies, index: int, thunk: Thunk) -> None:
        try:
            group.results[index] = (thunk(), None)
        except Exception as error:  # noqa: BLE001  a body's error is its result; the map raises it
            group.results[index] = (None, error)
        self._alive.discard(self._module.getcurrent())
        group.left -= 1
        self._start_one(group)
        if not group.left:
            group.on_end()

    def _next(self) -> greenlet:
        """The next greenlet to go on: woken, or past its deadline."""
        while self._deadlines:
            end, _, sleeper = self._deadlines[0]
            try:
                return self._ready.get(timeout=max(end - time.monotonic(), 0))
            except Empty:
                heapq.heappop(self._deadlines)
                return sleeper
        return self._ready.get()

    def _switch(self, body: greenlet) -> None:
        if not body.dead:  # a late wake of a body that has ended
            body.switch()

    def _kill(self) -> None:
        for body in list(self._alive):
            self._alive.discard(body)
            if not body.dead:
                body.throw(self._module.GreenletExit)


# --- what a body may be -----------------------------------------------------------------------------------------------


def is_async(function: object) -> bool:
    """Whether calling it gives a coroutine: an `async def`, also inside a partial or as `__call__`, or such a program."""
    called = getattr(type(function), "__call__", None)  # noqa: B004  that of its class is what a call calls
    return iscoroutinefunction(function) or iscoroutinefunction(called) or getattr(function, "asynchronous", 0) is True


DECIDE_HINT = (
    "give it a plain `def`; an `async def` program can await the value (`await s.get(x)`) and go on with `if` or `for`"
)
MAP_HINT = "give it a plain `def`; or let the program be `async def`, and `await` the map of an `async def` body"


def check_plain(function: object, what: str, origin: Origin, *, hint: str = DECIDE_HINT) -> None:
    """Raise ProgramError for an `async def` where a plain function is called."""
    if is_async(function):
        raise ProgramError(f"{what} is `async def`, and nobody would await it here", hint=hint, origin=origin)


def no_coroutine(value: Any, what: str, origin: Origin, *, hint: str = DECIDE_HINT) -> Any:
    """The value. Raises ProgramError for a coroutine that nobody would await."""
    if iscoroutine(value):
        value.close()
        raise ProgramError(f"{what} gave a coroutine, and nobody would await it here", hint=hint, origin=origin)
    return value
