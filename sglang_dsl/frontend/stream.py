"""A run's text as it is written, read from its beginning at any time: of the program's own path, or of one name.

A run under way: what `prog.start(...)` gives.

A run that begins when its text is first asked for.

A run in a notebook: the cell shows its text while it is written, and how it ended.
"""

from __future__ import annotations

import contextvars
import html
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextvars import copy_context
from importlib import import_module
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import DeadlineError, ProgramError, SpecError, UnknownNameError
from ..ir.execution import Event
from ..ir.nodes import Gen, Node, Select
from ..ir.outcome import PartialCharacters, PathText
from ..ir.specs import shown
from .cursor import SILENT
from .state import State

if TYPE_CHECKING:
    from .session import Result, Session

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


class TranscriptReader:
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
        follower = RunTranscript(self._session)
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

        follower = RunTranscript(self._session)
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

    def _begin(self, follower: RunTranscript, wake: Callable[[], object]) -> None:
        follower.wake_by(wake)
        self._when_done(follower.end)

    def _end(self, follower: RunTranscript) -> None:
        """Raise the run's failure, or UnknownNameError where no call had the name that was followed."""
        self.ended = True
        self._check()
        if self._of is not None and not follower.followed:
            raise UnknownNameError(
                f"no call of {self._session.recorder.graph.name} was named {self._of!r}",
                hint="follow the name of a gen or select",
            )


class RunTranscript:
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

    def _let_go(self, text: str, torn: PartialCharacters | None) -> str:
        if not text:
            return ""
        if self._begun and torn is not None:
            torn = PartialCharacters(b"", torn.tail)
        said = PathText(REPLACED if self._half else "", self._half)
        said.add(text, torn)
        self._begun, self._half = True, said.half
        return said.text[:-1] if said.half else said.text

    def _torn(self, node: Node) -> PartialCharacters | None:
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

    def stream(self, name: str | None = None) -> TranscriptReader:
        """The text from its beginning, for `for` or `async for`, whenever and however often it is asked for; with `name` what
        calls of that name write. Leaving it leaves the run alone.
        """
        return TranscriptReader(self._session, when_done=self._when_done, check=self.result, of=name)

    def _ipython_display_(self) -> None:
        """In a notebook: the text while it is written; the cell does not wait."""

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
        self._following: TranscriptReader | None = None

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

    def _follow(self) -> TranscriptReader:
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


EVERY_S = 0.1  # how often the cell is written anew
SHOWN_CHARACTERS = 20_000


def show_live(pieces: Iterable[str], ended: Any, name: str, *, wait: bool) -> None:
    """Show the text of a run in the cell that displays it, until the run has ended.

    Args:
        pieces: the text as it is written. ended: gives the run's Result, its failure in its `error`.
        wait: whether the cell waits for the end.
    """
    cell = import_module("IPython.display").display(_shown(name, "", "running"), raw=True, display_id=True)
    if wait:
        _follow(cell, pieces, ended, name)
    else:
        context = copy_context()  # a kernel knows by it which cell the output belongs to
        threading.Thread(target=context.run, args=(_follow, cell, pieces, ended, name), daemon=True).start()


def _follow(cell: Any, pieces: Iterable[str], ended: Any, name: str) -> None:
    text: list[str] = []
    written_s = 0.0
    try:
        for piece in pieces:
            text.append(piece)
            if time.monotonic() - written_s > EVERY_S:
                written_s = time.monotonic()
                cell.update(_shown(name, "".join(text), "running"), raw=True)
    except Exception:  # noqa: BLE001  the run's own failure: its Result has it
        pass
    cell.update(_shown(name, "".join(text), _how(ended())), raw=True)


def _how(result: Result[Any]) -> str:
    if result.error is not None:
        return f"failed: {type(result.error).__name__}: {getattr(result.error, 'what', result.error)}"
    usage = result.usage
    return f"{usage.calls} calls, {usage.generated_tokens:,} tokens generated in {usage.wall_s:.1f} s"


def _shown(name: str, text: str, how: str) -> dict[str, str]:
    shown = text[-SHOWN_CHARACTERS:]
    return {
        "text/html": f"<div><b>{html.escape(name)}</b> <i>{html.escape(how)}</i>"
        f"<pre style='white-space:pre-wrap'>{html.escape(shown)}</pre></div>",
        "text/plain": f"{name}: {how}\n{shown}",
    }
