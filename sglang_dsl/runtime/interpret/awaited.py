"""What the machine and a call know of a request on its way (`flight.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ..schedule.request import Sink
from .entry import Entry


class Caller(Protocol):
    """What a flight tells a call, inside a turn, as long as its entry has not ended."""

    entry: Entry

    def on_started(self) -> None:
        """The request was admitted."""

    def on_text(self, delta: str) -> None:
        """Text was released."""


class Awaited(Sink, Protocol):
    """A request that calls wait for, and others may join."""

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits for it."""

    @property
    def usable(self) -> bool:
        """Whether another call may join."""

    def join(self, caller: Caller, done: Callable[[Any], None]) -> None:
        """Wait for the result, too."""
