"""What happened in a run, kept from the beginning for readers who come late.

Acts that must not happen under the run's lock, done in the order in which they were decided.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator

from ...ir.execution import Event

Listener = Callable[[Event], None]


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


_log = logging.getLogger(__name__)


class CallbackQueue:
    """A queue that whoever flushes first drains, for all threads.

    Calls to a target, futures and listeners can call back into the run; so they are posted under the run's lock and
    done after it is released. One thread drains at a time, so a cancel never overtakes the submit it belongs to.
    """

    def __init__(self) -> None:
        self._acts: deque[Callable[[], None]] = deque()
        self._draining = threading.Lock()
        self.post = self._acts.append  # queues an act

    def flush(self) -> None:
        """Do what is queued, unless another thread (or a caller up the stack) is doing so already. What an act raises, be it
        SystemExit, is logged: it is a listener's or callback's own fault, and must not stop the acts behind it.

        Raises:
            KeyboardInterrupt: Ctrl-C came meanwhile. It is raised once all acts are done: those behind must not be lost.
        """
        interrupted: KeyboardInterrupt | None = None
        while self._acts and self._draining.acquire(blocking=False):
            try:
                while self._acts:
                    act = self._acts.popleft()
                    try:
                        act()
                    except BaseException as error:  # noqa: BLE001 - logged; the run goes on
                        if (
                            isinstance(error, KeyboardInterrupt)
                            and threading.current_thread() is threading.main_thread()
                        ):
                            interrupted = error
                        else:
                            _log.exception("a callback of a run raised")
            finally:
                self._draining.release()
        if interrupted is not None:
            raise interrupted
