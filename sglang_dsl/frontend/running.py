"""A run under way: what `prog.start(...)` gives."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ..errors import DeadlineError, SpecError
from ..ir.specs import shown
from .following import Following
from .result import Result
from .session import Session
from .state import State

R = TypeVar("R")


class Running(Generic[R]):
    """A handle to a run whose body has a thread of its own."""

    __slots__ = ("_ended", "_listeners", "_result", "_session")

    def __init__(self, session: Session[R]) -> None:
        self._session = session
        self._listeners: list[Callable[[], object]] = []
        self._ended = threading.Event()
        self._result: Result[R] | None = None

    @classmethod
    def begin(cls, session: Session[R], *, asynchronous: bool, name: str) -> Running[R]:
        """Start the body's thread. Context variables are those of the caller."""
        running = cls(session)
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

    def stream(self, name: str | None = None) -> Following:
        """The text from its beginning, for `for` or `async for`, whenever and however often it is asked for; with `name` what
        calls of that name write. Leaving it leaves the run alone.
        """
        return Following(self._session, when_done=self._when_done, check=self.result, of=name)

    def _ipython_display_(self) -> None:
        """In a notebook: the text while it is written; the cell does not wait."""
        from .notebook import show_live

        show_live(self.stream(), lambda: self.result(raising=False), self._session.name, wait=False)

    def cancel(self, reason: str = "cancelled by the caller") -> None:
        """Stop what has not finished; finished values stay."""
        self._session.cancel(reason)

    def result(self, timeout_s: float | None = None, *, raising: bool = True) -> Result[R]:
        """Wait for the end. With `raising=False` a failed run's Result is returned, with its `error`.

        Raises:
            DeadlineError: no end within `timeout_s`; else the run's own error.
        """
        if timeout_s is not None and (
            isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or timeout_s != timeout_s
        ):
            raise SpecError(
                f"timeout_s={shown(timeout_s)} is not a number of seconds", hint="running.result(timeout_s=30)"
            )
        limit_s = None if timeout_s is None or timeout_s > threading.TIMEOUT_MAX else timeout_s
        if not self._ended.wait(limit_s) or self._result is None:
            raise DeadlineError(f"the run had not ended after {timeout_s} s", hint="wait longer, or cancel() it")
        if raising and self._result.error is not None:
            raise self._result.error
        return self._result

    def _run(self) -> None:
        self._end(self._session.execute())

    def _run_async(self) -> None:
        import asyncio

        try:
            result = asyncio.run(self._session.aexecute())
        except BaseException as raised:  # noqa: BLE001  a body that cancels its own task has ended, too
            result = self._session.interrupted(raised)
        self._end(result)

    def _end(self, result: Result[Any]) -> None:
        self._result = result
        self._ended.set()
        for listener in tuple(self._listeners):
            listener()

    def _when_done(self, listener: Callable[[], object]) -> None:
        """Call `listener` when the run has ended, at once if it has; perhaps twice."""
        self._listeners.append(listener)
        if self._ended.is_set():
            listener()
