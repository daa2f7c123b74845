"""The Run: what the frontend sees of the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ...errors import CancelledError, DslError, GraphError, RunError
from ...ir.execution import Event, Outcome, RunSpec, RunSummary
from ...ir.nodes import Join, Node, Return
from ...ir.record import RunRecord
from .entry import Entry
from .kinds import KINDS
from .leaving import record_of
from .machine import Machine
from .model import Model
from .regions import last_of, said_up_to
from .target import Target
from .user_calls import caller_of, waits_for_itself
from .user_code import give_way

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


class InterpretedRun:
    """Implements `ir.execution.Run` over Targets: event-driven, one lock, no thread of its own.

    The body's thread goes on in `extend`, the engine's thread in the sinks; whichever makes nodes ready submits them.
    Where `extend` raises, none of its nodes is taken; but a call that turns out not to fit only when its prompt is put
    together is there, as a failed one.

    Args:
        targets: by alias; None is the default model.
        share_equal: whether calls that ask for equal work (see `flight.py`) are one.
    """

    def __init__(self, spec: RunSpec, targets: Mapping[str | None, Target], *, share_equal: bool = True) -> None:
        give_way()
        models = {alias: Model(target, spec.options.namespace) for alias, target in targets.items()}
        self._machine = Machine(spec, models, KINDS, share_equal=share_equal)
        self._summary: Future[RunSummary] = Future()
        self._summary.set_running_or_notify_cancel()
        self._closed: DslError | None = None
        self._machine.on_idle = self._finish

    @property
    def id(self) -> str:
        """Unique among all runs."""
        return self._machine.run_id

    @property
    def seed(self) -> int:
        """See `Run`."""
        return self._machine.seed

    def extend(self, nodes: Sequence[Node]) -> None:
        """See `Run`."""
        with self._machine.turn():
            if self._closed is not None:
                raise self._closed
            self._machine.body_goes_on = True
            taken = self._machine.take(nodes, self._machine.root)
            self._machine.settle()
            failure = _failed_at_once(taken)
        if failure is not None:
            raise failure

    def register(self, key: str, function: Callable[..., Any]) -> None:
        """See `Run`."""
        with self._machine.turn():
            self._machine.registry[key] = function

    def await_on(self, loop: AbstractEventLoop) -> None:
        """See `Run`."""
        self._machine.user_code.await_on(loop)

    def value(self, node_id: str) -> Future[Outcome]:
        """See `Run`. Nodes of sub-graphs are there once their region has begun. What would wait for itself has failed.

        Raises:
            GraphError: no such node was appended.
        """
        give_way()
        with self._machine.turn():
            entry = self._machine.entries.get(node_id)
            if entry is None:
                raise GraphError(f"node {node_id!r} was not appended to this run")
            error = waits_for_itself(self._machine, entry)
            if error is not None:
                never: Future[Outcome] = Future()
                never.set_exception(error)
                return never
            if caller_of(self._machine) is None:
                self._machine.body_rests()
            return self._machine.future(entry)

    def cancel(self, node_ids: Sequence[str] | None = None, reason: str = "") -> None:
        """See `Run`. Unknown and ended nodes are left alone."""
        with self._machine.turn():
            if node_ids is None:
                self._cancel_all(reason)
                return
            for node_id in node_ids:
                if (entry := self._machine.entries.get(node_id)) is not None:
                    self._machine.cancel(entry, reason)

    def seal(self) -> Future[RunSummary]:
        """See `Run`. Sealing again returns the same future."""
        with self._machine.turn():
            self._close(RunError("the run is sealed: its program has returned", hint="append before the program ends"))
        return self._summary

    def record(self) -> RunRecord:
        """See `Run`."""
        with self._machine.turn():
            return record_of(self._machine)

    def events(self) -> Iterator[Event]:
        """See `Run`."""
        return self._machine.events.read()

    def subscribe(self, listener: Callable[[Event], None], *, replay: bool = False) -> Callable[[], None]:
        """See `Run`."""
        return self._machine.events.subscribe(listener, replay=replay)

    def _cancel_all(self, reason: str) -> None:
        error = CancelledError("the run was cancelled" + (f": {reason}" if reason else ""))
        self._machine.error = self._machine.error or error
        self._machine.cancel_all(reason or "the run was cancelled")
        self._close(error)

    def _close(self, error: DslError) -> None:
        if self._closed is None:
            self._closed = error
            self._machine.body_rests()
            self._machine.seal()

    def _finish(self) -> None:
        """The last entry of a sealed run has ended."""
        machine = self._machine
        own = [entry for entry in machine.entries.values() if entry.scope.outer is None]
        summary = RunSummary(
            usage=machine.tally.usage(machine.now()),
            seed=machine.seed,
            error=machine.error,
            text=said_up_to(last_of(own)).text,
        )
        machine.post(lambda: self._summary.set_result(summary))
        machine.emit(Event(kind="run_finished", error=machine.error, at_s=machine.now()))


def _failed_at_once(entries: Sequence[Entry]) -> Exception | None:
    """The error of an entry that failed in the turn that took it. Joins and returns fail when they are read."""
    for entry in entries:
        if entry.status == "failed" and not isinstance(entry.node, (Join, Return)):
            return entry.error
    return None
