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


class WallClock:
    """`time.monotonic`."""

    def now(self) -> float:
        return time.monotonic()

    def advance(self, seconds: float) -> None:
        """Real time passes by itself."""


class VirtualClock:
    """Moves only when told to."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"time cannot go back by {-seconds} s")
        self._now_s += seconds
