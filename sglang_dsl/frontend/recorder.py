"""The seam inside the frontend: a State talks to a Recorder, which is a live run or a tracer.

    State, Branches  -- append(nodes), register --> Recorder --> ir/execution.Run      (LiveRecorder, here)
    s[x], s.text     <-- read(bound), text ----                  Graph + Abstract      (Tracer, in tracing/tracer.py)

A recorder owns the graph that grows. Everything that differs between running and tracing goes through its methods:

    append      nodes of one statement, already complete; raises what the border can see, and then nothing has happened
    pieces      a string that crosses the border into text (a tracer finds the tags of abstract values in it)
    expression  a Python value that crosses the border as data: return values; `arguments` those of a tool
    read        the value of something bound: waits for it, or is an abstract value
    switch, loop, map    run an arm or a body on real values, or record it as a sub-graph

`switch`, `loop` and `map` in a run: plain Python control flow that the graph knows about.

The arm or body runs here and now, on real values; its nodes note in `control` which value decided that they run. A tracer
records the same calls as Switch, Loop and Map nodes with sub-graphs instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from inspect import iscoroutine, iscoroutinefunction
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import DeadlineError, Origin, ProgramError, SpecError, UnresolvedError
from ..ir.execution import Outcome, Run, on_loop
from ..ir.graph import Graph
from ..ir.nodes import Constant, DictOf, Expression, Node, Objects, Piece, Plain
from ..ir.semantics import same
from ..ir.specs import DEFAULT_MAX_DEPTH
from .bindings import Bound
from .call_sites import Site, Sites, caller_origin
from .data import Find, Template, argument_of_value, data_of_value
from .greenlets import wait

if TYPE_CHECKING:
    from .tools import Tool


Body = Callable[[Any], Any]


class Deciding(Protocol):
    """What of a line a decision touches."""

    control: tuple[str, ...]


def run_switch(
    state: Any, line: Deciding, bound: Bound, value: Any, arms: Mapping[Any, Body], default: Body | None, site: Site
) -> Any:
    """Run the arm of `value`. Raises ProgramError where no arm takes it."""
    body = _arm_of(value, arms, default)
    if body is None:
        raise ProgramError(
            f"no arm of the switch takes {value!r}; arms: {', '.join(map(repr, arms))}",
            hint="add the arm, or default=",
            origin=site.origin,
        )
    with decided_by(line, bound):
        return no_coroutine(body(state), "an arm of the switch", site.origin)


def run_loop(
    state: Any,
    line: Deciding,
    body: Body,
    until: Callable[[], Bound] | None,
    stop: Callable[[], bool],
    limit: int,
    site: Site,
) -> Any:
    """Repeat `body` at most `limit` times, until `stop()` after one of them; gives what the last one returned."""
    before = line.control
    result = None
    try:
        for iteration in range(limit):
            result = no_coroutine(body(state), "the body of the loop", site.origin)
            if until is not None and iteration + 1 < limit:
                if stop():
                    break
                line.control = _with(before, until())
    finally:
        line.control = before
    return result


def run_map(branches: Any, items: Sequence[Any], body: Callable[[Any, Any], Any]) -> Any:
    """`body(branch, item)` for each, concurrently; an awaitable of what they give where the body is `async def`."""
    if not is_async(body):
        return branches.map(lambda branch: body(branch, items[branch.index]))

    async def one(branch: Any) -> Any:
        return await body(branch, items[branch.index])

    return branches.map(one)


async def given(value: Any) -> Any:
    """A value that is there already, to be awaited like the results of `async def` bodies."""
    return value


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


@contextmanager
def decided_by(line: Deciding, bound: Bound) -> Iterator[None]:
    """What is appended inside runs because of the value of `bound`."""
    before = line.control
    line.control = _with(before, bound)
    try:
        yield
    finally:
        line.control = before


def _with(control: tuple[str, ...], bound: Bound) -> tuple[str, ...]:
    return (*control, bound.node_id) if bound.node_id else control


def _arm_of(value: Any, arms: Mapping[Any, Body], default: Body | None) -> Body | None:
    """The body for a value, by the rule of the graph."""
    return next((body for key, body in arms.items() if same(key, value)), default)


def check_limit(limit: int, site: Site) -> None:
    """Raise SpecError unless `limit` is a whole number above 0."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise SpecError(f"limit={limit!r} is not a whole number above 0", hint="limit=5", origin=site.origin)


class Recorder(Protocol):
    """What a State needs of whoever takes its nodes."""

    graph: Graph
    sites: Sites
    tracing: bool
    asynchronous: bool
    max_depth: int
    sampling: Mapping[str, Any]

    def append(self, nodes: Sequence[Node]) -> None:
        """Take the nodes of one statement. Raises what the border can see; then nothing was appended."""

    def register(self, key: str, function: Callable[..., Any]) -> str:
        """Make a Python callable known. Returns the key to name it by (`key`, made unique)."""

    def pieces(self, text: str) -> tuple[Piece, ...]:
        """A string as pieces of a Text node."""

    def expression(self, value: Any, find: Find, origin: Origin) -> Expression:
        """A Python value as an expression; `find` says what handles in it stand for. Raises ProgramError where it is not data."""

    def arguments(
        self, tool: Tool[..., Any], given: Mapping[str, Any], find: Find, origin: Origin
    ) -> tuple[DictOf, Objects | None]:
        """The arguments of a tool for the graph, and as the objects that they are where the graph does not say it all."""

    def read(self, bound: Bound, timeout_s: float | None = None) -> Any:
        """The value of what is bound. Raises the cause where it failed; DeadlineError after `timeout_s`."""

    async def aread(self, bound: Bound) -> Any:
        """Like `read`, for async bodies: waits without blocking the loop."""

    def future(self, node_id: str) -> Future[Outcome] | None:
        """Where a node's outcome will be, if it will be anywhere."""

    def is_finished(self, node_id: str) -> bool:
        """Whether a node has its outcome, without a failure."""

    def outcome(self, node_id: str) -> Outcome:
        """What a node resolved to; waits like `read`."""

    def switch(self, state: Any, bound: Bound, arms: Mapping[Any, Body], default: Body | None, site: Site) -> Any:
        """See `State.switch`. Raises ProgramError where no arm takes the value."""

    def loop(self, state: Any, body: Body, until: Any, stop_value: Any, limit: int, site: Site) -> Any:
        """See `State.loop`."""

    def map(self, state: Any, items: Sequence[Any], body: Callable[[Any, Any], Any], site: Site) -> Any:
        """See `State.map`."""

    def in_turn(self, bodies: Sequence[Callable[[], Any]]) -> list[tuple[Any, Exception | None]]:
        """Call the bodies of branches one after the other, where nothing ever waits; each gives (value, None) or (None, error)."""

    def cancel(self, node_ids: Sequence[str] | None, reason: str) -> None:
        """Cancel nodes and what lies below them; None: everything."""


_SCALARS = frozenset({str, int, float, bool, type(None)})  # most arguments: nothing is mentioned in them


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
        sites: Sites,
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
            if type(value) in _SCALARS and tool.hints.get(name, Any) in (type(value), Any):
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

    def read(self, bound: Bound, timeout_s: float | None = None) -> Any:
        """Wait for the node and convert."""
        return bound.finish(self._wait(bound.node_id, bound, timeout_s))

    async def aread(self, bound: Bound) -> Any:
        """Await the node and convert."""

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

    def switch(self, state: Any, bound: Bound, arms: Mapping[Any, Body], default: Body | None, site: Site) -> Any:
        """Wait for the value and run its arm."""
        return run_switch(state, state._cursor.line, bound, state._value(bound), arms, default, site)

    def loop(self, state: Any, body: Body, until: Any, stop_value: Any, limit: int, site: Site) -> Any:
        """Run the body, wait for what decides, and so on."""
        decider = None if until is None else lambda: state._find(until)
        return run_loop(state, state._cursor.line, body, decider, lambda: same(state[until], stop_value), limit, site)

    def map(self, state: Any, items: Sequence[Any], body: Callable[[Any, Any], Any], site: Site) -> Any:
        """Fork, and run the bodies concurrently."""
        if not len(items):
            return given([]) if is_async(body) else []
        return run_map(state._fork(len(items), site), items, body)

    def in_turn(self, bodies: Sequence[Callable[[], Any]]) -> list[tuple[Any, Exception | None]]:
        """Each by itself."""
        return [ended(body) for body in bodies]

    def cancel(self, node_ids: Sequence[str] | None, reason: str) -> None:
        """Pass it on."""
        self.run.cancel(node_ids, reason)

    def _wait(self, node_id: str, bound: Bound | None, timeout_s: float | None) -> Outcome:
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


def ended(body: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What a branch's body gives, called in a context of its own."""
    try:
        return copy_context().run(body), None
    except Exception as error:  # noqa: BLE001  a body's error is its result; the map raises it
        return None, error


def _label(node_id: str, bound: Bound | None) -> str:
    return node_id if bound is None else bound.label


def no_text(value: object, origin: Origin) -> ProgramError:
    """The error for something that was appended and is no text."""
    kind = type(value).__name__
    if iscoroutine(value):
        value.close()
        hint = "an `async def` was called without `await`: s += await f()"
    elif value is None:
        hint = "append a string; a function that returns nothing was called here, perhaps"
    elif isinstance(value, (bool, int, float)):
        hint = f"s += str({value!r}), or an f-string with the format you want"
    elif kind == "State":
        hint = "append text or calls; a branch's text joins its parent with branches.concat()"
    elif kind == "Branches":
        hint = "append to the branches, then branches.join(x)"
    else:
        hint = "s += json.dumps(value), or an f-string"
    return ProgramError(
        f"{_short(value)} is not text or a call{'' if value is None else f' (its type is {kind})'}",
        hint=hint,
        origin=origin,
    )


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
