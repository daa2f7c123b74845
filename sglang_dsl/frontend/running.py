"""A run under way: what `prog.start(...)` gives."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ..errors import DeadlineError
from .result import Result
from .session import Session
from .state import State

R = TypeVar("R")


class Running(Generic[R]):
    """A handle to a run whose body has a thread of its own."""

    __slots__ = ("_ended", "_on_end", "_result", "_session")

    def __init__(self, session: Session[R], on_end: Callable[[], None] | None = None) -> None:
        self._session = session
        self._on_end = on_end
        self._ended = threading.Event()
        self._result: Result[R] | None = None

    @classmethod
    def begin(
        cls, session: Session[R], *, asynchronous: bool, name: str, on_end: Callable[[], None] | None = None
    ) -> Running[R]:
        """Start the body's thread. Context variables are those of the caller. `on_end` is called on that thread."""
        running = cls(session, on_end)
        context = contextvars.copy_context()
        target = running._run_async if asynchronous else running._run
        threading.Thread(target=context.run, args=(target,), name=f"program {name}", daemon=True).start()
        return running

    @property
    def state(self) -> State:
        """The live state: its values can be read while the program runs."""
        return self._session.state

    @property
    def session(self) -> Session[R]:
        """The run behind it."""
        return self._session

    @property
    def done(self) -> bool:
        """Whether the run has ended."""
        return self._ended.is_set()

    def cancel(self, reason: str = "cancelled by the caller") -> None:
        """Stop what has not finished; finished values stay."""
        self._session.cancel(reason)

    def result(self, timeout_s: float | None = None, *, raising: bool = True) -> Result[R]:
        """Wait for the end. With `raising=False` a failed run's Result is returned, with its `error`.

        Raises:
            DeadlineError: no end within `timeout_s`; else the run's own error.
        """
        if not self._ended.wait(timeout_s) or self._result is None:
            raise DeadlineError(f"the run had not ended after {timeout_s} s", hint="wait longer, or cancel() it")
        if raising and self._result.error is not None:
            raise self._result.error
        return self._result

    def _run(self) -> None:
        self._end(self._session.execute())

    def _run_async(self) -> None:
        import asyncio

        self._end(asyncio.run(self._session.aexecute()))

    def _end(self, result: Result[Any]) -> None:
        self._result = result
        self._ended.set()
        if self._on_end is not None:
            self._on_end()
