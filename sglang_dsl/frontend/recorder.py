"""A run as a program's Recorder: appends go to the Run, reads wait for it.

`switch` and `loop` in a run are plain Python control flow that the graph knows about: the arm or body runs here and now, on
real values, and its nodes note in `control` which value decided that they run. A trace records the same calls as nodes with
sub-graphs instead (`tracing/control_flow.py`).

Bodies of branches on one thread: where one waits for a value, the next runs. And what a body may be.

A program has one thread. Outside `branches.map` a wait simply blocks it. Inside, each branch body is a greenlet of
that thread: where one waits, the next runs. A hub drives them; nested maps use the hub that is there.

    hub (the thread's own greenlet)  --switch-->  branch 0 .. waits for a future --switch--> hub --switch--> branch 1 ..
"""

from __future__ import annotations

import heapq
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import Context, copy_context
from inspect import iscoroutine, iscoroutinefunction
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import DeadlineError, Origin, ProgramError, UnresolvedError
from ..ir.execution import Outcome, Run, on_loop
from ..ir.graph import Graph
from ..ir.nodes import Constant, DictOf, Expression, Node, Objects, Piece, Plain
from ..ir.semantics import same, taken_by
from ..ir.specs import DEFAULT_MAX_DEPTH
from .bindings import LocalBinding, NodeBinding
from .call_sites import CallSite, CallSites, caller_origin
from .cursor import Body, Cursor, Line
from .data import Find, Template, argument_of_value, data_of_value
from .expressions import Handle

if TYPE_CHECKING:
    from greenlet import greenlet

    from .tools import Tool


T = TypeVar("T")
Thunk = Callable[[], Any]
LONG_STACK = 300  # frames; Python allows 1,000 in all
_UNSET = object()


def wait(future: Future[T], timeout_s: float | None = None) -> T:
    """The future's result. Ctrl-C interrupts the wait; inside `map` other branches run meanwhile.

    Raises:
        TimeoutError: nothing after `timeout_s`; else whatever the future holds.
    """
    if future.done():
        return future.result()
    hub = _hub_here()
    return future.result(timeout_s) if hub is None else hub.wait(future, timeout_s)


def run_concurrently(thunks: Sequence[Thunk], limit: int | None = None) -> list[tuple[Any, Exception | None]]:
    """Call all, at most `limit` of them begun and unfinished at a time; each gives (value, None) or (None, error)."""
    hub = _hub_here()
    if hub is not None:
        return hub.run_inside(thunks, limit)
    return Hub().run(thunks, limit)


def on_some_stack(thunk: Callable[[], T]) -> T:
    """Call it: here, or on a stack of its own where this one is long already, so that programs may call each other deeper than
    Python counts frames. What it raises and what it sets in context variables is as if it had been called here.
    """
    long = True
    try:
        sys._getframe(LONG_STACK)
    except ValueError:
        long = False
    if not long:
        return thunk()
    ended: list[tuple[Any, BaseException | None]] = []
    contexts: list[Context] = []

    def body() -> None:
        try:
            ended.append((thunk(), None))
        except Exception as error:  # noqa: BLE001  raised below, in the caller's frame
            ended.append((None, error))
        except BaseException as error:
            if type(error).__name__ == "GreenletExit":  # its hub ends it, and the caller with it
                raise
            ended.append((None, error))
        contexts.append(copy_context())

    run_concurrently([body])
    for variable, value in contexts[0].items():
        if variable.get(_UNSET) is not value:
            variable.set(value)
    value, error = ended[0]
    if error is not None:
        raise error
    found: T = value
    return found


def _hub_here() -> Hub | None:
    """The hub whose greenlet is running, if any; costs nothing in programs that never map."""
    module = sys.modules.get("greenlet")
    return None if module is None else getattr(module.getcurrent(), "hub", None)


class MapBodies:
    """The bodies of one `map`: what is to start, what has finished. Owner: the hub."""

    __slots__ = ("left", "on_end", "results", "waiting")

    def __init__(self, thunks: Sequence[Thunk], on_end: Callable[[], None]) -> None:
        self.left = len(thunks)
        self.results: list[tuple[Any, Exception | None]] = [(None, None)] * len(thunks)
        self.waiting: Iterator[tuple[int, Thunk]] = iter(enumerate(thunks))
        self.on_end = on_end


class Hub:
    """Drives the greenlets of one thread. Wakes come from other threads through `_ready`; all else is single-threaded."""

    def __init__(self) -> None:
        import greenlet as module

        self._module = module
        self._root = module.getcurrent()
        self._ready: SimpleQueue[greenlet] = SimpleQueue()
        self._deadlines: list[tuple[float, int, greenlet]] = []
        self._order = itertools.count()
        self._alive: set[greenlet] = set()

    def run(self, thunks: Sequence[Thunk], limit: int | None) -> list[tuple[Any, Exception | None]]:
        """Drive the bodies until all have ended. What is no Exception (Ctrl-C) ends the others and is raised."""
        group = MapBodies(thunks, on_end=lambda: None)
        try:
            self._start(group, limit)
            while group.left:
                self._switch(self._next())
        except BaseException:
            self._kill()
            raise
        return group.results

    def run_inside(self, thunks: Sequence[Thunk], limit: int | None) -> list[tuple[Any, Exception | None]]:
        """The same from inside a body: this one waits while the hub drives the new ones."""
        me = self._module.getcurrent()
        group = MapBodies(thunks, on_end=lambda: self._ready.put(me))
        self._start(group, limit)
        while group.left:
            self._root.switch()
        return group.results

    def wait(self, future: Future[T], timeout_s: float | None) -> T:
        """Let others run until the future is done."""
        me = self._module.getcurrent()
        future.add_done_callback(lambda _: self._ready.put(me))
        end = None if timeout_s is None else time.monotonic() + timeout_s
        if end is not None:
            heapq.heappush(self._deadlines, (end, next(self._order), me))
        while not future.done():
            if end is not None and time.monotonic() >= end:
                raise TimeoutError
            self._root.switch()
        return future.result()

    def _start(self, group: MapBodies, limit: int | None) -> None:
        for _ in range(group.left if limit is None else min(limit, group.left)):
            self._start_one(group)

    def _start_one(self, group: MapBodies) -> None:
        following = next(group.waiting, None)
        if following is None:
            return
        index, thunk = following
        body = self._module.greenlet(lambda: self._body(group, index, thunk), parent=self._root)
        body.hub = self
        body.gr_context = copy_context()
        self._alive.add(body)
        self._ready.put(body)

    def _body(self, group: MapBodies, index: int, thunk: Thunk) -> None:
        try:
            group.results[index] = (thunk(), None)
        except Exception as error:  # noqa: BLE001  a body's error is its result; the map raises it
            group.results[index] = (None, error)
        self._alive.discard(self._module.getcurrent())
        group.left -= 1
        self._start_one(group)
        if not group.left:
            group.on_end()

    def _next(self) -> greenlet:
        """The next greenlet to go on: woken, or past its deadline."""
        while self._deadlines:
            end, _, sleeper = self._deadlines[0]
            try:
                return self._ready.get(timeout=max(end - time.monotonic(), 0))
            except Empty:
                heapq.heappop(self._deadlines)
                return sleeper
        return self._ready.get()

    def _switch(self, body: greenlet) -> None:
        if not body.dead:  # a late wake of a body that has ended
            body.switch()

    def _kill(self) -> None:
        for body in list(self._alive):
            self._alive.discard(body)
            if not body.dead:
                body.throw(self._module.GreenletExit)


# --- what a body may be -----------------------------------------------------------------------------------------------


def is_async(function: object) -> bool:
    """Whether calling it gives a coroutine: an `async def`, also inside a partial or as `__call__`, or such a program."""
    called = getattr(type(function), "__call__", None)  # noqa: B004  that of its class is what a call calls
    return iscoroutinefunction(function) or iscoroutinefunction(called) or getattr(function, "asynchronous", 0) is True


DECIDE_HINT = (
    "give it a plain `def`; an `async def` program can await the value (`await s.get(x)`) and go on with `if` or `for`"
)
MAP_HINT = "give it a plain `def`; or let the program be `async def`, and `await` the map of an `async def` body"


def check_plain(function: object, what: str, origin: Origin, *, hint: str = DECIDE_HINT) -> None:
    """Raise ProgramError for an `async def` where a plain function is called."""
    if is_async(function):
        raise ProgramError(f"{what} is `async def`, and nobody would await it here", hint=hint, origin=origin)


def no_coroutine(value: Any, what: str, origin: Origin, *, hint: str = DECIDE_HINT) -> Any:
    """The value. Raises ProgramError for a coroutine that nobody would await."""
    if iscoroutine(value):
        value.close()
        raise ProgramError(f"{what} gave a coroutine, and nobody would await it here", hint=hint, origin=origin)
    return value


def run_switch(
    cursor: Cursor, bound: NodeBinding, value: Any, arms: Mapping[Any, Body], default: Body | None, site: CallSite
) -> Any:
    """Run the arm of `value`, by the rule of the graph. Raises ProgramError where no arm takes it."""
    bodies = [*arms.values(), *([] if default is None else [default])]
    taken = taken_by(value, [*((key,) for key in arms), None][: len(bodies)])
    if taken is None:
        raise ProgramError(
            f"no arm of the switch takes {value!r}; arms: {', '.join(map(repr, arms))}",
            hint="add the arm, or default=",
            origin=site.origin,
        )
    with decided_by(cursor.line, bound):
        return no_coroutine(bodies[taken](cursor), "an arm of the switch", site.origin)


@contextmanager
def decided_by(line: Line, bound: NodeBinding) -> Iterator[None]:
    """What is appended inside runs because of the value of `bound`."""
    before = line.control
    line.control = _with(before, bound)
    try:
        yield
    finally:
        line.control = before


def _with(control: tuple[str, ...], bound: NodeBinding) -> tuple[str, ...]:
    return (*control, bound.node_id) if bound.node_id else control


SCALARS = frozenset({str, int, float, bool, type(None)})  # most arguments: nothing is mentioned in them


class LiveRecorder:
    """Appends go to a Run and reads wait for it. Owner: one run's session."""

    tracing = False

    __slots__ = (
        "_followers",
        "_following",
        "_key_counts",
        "_keys",
        "_shown",
        "appended",
        "asynchronous",
        "graph",
        "max_depth",
        "run",
        "sampling",
        "sites",
    )

    def __init__(
        self,
        run: Run,
        graph: Graph,
        sites: CallSites,
        *,
        asynchronous: bool = False,
        max_depth: int = DEFAULT_MAX_DEPTH,
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        self.run = run
        self.max_depth = max_depth
        self.sampling = sampling or {}
        self.graph = graph
        self.sites = sites
        self.asynchronous = asynchronous
        self.appended: list[Node] = []  # only ever grows, so that other threads can read it
        self._followers: tuple[Callable[[], object], ...] = ()  # called when it has grown
        self._following = threading.Lock()
        self._keys: dict[Callable[..., Any], str] = {}
        self._key_counts: dict[str, int] = {}
        self._shown: list[BaseException] = []

    def has_shown(self, error: BaseException) -> bool:
        """Whether a read or an append has raised this failure in the program."""
        return any(shown is error for shown in self._shown)

    def append(self, nodes: Sequence[Node]) -> None:
        """Hand the nodes to the run, then keep them."""
        try:
            self.run.extend(nodes)
        except Exception as error:
            self._shown.append(error)
            raise
        self.graph.extend(nodes)
        self.appended += nodes
        for follower in self._followers:
            follower()

    def follow(self, follower: Callable[[], object]) -> None:
        """Call `follower`, which does not raise, on the body's thread whenever `appended` has grown. Any thread."""
        with self._following:
            self._followers += (follower,)

    def unfollow(self, follower: Callable[[], object]) -> None:
        """No longer. Any thread."""
        with self._following:
            self._followers = tuple(known for known in self._followers if known != follower)

    def register(self, key: str, function: Callable[..., Any]) -> str:
        """Two different functions of one key (lambdas, say) get different keys, in order of their first use."""
        known = self._keys.get(function)
        if known is None:
            count = self._key_counts[key] = self._key_counts.get(key, 0) + 1
            known = self._keys[function] = key if count == 1 else f"{key}#{count}"
            self.run.register(known, function)
        return known

    def pieces(self, text: str) -> tuple[Piece, ...]:
        """The text itself."""
        return (Plain(text),)

    def expression(self, value: Any, find: Find, origin: Origin) -> Expression:
        """Plain data."""
        return data_of_value(value, find, origin)

    def arguments(
        self, tool: Tool[..., Any], given: Mapping[str, Any], find: Find, origin: Origin
    ) -> tuple[DictOf, Objects | None]:
        """What is known already is converted now, so that a wrong argument fails at its line."""
        pairs: list[tuple[str, Expression]] = []
        typed: dict[str, Any] = {}
        same = True
        for name, value in given.items():
            if type(value) in SCALARS and tool.hints.get(name, Any) in (type(value), Any):
                typed[name] = value
                pairs.append((name, Constant(value)))
                continue
            expression = argument_of_value(value, find, origin)
            if isinstance(expression, Constant):
                typed[name] = tool.given(name, value, origin)
                if expression.to_json is not None:
                    expression = Constant(expression.value, tool.conversion(name).to_json)
                same = same and typed[name] is value
            else:
                typed[name], same = value, False
            pairs.append((name, expression))
        return DictOf(tuple(pairs)), None if same else Template(typed, find, origin)

    def read(self, bound: NodeBinding, timeout_s: float | None = None) -> Any:
        """Wait for the node and convert."""
        if isinstance(bound, LocalBinding):
            return bound.resolve(self.outcome)
        outcome = self._wait(bound.node_id, bound, timeout_s)
        return outcome.value if type(bound) is NodeBinding and bound.convert is None else bound.finish(outcome)

    async def aread(self, bound: NodeBinding) -> Any:
        """Await the node and convert."""
        if isinstance(bound, LocalBinding):
            return bound.resolve(self.outcome)
        try:
            outcome = await on_loop(self.run.value(bound.node_id))
        except Exception as error:
            self._shown.append(error)
            raise
        return bound.finish(outcome)

    def future(self, node_id: str) -> Future[Outcome]:
        """The run's."""
        return self.run.value(node_id)

    def is_finished(self, node_id: str) -> bool:
        """Whether the node's future holds an outcome."""
        future = self.run.value(node_id)
        return future.done() and not future.cancelled() and future.exception() is None

    def outcome(self, node_id: str) -> Outcome:
        """Wait for the node."""
        return self._wait(node_id, None, None)

    def switch(
        self, cursor: Cursor, bound: NodeBinding, arms: Mapping[Any, Body], default: Body | None, site: CallSite
    ) -> Any:
        """Wait for the value and run its arm."""
        return run_switch(cursor, bound, self.read(bound), arms, default, site)

    def loop(
        self, cursor: Cursor, body: Body, until: Handle[Any] | str | None, stop_value: Any, limit: int, site: CallSite
    ) -> Any:
        """Run the body, wait for what decides, and so on; gives what the last body returned."""
        line = cursor.line
        before = line.control
        result = None
        try:
            for iteration in range(limit):
                result = no_coroutine(body(cursor), "the body of the loop", site.origin)
                if until is not None and iteration + 1 < limit:
                    decider = cursor.find(until)
                    if same(self.read(decider), stop_value):
                        break
                    line.control = _with(before, decider)
        finally:
            line.control = before
        return result

    def map(self, cursor: Cursor, items: Any, body: Callable[[Cursor, Any], Any], site: CallSite) -> None:
        """Every list is known in a run."""

    def run_bodies(
        self, bodies: Sequence[Callable[[], Any]], concurrency: int | None
    ) -> list[tuple[Any, Exception | None]]:
        """Where one waits for a value, others go on."""
        return run_concurrently(bodies, concurrency)

    def cancel(self, node_ids: Sequence[str] | None, reason: str) -> None:
        """Pass it on."""
        self.run.cancel(node_ids, reason)

    def _wait(self, node_id: str, bound: NodeBinding | None, timeout_s: float | None) -> Outcome:
        future = self.run.value(node_id)
        if self.asynchronous and not future.done():
            raise UnresolvedError(
                f"{_label(node_id, bound)} was read in an async program before its value existed",
                hint="value = await s.get(x)",
                origin=caller_origin(),
            )
        try:
            return wait(future, timeout_s)
        except Exception as error:
            if not future.done() and isinstance(error, TimeoutError):
                what = f"{_label(node_id, bound)} had no value after {timeout_s} s"
                raise DeadlineError(what, hint="wait longer, or cancel the branch or run") from error
            self._shown.append(error)
            raise


def _label(node_id: str, bound: NodeBinding | None) -> str:
    return node_id if bound is None else bound.label
