"""What a run tells, what it costs and may cost, and what it has to do outside its lock.

`EventLog` keeps all events for readers who come late. `UsageTotals` adds up what calls cost, `Budget` says what they may cost.
`CallbackQueue` are done in the order in which they were decided, once the lock is released.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ...errors import DeadlineError
from ...ir.execution import Event, Usage
from ..schedule.request import GenerateResult, Result
from .entries import Entry

Listener: TypeAlias = Callable[[Event], None]

_log = logging.getLogger(__name__)


class EventLog:
    """All events of one run. `append` is called under the run's lock; reading takes a lock of its own."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._grown = threading.Condition()
        self._listeners: dict[object, Listener] = {}

    def append(self, event: Event) -> tuple[Listener, ...]:
        """Keep an event and wake the readers. Returns the listeners the caller has to tell."""
        with self._grown:
            self._events.append(event)
            self._grown.notify_all()
            return tuple(self._listeners.values())

    def read(self) -> Iterator[Event]:
        """From the first event on, waiting for more, up to and including "run_finished"."""
        index = 0
        while True:
            with self._grown:
                while index >= len(self._events):
                    self._grown.wait()
                event = self._events[index]
            index += 1
            yield event
            if event.kind == "run_finished":
                return

    def subscribe(self, listener: Listener, *, replay: bool = False) -> Callable[[], None]:
        """Tell `listener` of what comes from now on, until the returned function is called.

        replay: first of all that came so far, here and now; nothing is told twice or left out in between.
        """
        key = object()
        with self._grown:
            for event in self._events if replay else ():
                listener(event)
            self._listeners[key] = listener

        def end() -> None:
            with self._grown:
                self._listeners.pop(key, None)

        return end


class CallbackQueue:
    """A queue of actions that whoever flushes first empties, for all threads.

    Calls to a target, futures and listeners can call back into the run; so they are deferred under the run's lock and
    done after it is released. One thread does them at a time, so a cancel never overtakes the submit it belongs to.
    """

    def __init__(self) -> None:
        self._actions: deque[Callable[[], None]] = deque()
        self._flushing = threading.Lock()
        self.defer = self._actions.append  # queues an action

    def flush(self) -> None:
        """Do what is queued, unless another thread (or a caller up the stack) is doing so already. What an action raises, be
        it SystemExit, is logged: it is a listener's or callback's own fault, and must not stop the actions behind it.

        Raises:
            KeyboardInterrupt: Ctrl-C came meanwhile. It is raised once all actions are done: those behind must not be lost.
        """
        interrupted: KeyboardInterrupt | None = None
        while self._actions and self._flushing.acquire(blocking=False):
            try:
                while self._actions:
                    action = self._actions.popleft()
                    try:
                        action()
                    except BaseException as error:  # noqa: BLE001 - logged; the run goes on
                        if (
                            isinstance(error, KeyboardInterrupt)
                            and threading.current_thread() is threading.main_thread()
                        ):
                            interrupted = error
                        else:
                            _log.exception("a callback of a run raised")
            finally:
                self._flushing.release()
        if interrupted is not None:
            raise interrupted


@dataclass(slots=True)
class Budget:
    """What a run may take: time until its deadline, and generated tokens. Owner: the run's Machine. `now`: seconds since the run began, on its default model's clock. None: no limit."""

    deadline_s: float | None
    tokens: int | None
    now: Callable[[], float]
    generated_tokens: int = 0

    def seconds_left(self, entry: Entry) -> float | None:
        """Until the deadline, if there is one.

        Raises:
            DeadlineError: it has passed before `entry` began.
        """
        if self.deadline_s is None:
            return None
        left_s = self.deadline_s - self.now()
        if left_s <= 0:
            raise DeadlineError(
                f"the run's deadline of {self.deadline_s} s passed before {entry.id!r} began",
                hint="raise RunOptions(deadline_s=...)",
                origin=entry.node.origin,
            )
        return left_s

    def check(self, entry: Entry) -> None:
        """Raise DeadlineError if no token may be generated any more."""
        if self.tokens is not None and self.generated_tokens >= self.tokens:
            raise self.error(entry)

    def error(self, entry: Entry) -> DeadlineError:
        """Why `entry` cannot go on."""
        return DeadlineError(
            f"the run's token budget of {self.tokens} was spent before {entry.id!r} ended",
            hint="raise RunOptions(token_budget=...), or lower max_tokens",
            origin=entry.node.origin,
        )


@dataclass(slots=True)
class UsageTotals:
    """What the calls of a run have cost so far. Owner: the run's Machine. Every attempt counts."""

    calls: int = 0
    asked_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    peak_kv_pages: int = 0
    lost_tokens: int = 0
    reused_tokens: int = 0

    def add(self, result: Result) -> None:
        """Count a finished request."""
        self.calls += 1
        self.asked_tokens += result.prompt_tokens
        self.computed_tokens += result.computed_tokens if result.spent_tokens is None else result.spent_tokens
        self.reused_tokens += result.prompt_tokens - result.computed_tokens
        self.peak_kv_pages = max(self.peak_kv_pages, result.peak_kv_pages)
        if isinstance(result, GenerateResult):
            self.generated_tokens += result.generated_tokens

    def add_shared(self, result: Result) -> None:
        """Count a call that was given another's result."""
        self.calls += 1
        self.asked_tokens += result.prompt_tokens
        self.reused_tokens += result.prompt_tokens

    def add_lost(self, tokens: int) -> None:
        """Count what was computed for a call that was cancelled or failed."""
        self.computed_tokens += tokens
        self.lost_tokens += tokens

    def so_far(self, wall_s: float) -> Usage:
        """The totals so far."""
        return Usage(
            calls=self.calls,
            asked_tokens=self.asked_tokens,
            computed_tokens=self.computed_tokens,
            reused_tokens=self.reused_tokens,
            lost_tokens=self.lost_tokens,
            generated_tokens=self.generated_tokens,
            peak_kv_pages=self.peak_kv_pages,
            wall_s=wall_s,
        )
