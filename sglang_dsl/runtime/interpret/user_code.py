"""Where a run calls what its user wrote: tools, validators, keys of joins. Nothing else in the runtime calls user code.

For every such call, whatever kind it is:

* It never runs on the engine's thread. Functions run on the run's own worker threads. What they give that can be awaited is
  awaited on the event loop of the program, where that is `async def`; elsewhere on one loop that the run keeps for all its calls.
* It runs in a copy of the context variables of the statement that gave it. Nobody else sees what it sets.
* Whatever it raises, also SystemExit, KeyboardInterrupt or a cancellation, is the end of this call and of nothing else.
* Python cannot stop a function. A call that nobody waits for any more gives up its place among the workers, or its task is
  cancelled, and what it still returns is dropped.

    UserCode.begin -> queue -> worker: context.run(function) --value or error------------------------> call.ends
                                                              --awaitable--> event loop: await it ---> call.ends
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any, NamedTuple

from ...errors import ToolError

WORKERS = 8  # per run: enough to overlap slow services, few enough not to drown them
LOOP_PATIENCE_S = 0.1  # a loop that has not cancelled a task by then is blocked by what runs on it

_log = logging.getLogger(__name__)
here = threading.local()  # `leave` on a worker's thread: how its call gives up its place

SAID_CHARACTERS = 2000  # of what a call raised, in messages


class UserCallResult(NamedTuple):
    """What a call came to: a value, or what it raised and how that reads."""

    value: Any = None
    error: BaseException | None = None
    said: str = ""

    @classmethod
    def failed(cls, error: BaseException) -> UserCallResult:
        """The end of a call that raised. An error may fail to say what it is: then its type has to do."""
        try:
            inner, tools = error, 0
            while isinstance(inner, ToolError) and inner.__cause__ is not None:  # tools run programs with tools
                inner, tools = inner.__cause__, tools + 1
            if tools > 1:  # the first cause is what counts
                said = f"{type(inner).__name__}, {tools} tools further in: {inner}"
            else:
                said = f"{type(error).__name__}: {error}"
            said = printable(said)
        except BaseException:  # noqa: BLE001 - the error's own `__str__` is user code, too
            said = type(error).__name__
        if len(said) > SAID_CHARACTERS:
            said = f"{said[: SAID_CHARACTERS // 2]} ... {said[-SAID_CHARACTERS // 2 :]}"
        return cls(error=error, said=said)


def printable(text: str) -> str:
    """A text of user code as any file and terminal can hold it: without lone surrogates."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


class UserCall:
    """One call of a function of the user: queued, at work or dropped. Owner of its marks: the UserCode that it was given to.

    Args:
        function: takes nothing; what it gives may be awaitable.
        context: of its own; nobody else runs in it.
        begins: asked on the worker's thread; False where nobody waits for the call any more.
        ends: told once, on the worker's or the loop's thread. Neither raises.
    """

    __slots__ = ("begins", "context", "dropped", "ends", "function", "placed", "task")

    def __init__(
        self,
        function: Callable[[], Any],
        context: Context,
        begins: Callable[[], bool],
        ends: Callable[[UserCallResult], None],
    ) -> None:
        self.function = function
        self.context = context
        self.begins = begins
        self.ends = ends
        self.placed = False  # whether it holds one of the places for workers
        self.dropped = False
        self.task: tuple[asyncio.AbstractEventLoop, asyncio.Task[None] | None] | None = None


class UserCode:
    """The worker threads, the event loop and the alarms of one run. Thread-safe; nothing is started before it is needed."""

    def __init__(self, workers: int = WORKERS) -> None:
        self.alarms = Alarms()
        self._workers = workers
        self._queue: queue.SimpleQueue[UserCall | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._crew = 0
        self._open = 0  # calls that wait for a worker or have one
        self._tasks: set[asyncio.Task[None]] = set()  # a loop holds on to its tasks by weak references only
        self._program_loop: asyncio.AbstractEventLoop | None = None
        self._own_loop: _OwnLoop | None = None
        self._closed = False

    def await_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Await what can be awaited on the loop of the program from now on."""
        self._program_loop = loop

    def begin(self, call: UserCall) -> None:
        """Queue a call; one more thread is started while fewer are at work than calls wait."""
        with self._lock:
            self._open += 1
            self._queue.put(call)
            self._hire()

    def drop(self, call: UserCall) -> None:
        """Wait no more for a call. Idempotent."""
        with self._lock:
            call.dropped = True
            self._leave(call)
            running = call.task
        if running is not None:
            self._cancel_task(call, running[0])

    def close(self) -> None:
        """Let the threads end once their calls are done, and the run's own loop with all that is left on it. Idempotent."""
        with self._lock:
            for _ in range(self._crew):
                self._queue.put(None)
            self._crew = 0
            self._closed = True  # a function that answers only now is awaited by nobody: it must not open another loop
            loop, self._own_loop = self._own_loop, None
        if loop is not None:
            loop.close()

    # worker threads

    def _hire(self) -> None:
        if self._open > self._crew < self._workers:
            threading.Thread(target=self._work, name=f"user-code-{self._crew}", daemon=True).start()
            self._crew += 1

    def _leave(self, call: UserCall) -> None:
        """The call's thread is no member of the crew any more: it ends with the call."""
        if call.placed:
            call.placed = False
            self._crew -= 1
            self._open -= 1
            self._hire()

    def _work(self) -> None:
        while (call := self._queue.get()) is not None:
            with self._lock:
                call.placed = True
            here.leave = partial(self._give_way, call)
            self._run(call)
            with self._lock:
                if not call.placed:
                    return
                call.placed = False
                self._open -= 1

    def _give_way(self, call: UserCall) -> None:
        with self._lock:
            self._leave(call)

    def _run(self, call: UserCall) -> None:
        if call.dropped or not call.begins():
            return
        try:
            answer = call.context.run(call.function)
            later = inspect.isawaitable(answer)
        except BaseException as error:  # noqa: BLE001 - whatever user code raises is the end of its call, not of this thread
            call.ends(UserCallResult.failed(error))
            return
        if later:
            self._await(call, answer)
        else:
            call.ends(UserCallResult(answer))

    # the event loop

    def _await(self, call: UserCall, answer: Any) -> None:
        with self._lock:
            wanted = not (call.dropped or self._closed)
            if wanted:
                loop = self._loop()
                call.task = (loop, None)
        if not wanted:
            _close(answer)
            return

        def begin() -> None:
            if call.dropped:
                _close(answer)
                return
            task = loop.create_task(_finish(call, answer), context=call.context)
            self._tasks.add(task)
            task.add_done_callback(over)
            call.task = (loop, task)

        def over(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if task.cancelled():  # before its first step: other user code has cancelled all there is on the loop
                _close(answer)
                call.ends(UserCallResult.failed(asyncio.CancelledError("cancelled before it began")))

        try:
            loop.call_soon_threadsafe(begin, context=call.context)
        except RuntimeError as error:  # the loop is closed
            _close(answer)
            call.ends(UserCallResult.failed(error))

    def _loop(self) -> asyncio.AbstractEventLoop:
        if self._program_loop is not None:
            return self._program_loop
        if self._own_loop is None:
            self._own_loop = _OwnLoop()
        return self._own_loop.loop

    def _cancel_task(self, call: UserCall, loop: asyncio.AbstractEventLoop) -> None:
        heard = threading.Event()

        def cancel() -> None:
            heard.set()
            if call.task is not None and call.task[1] is not None:
                call.task[1].cancel()

        try:
            loop.call_soon_threadsafe(cancel)
        except RuntimeError:  # the loop is closed, and all that ran on it has ended
            return
        if loop is not self._program_loop:
            self.alarms.after(LOOP_PATIENCE_S, lambda: None if heard.is_set() else self._retire(loop))

    def _retire(self, loop: asyncio.AbstractEventLoop) -> None:
        """What runs on the loop blocks it: the calls to come get another one."""
        with self._lock:
            own = self._own_loop
            if own is None or own.loop is not loop:
                return
            self._own_loop = None
        own.close()


async def await_in(context: Context, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await a coroutine in a context of its own, on the loop that runs."""
    return await asyncio.get_running_loop().create_task(coroutine, context=context)


async def _finish(call: UserCall, answer: Any) -> None:
    """Await what a function gave. Raises nothing: SystemExit in a task would end the loop."""
    try:
        value = await answer
    except BaseException as error:  # noqa: BLE001 - as in `UserCode._run`
        call.ends(UserCallResult.failed(error))
    else:
        call.ends(UserCallResult(value))


def _close(answer: Any) -> None:
    """Drop a coroutine that nobody will await, without Python's warning: with it those that were given to it to await."""
    if inspect.iscoroutine(answer) and inspect.getcoroutinestate(answer) == inspect.CORO_CREATED:
        given = list(answer.cr_frame.f_locals.values()) if answer.cr_frame is not None else []
        answer.close()
        for each in given:
            _close(each)


class _OwnLoop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        threading.Thread(target=self._serve, name="user-code-loop", daemon=True).start()

    def close(self) -> None:
        """Cancel what is left and end, as soon as the loop is free."""
        try:
            self.loop.call_soon_threadsafe(self._closing.set)
        except RuntimeError:  # closed already
            return

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            while not self._closing.is_set():
                try:
                    runner.run(self._closing.wait())
                except BaseException as error:  # noqa: BLE001 - SystemExit in a task that a tool left behind: the others go on
                    _log.warning("a task that user code had begun raised %r", error)


class Alarm:
    """A function that is to be called at some time. Owner of its mark: its Alarms."""

    __slots__ = ("cancelled", "ending")

    def __init__(self, ending: Callable[[], None]) -> None:
        self.ending = ending
        self.cancelled = False


class Alarms:
    """Calls functions after a while, on a daemon thread that lives as long as any are due. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Alarm]] = []
        self._order = itertools.count()
        self._watching = False

    def after(self, seconds: float, ending: Callable[[], None]) -> Alarm:
        """Have `ending`, which returns fast and doesn't raise, called in so many seconds."""
        alarm = Alarm(ending)
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), alarm))
            self._changed.notify()
            if not self._watching:
                self._watching = True
                threading.Thread(target=self._watch, name="user-code-limits", daemon=True).start()
        return alarm

    def cancel(self, alarm: Alarm) -> None:
        """Forget about it. Idempotent."""
        with self._changed:
            alarm.cancelled = True
            self._changed.notify()

    def _watch(self) -> None:
        while (alarm := self._next()) is not None:
            alarm.ending()

    def _next(self) -> Alarm | None:
        """Wait for the next alarm; None where none are left."""
        with self._changed:
            while self._due:
                at_s, _, alarm = self._due[0]
                left_s = at_s - time.monotonic()
                if alarm.cancelled or left_s <= 0:
                    heapq.heappop(self._due)
                    if not alarm.cancelled:
                        return alarm
                else:
                    self._changed.wait(left_s)
            self._watching = False
            return None
