"""What happened in a run, kept from the beginning for readers who come late."""

from __future__ import annotations

import threading
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
