"""The one clock deadlines, aging and timestamps read. Virtual in the mock, so tests of time take none."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> float:
        """Seconds, monotonic."""

    def advance(self, seconds: float) -> None:
        """A step took `seconds`: real clocks ignore it, virtual ones move."""

    def rest(self, until_s: float | None, *, jump: bool) -> float | None:
        """How many real seconds to sleep until `until_s` (None: until something happens).

        A virtual clock goes to `until_s` at once and answers 0, but only with `jump`: nothing else that takes real
        time (a compiling constraint) is under way. Otherwise it answers None.
        """


class WallClock:
    """`time.monotonic`."""

    def now(self) -> float:
        """Seconds."""
        return time.monotonic()

    def advance(self, seconds: float) -> None:
        """Real time passes by itself."""

    def rest(self, until_s: float | None, *, jump: bool) -> float | None:
        """The time left."""
        return None if until_s is None else max(until_s - self.now(), 0.0)


class VirtualClock:
    """Moves only when told to. Moved by the engine's thread; any thread may read it."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        """Seconds."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move on. Raises ValueError for a step back."""
        if seconds < 0:
            raise ValueError(f"time cannot go back by {-seconds} s")
        self._now_s += seconds

    def rest(self, until_s: float | None, *, jump: bool) -> float | None:
        """Go there at once, with `jump`."""
        if until_s is None or not jump:
            return None
        self._now_s = max(self._now_s, until_s)
        return 0.0
