"""Where a request's output enters its run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from ..schedule.request import Result
from .entry import Entry
from .machine import Machine


class Caller(Protocol):
    """What a sink tells the call it belongs to, inside a turn."""

    entry: Entry

    def on_started(self) -> None:
        """The request was admitted."""

    def on_text(self, delta: str, token_ids: Sequence[int]) -> None:
        """Text was released."""

    def on_failed(self, error: Exception) -> None:
        """The request ended without a result."""


class RunSink:
    """The Sink of one request. What arrives after the entry has ended counts for usage only."""

    def __init__(self, machine: Machine, call: Caller, done: Callable[[Any], None]) -> None:
        self._machine = machine
        self._call = call
        self._done = done

    def started(self) -> None:
        """See `Sink`."""
        with self._machine.turn():
            if not self._call.entry.ended:
                self._call.on_started()

    def text(self, delta: str, token_ids: Sequence[int]) -> None:
        """See `Sink`."""
        with self._machine.turn():
            if not self._call.entry.ended:
                self._call.on_text(delta, token_ids)

    def done(self, result: Result | Exception) -> None:
        """See `Sink`."""
        with self._machine.turn():
            entry = self._call.entry
            if not isinstance(result, Exception):
                self._machine.tally.add(result)
            if entry.ended:
                return
            entry.stop = None
            if isinstance(result, Exception):
                self._machine.attempt(entry, partial(self._call.on_failed, result))
            else:
                self._machine.attempt(entry, partial(self._done, result))
