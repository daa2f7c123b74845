"""Text while it is written: of the program's own path in order, or of one name in all branches."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from ..errors import ProgramError, UnknownNameError
from ..ir.execution import Event
from ..ir.nodes import Gen, Node, Select
from .result import Result
from .running import Running
from .session import Session
from .transcript import SILENT

R = TypeVar("R")


class Chunk(str):
    """A piece of streamed text. `node`: what wrote it."""

    __slots__ = ("node",)

    node: Node

    def __new__(cls, text: str, node: Node) -> Chunk:
        """A string that knows its node."""
        chunk = super().__new__(cls, text)
        chunk.node = node
        return chunk


class Stream(Generic[R]):
    """A run's text as an iterator, also an async one. The run begins with the first step of the iteration; when the
    text ends its failure, if any, is raised. `result` afterwards is the run's Result.
    """

    def __init__(self, opened: Callable[[], Session[R]], *, asynchronous: bool, name: str) -> None:
        self._opened = opened
        self._asynchronous = asynchronous
        self._name = name
        self._of: str | None = None
        self._running: Running[R] | None = None
        self._follower: Follower | None = None
        self._followed = False

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
        return self._follower is not None and self._follower.ended

    def begin(self) -> Running[R]:
        """Begin the run now, before the iteration does."""
        if self._running is None:
            session = self._opened()
            self._follower = Follower(session)
            self._running = Running.begin(
                session, asynchronous=self._asynchronous, name=self._name, on_end=self._follower.end
            )
        return self._running

    def __iter__(self) -> Iterator[Chunk]:
        running, follower = self._follow()
        woken: SimpleQueue[None] = SimpleQueue()
        follower.wake_by(lambda: woken.put(None))
        try:
            while not follower.ended:
                woken.get()
                yield from follower.take(self._of)
            self._check_ended(running, follower)
        finally:
            self._leave(running)

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        import asyncio

        running, follower = self._follow()
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        follower.wake_by(lambda: loop.call_soon_threadsafe(woken.set))
        try:
            while not follower.ended:
                await woken.wait()
                woken.clear()
                for chunk in follower.take(self._of):
                    yield chunk
            self._check_ended(running, follower)
        finally:
            self._leave(running)

    def _follow(self) -> tuple[Running[R], Follower]:
        running = self.begin()
        if self._follower is None or self._followed:
            raise ProgramError("this stream was iterated already", hint="its text is in stream.running.result().text")
        self._followed = True
        return running, self._follower

    def _check_ended(self, running: Running[R], follower: Follower) -> None:
        """Raise the run's failure, or UnknownNameError where no call had the name that was followed."""
        running.result()
        if self._of is not None and not follower.followed:
            raise UnknownNameError(
                f"no call of {self._name} was named {self._of!r}", hint="follow the name of a gen or select"
            )

    def _leave(self, running: Running[R]) -> None:
        if not running.done:
            running.cancel("the stream was left")


class Follower:
    """Turns a run's events into text that can be shown. Events come from the runtime's and the body's threads; `take`
    is called by the one reader.

    The program's path is shown node after node: text that comes for a later node waits for those before it.
    """

    def __init__(self, session: Session[Any]) -> None:
        self._session = session
        self._wake: Callable[[], object] = lambda: None
        self._appended: deque[Node] = deque()
        self._arrived: dict[str, deque[str]] = {}
        self._shown: dict[str, str] = {}
        self._pending: deque[Node] = deque()
        self._tip: str | None = None
        self._run_over = False
        self.followed = 0  # nodes so far
        self.ended = False
        session.recorder.on_append = self._on_append
        session.run.subscribe(self._on_event)

    def wake_by(self, wake: Callable[[], object]) -> None:
        """Have `wake` called, on any thread, whenever `take` may have something; also once now."""
        self._wake = wake
        wake()

    def end(self) -> None:
        """The run is over: whatever is left can be shown."""
        self._run_over = True
        self._wake()

    def take(self, of: str | None) -> Iterator[Chunk]:
        """What can be shown now: of the program's path, or of all calls of one name."""
        run_over = self._run_over
        self._sort_appended(of)
        yield from self._in_order() if of is None else self._as_it_comes()
        self.ended = run_over

    def _on_append(self, nodes: Sequence[Node]) -> None:
        self._appended.extend(nodes)
        self._wake()

    def _on_event(self, event: Event) -> None:
        if event.kind == "text":
            self._arrived.setdefault(event.node_id, deque()).append(event.text)
        self._wake()

    def _sort_appended(self, of: str | None) -> None:
        while self._appended:
            node = self._appended.popleft()
            if of is not None:
                if isinstance(node, (Gen, Select)) and node.name == of:
                    self._follow(node)
            elif node.branch is None and node.context == self._tip:
                self._tip = node.id
                if node.kind not in SILENT:
                    self._follow(node)

    def _follow(self, node: Node) -> None:
        self._pending.append(node)
        self.followed += 1
        self._session.run.value(node.id).add_done_callback(lambda _: self._wake())

    def _in_order(self) -> Iterator[Chunk]:
        while self._pending:
            ended, text = self._news(self._pending[0])
            if text:
                yield Chunk(text, self._pending[0])
            if not ended:
                return
            self._pending.popleft()

    def _as_it_comes(self) -> Iterator[Chunk]:
        for _ in range(len(self._pending)):
            node = self._pending.popleft()
            ended, text = self._news(node)
            if not ended:
                self._pending.append(node)
            if text:
                yield Chunk(text, node)

    def _news(self, node: Node) -> tuple[bool, str]:
        """(whether the node has ended, its text that was not shown yet)."""
        future = self._session.run.value(node.id)
        ended = future.done()
        shown = self._shown.get(node.id, "")
        if ended and not future.cancelled() and future.exception() is None:
            full = future.result().text
            return True, full[len(shown) :] if full.startswith(shown) else ""
        arrived = self._arrived.get(node.id, deque())
        fresh = "".join(arrived.popleft() for _ in range(len(arrived)))
        self._shown[node.id] = shown + fresh
        return ended, fresh
