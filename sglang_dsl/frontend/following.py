"""A run's text as it is written, read from its beginning at any time: of the program's own path, or of one name."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from queue import SimpleQueue
from typing import Any

from ..errors import UnknownNameError
from ..ir.execution import Event
from ..ir.nodes import Gen, Node, Select
from ..ir.path_text import PathText, Torn
from .session import Session
from .transcript import SILENT

REPLACED = "\ufffd"


class Chunk(str):
    """A piece of streamed text. `node`: what wrote it."""

    __slots__ = ("node",)

    node: Node

    def __new__(cls, text: str, node: Node) -> Chunk:
        """A string that knows its node."""
        chunk = super().__new__(cls, text)
        chunk.node = node
        return chunk


class Following:
    """One reading of a run's text, to be iterated once: with `for` or `async for`. It begins with the first word however late
    the reader comes; when the text ends, the run's failure, if any, is raised.

    Args:
        when_done: calls its argument once the run has ended. check: raises the run's failure.
        of: only what calls of this name write, in all branches, as it comes.
    """

    def __init__(
        self,
        session: Session[Any],
        *,
        when_done: Callable[[Callable[[], object]], None],
        check: Callable[[], object],
        of: str | None,
    ) -> None:
        self._session = session
        self._when_done = when_done
        self._check = check
        self._of = of
        self.ended = False

    def __iter__(self) -> Iterator[Chunk]:
        woken: SimpleQueue[None] = SimpleQueue()
        follower = Follower(self._session)
        self._begin(follower, lambda: woken.put(None))
        try:
            while not follower.ended:
                woken.get()
                yield from follower.take(self._of)
            self._end(follower)
        finally:
            follower.close()

    async def __aiter__(self) -> AsyncGenerator[Chunk, None]:
        import asyncio

        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(woken.set)
            except RuntimeError:  # the loop was closed: this reader is gone, and the others read on
                follower.close()

        follower = Follower(self._session)
        self._begin(follower, wake)
        try:
            while not follower.ended:
                await woken.wait()
                woken.clear()
                for chunk in follower.take(self._of):
                    yield chunk
            self._end(follower)
        finally:
            follower.close()

    def _begin(self, follower: Follower, wake: Callable[[], object]) -> None:
        follower.wake_by(wake)
        self._when_done(follower.end)

    def _end(self, follower: Follower) -> None:
        """Raise the run's failure, or UnknownNameError where no call had the name that was followed."""
        self.ended = True
        self._check()
        if self._of is not None and not follower.followed:
            raise UnknownNameError(
                f"no call of {self._session.recorder.graph.name} was named {self._of!r}",
                hint="follow the name of a gen or select",
            )


class Follower:
    """Turns a run's nodes and events, from the beginning, into text that can be shown. They come on the runtime's and the
    body's threads; `take` is called by the one reader. `close` when it leaves.

    The program's path is shown node after node: text that comes for a later node waits for those before it.
    """

    def __init__(self, session: Session[Any]) -> None:
        self._session = session
        self._wake: Callable[[], object] = lambda: None
        self._sorted = 0  # nodes of the recorder that were looked at
        self._arrived: dict[str, deque[str]] = {}
        self._shown: dict[str, str] = {}
        self._pending: deque[Node] = deque()
        self._half = (
            b""  # bytes of a character at the end of what was shown, whose other bytes may come; not shown themselves
        )
        self._held = ""  # of the node whose turn it is: what may be a part of such a character
        self._begun = False  # whether anything of that node was let go
        self._tip: str | None = None
        self._run_over = False
        self.followed = 0  # nodes so far
        self.ended = False
        session.recorder.follow(self._on_append)
        self._unsubscribe = session.run.subscribe(self._on_event, replay=True)

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
        if run_over and self._half:
            yield Chunk(REPLACED, self._session.recorder.graph[self._tip or ""])
        self.ended = run_over

    def close(self) -> None:
        """Nobody reads any more."""
        self._unsubscribe()
        self._session.recorder.unfollow(self._on_append)
        self._wake = lambda: None

    def _on_append(self) -> None:
        self._wake()

    def _on_event(self, event: Event) -> None:
        if event.kind == "text":
            self._arrived.setdefault(event.node_id, deque()).append(event.text)
        self._wake()

    def _sort_appended(self, of: str | None) -> None:
        appended = self._session.recorder.appended
        while self._sorted < len(appended):
            node = appended[self._sorted]
            self._sorted += 1
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
            node = self._pending[0]
            ended, text = self._news(node)
            if text := self._as_one(node, text, ended=ended):
                yield Chunk(text, node)
            if not ended:
                return
            self._pending.popleft()

    def _as_one(self, node: Node, text: str, *, ended: bool) -> str:
        """More text of the node whose turn it is, as what may be shown: half a character at its end waits for what comes next, and
        the halves of one are one (`PathText`).
        """
        text, self._held = self._held + text, ""
        if not ended:
            if self._half and not self._begun and text[:1] in ("", REPLACED):
                self._held = text
                return ""
            if text.endswith(REPLACED):
                text, self._held = text[:-1], REPLACED
            return self._let_go(text, None)
        text = self._let_go(text, self._torn(node))
        self._begun = False
        return text

    def _let_go(self, text: str, torn: Torn | None) -> str:
        if not text:
            return ""
        if self._begun and torn is not None:
            torn = Torn(b"", torn.tail)
        said = PathText(REPLACED if self._half else "", self._half)
        said.add(text, torn)
        self._begun, self._half = True, said.half
        return said.text[:-1] if said.half else said.text

    def _torn(self, node: Node) -> Torn | None:
        future = self._session.run.value(node.id)
        return None if future.cancelled() or future.exception() is not None else future.result().torn

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
