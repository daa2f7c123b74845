"""Exact replay of a run from its record: every node gives what it gave, with no model, tool or clock."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from ....errors import CancelledError, CassetteError, GraphError, RunError
from ....ir.codec import encode_node
from ....ir.execution import ConstraintReport, Event, Meter, Outcome, Run, RunSpec, RunSummary, Segment
from ....ir.nodes import Node
from ....ir.record import RunRecord
from ....ir.specs import ConstraintSpec
from ...constrain.compile import audit
from ...interpret.events import EventLog


class RecordedExecutor:
    """Implements `Executor` over one record. The program has to append the nodes it appended then."""

    def __init__(self, record: RunRecord) -> None:
        self.name = f"replay of {record.program}"
        self._record = record

    def open(self, spec: RunSpec) -> Run:
        """Begin the replay; options but the registry do not matter."""
        return RecordedRun(self._record)

    def meter(self) -> Meter:
        """There is no model to ask: only words are counted."""
        return RecordedMeter(self._record)

    def close(self) -> None:
        """Nothing to release."""


class RecordedRun:
    """Implements `Run`: a node resolves when it is appended."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._futures: dict[str, Future[Outcome]] = {}
        self._events = EventLog()
        self._summary: Future[RunSummary] = Future()
        self._closed: RunError | None = None

    @property
    def seed(self) -> int:
        """See `Run`."""
        return self._record.seed

    def extend(self, nodes: Sequence[Node]) -> None:
        """See `Run`.

        Raises:
            CassetteError: the program appends something else than it did when the record was made.
        """
        if self._closed is not None:
            raise self._closed
        for node in nodes:
            self._check(node)
        for node in nodes:
            self._resolve(node.id)
            if (error := self._futures[node.id].exception()) is not None and node.kind not in ("join", "return"):
                self._raise_if_context_failed(node, error)

    def register(self, key: str, function: Callable[..., Any]) -> None:
        """See `Run`: nothing is called."""

    def await_on(self, loop: AbstractEventLoop) -> None:
        """See `Run`: nothing is awaited."""

    def value(self, node_id: str) -> Future[Outcome]:
        """See `Run`. Raises GraphError for a node that was not appended."""
        if node_id not in self._futures:
            self._resolve(node_id)
        return self._futures[node_id]

    def cancel(self, node_ids: Sequence[str] | None = None, reason: str = "") -> None:
        """See `Run`: what was cancelled then is so already."""
        if node_ids is None:
            self._closed = self._closed or CancelledError("the run was cancelled" + (f": {reason}" if reason else ""))
            self._end()

    def seal(self) -> Future[RunSummary]:
        """See `Run`."""
        self._closed = self._closed or RunError("the run is sealed: its program has returned")
        self._end()
        return self._summary

    def record(self) -> RunRecord:
        """The record that is replayed."""
        return self._record

    def events(self) -> Iterator[Event]:
        """See `Run`."""
        return self._events.read()

    def subscribe(self, listener: Callable[[Event], None], *, replay: bool = False) -> Callable[[], None]:
        """See `Run`."""
        return self._events.subscribe(listener, replay=replay)

    def _check(self, node: Node) -> None:
        if node.id not in self._record.graph:
            raise CassetteError(
                f"node {node.id!r} is not in the record: the program has changed since", origin=node.origin
            )
        if not _same(self._record.graph[node.id], node):
            raise CassetteError(
                f"node {node.id!r} differs from the recorded one: it is {node}, recorded was "
                f"{self._record.graph[node.id]}",
                hint="replay with the program and arguments that were recorded",
                origin=node.origin,
            )

    def _resolve(self, node_id: str) -> None:
        outcome, error = self._record.outcomes.get(node_id), self._record.errors.get(node_id)
        if outcome is None and error is None:
            raise GraphError(f"node {node_id!r} has neither a value nor an error in the record")
        future = self._futures[node_id] = Future()
        if error is not None:
            future.set_exception(error)
            self._emit(Event(kind="failed", node_id=node_id, error=error))
        elif outcome is not None:
            if outcome.meta is not None and outcome.text:
                self._emit(Event(kind="text", node_id=node_id, text=outcome.text))
            future.set_result(outcome)
            self._emit(Event(kind="finished", node_id=node_id, outcome=outcome))

    def _raise_if_context_failed(self, node: Node, error: BaseException) -> None:
        """Appending after a failure raises its cause, as it did then."""
        before = self._futures.get(node.context or "")
        if before is not None and before.exception() is not None:
            raise error

    def _emit(self, event: Event) -> None:
        for listener in self._events.append(event):
            listener(event)

    def _end(self) -> None:
        if not self._summary.done():
            record = self._record
            self._summary.set_result(RunSummary(usage=record.usage, seed=record.seed, error=record.error))
            self._emit(Event(kind="run_finished", error=record.error))


def _same(recorded: Node, node: Node) -> bool:
    """Whether a node is the recorded one, or would be stored as it is: a run holds objects where a record has JSON."""
    return recorded == node or (
        recorded.kind == node.kind == "tool"
        and encode_node(recorded, origins=False) == encode_node(node, origins=False)
    )


class RecordedMeter:
    """Implements `Meter` without a model: words stand for tokens."""

    context_tokens = 0
    kv_bytes_per_token = 0

    def __init__(self, record: RunRecord) -> None:
        self.model = f"record of {record.program}"

    def render(self, path: Sequence[Node], values: Mapping[str, str]) -> tuple[Segment, ...]:
        """See `Meter`: the known texts."""
        return tuple(Segment(node_id=node.id, text=values[node.id]) for node in path if node.id in values)

    def count(self, text: str) -> int:
        """See `Meter`."""
        return len(text.split())

    def seam(self, before: str, after: str) -> str:
        """See `Meter`. Words never merge."""
        return ""

    def audit(self, constraint: ConstraintSpec) -> ConstraintReport:
        """See `Meter`."""
        return audit(constraint)
