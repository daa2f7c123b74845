"""Limits in real time, kept by one thread for all of a run's tools."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable


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
                threading.Thread(target=self._watch, name="tool-limits", daemon=True).start()
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
