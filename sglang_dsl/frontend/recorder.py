"""A run as a program's Recorder: appends go to the Run, reads wait for it.

`switch` and `loop` in a run are plain Python control flow that the graph knows about: the arm or body runs here and now, on
real values, and its nodes note in `control` which value decided that they run. A trace records the same calls as nodes with
sub-graphs instead (`tracing/control_flow.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import DeadlineError, Origin, ProgramError, UnresolvedError
from ..ir.execution import Outcome, Run, on_loop
from ..ir.graph import Graph
from ..ir.nodes import Constant, DictOf, Expression, Node, Objects, Piece, Plain
from ..ir.semantics import same, taken_by
from ..ir.specs import DEFAULT_MAX_DEPTH
from .bindings import Find, LocalBinding, NodeBinding
from .call_sites import CallSite, CallSites, caller_origin
from .cursor import Body, Cursor, Line
from .data import Template, argument_of_value, data_of_value
from .expressions import Handle
from .greenlets import no_coroutine, run_concurrently, wait

if TYPE_CHECKING:
    from .tools import Tool


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
