"""Commands on their way from any thread to the engine's own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from ...errors import EngineClosedError

Command: TypeAlias = Callable[[], None]


class Inbox:
    """An ordered queue that one thread takes from. The lock is re-entrant: a finalizer may run inside any of these."""

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.RLock())
        self._commands: deque[Command] = deque()
        self._closed: str | None = None  # why

    def post(self, command: Command) -> None:
        """Append a command and wake the taker.

        Raises:
            EngineClosedError: `close` was called; the command was not queued.
        """
        with self._condition:
            if self._closed is not None:
                raise EngineClosedError(self._closed, hint="open a new engine")
            self._commands.append(command)
            self._condition.notify()

    def take(self) -> list[Command]:
        """Everything queued so far, in order."""
        with self._condition:
            commands = list(self._commands)
            self._commands.clear()
        return commands

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until there is something to take, or the inbox is closed. False: the time ran out."""
        with self._condition:
            return self._condition.wait_for(lambda: bool(self._commands) or self.closed, timeout_s)

    def close(self, reason: str) -> None:
        """Refuse all later commands. The first reason stays."""
        with self._condition:
            self._closed = self._closed or reason
            self._condition.notify_all()

    @property
    def size(self) -> int:
        """How many commands wait."""
        return len(self._commands)

    @property
    def pending(self) -> bool:
        """Whether there is something to take."""
        return bool(self._commands)

    @property
    def closed(self) -> bool:
        """Whether commands are refused."""
        return self._closed is not None
