"""A run that begins when its text is first asked for."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Generic, TypeVar

from ..errors import ProgramError
from .following import Chunk, Following
from .result import Result
from .running import Running
from .session import Session

R = TypeVar("R")


class Stream(Generic[R]):
    """A run's text as an iterator, also an async one. The run begins with the first step of the iteration; when the
    text ends its failure, if any, is raised. `result` afterwards is the run's Result. Leaving the iteration cancels the run.
    """

    def __init__(self, opened: Callable[[], Session[R]], *, asynchronous: bool, name: str) -> None:
        self._opened = opened
        self._asynchronous = asynchronous
        self._name = name
        self._of: str | None = None
        self._beginning = threading.RLock()
        self._running: Running[R] | None = None
        self._following: Following | None = None

    def of(self, name: str) -> Stream[R]:
        """Only what calls of this name write, in all branches, as it comes; `chunk.node` says which call."""
        self._of = name
        return self

    @property
    def result(self) -> Result[R]:
        """The run's Result; waits for its end. Holds the failure, if any, as its `error`.

        Raises:
            ProgramError: the iteration has not begun.
        """
        if self._running is None:
            raise ProgramError("this stream has not begun", hint="iterate it first: for piece in stream: ...")
        return self._running.result(raising=False)

    @property
    def running(self) -> Running[R] | None:
        """The run, once begun."""
        return self._running

    @property
    def spent(self) -> bool:
        """Whether the text has been iterated to its end."""
        return self._following is not None and self._following.ended

    def begin(self) -> Running[R]:
        """Begin the run now, before the iteration does."""
        with self._beginning:
            if self._running is None:
                self._running = Running.begin(self._opened(), asynchronous=self._asynchronous, name=self._name)
            return self._running

    def _ipython_display_(self) -> None:
        """In a notebook: begins the run and shows its text while it is written; the cell waits for the end."""
        from .notebook import show_live

        running = self.begin()
        show_live(self, lambda: running.result(raising=False), self._name, wait=True)

    def __iter__(self) -> Iterator[Chunk]:
        following = self._follow()
        try:
            yield from following
        finally:
            self._leave()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        text = self._follow().__aiter__()
        try:
            async for chunk in text:
                yield chunk
        finally:
            self._leave()
            await text.aclose()

    def _follow(self) -> Following:
        with self._beginning:
            if self._following is not None:
                raise ProgramError(
                    "this stream was iterated already", hint="read again with stream.running.stream(), at any time"
                )
            self._following = self.begin().stream(self._of)
            return self._following

    def _leave(self) -> None:
        if self._running is not None and not self._running.done:
            self._running.cancel("the stream was left")
