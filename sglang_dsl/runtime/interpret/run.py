"""The Run: what the frontend sees of the interpreter, what each kind of node does in it, and the record that it leaves.

`KINDS` is the interpreter on one page: which function checks a node when it is taken, and which begins it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from ...errors import CancelledError, DslError, GraphError, RunError
from ...ir.execution import Event, Outcome, RunSpec, RunSummary
from ...ir.graph import Graph
from ...ir.nodes import (
    Break,
    Fork,
    Gen,
    Input,
    Join,
    Loop,
    Map,
    Node,
    Return,
    RoleBegin,
    RoleEnd,
    Select,
    Switch,
    Text,
    ToolNode,
)
from ...ir.record import RunRecord, plain_options
from .branches import (
    begin_fork,
    begin_join,
    begin_loop,
    begin_map,
    begin_switch,
    check_fork,
    check_join,
    check_region,
)
from .calls import begin_gen, begin_select, check_gen, check_select
from .entries import last_of, text_up_to
from .machine import KindHandlers, Machine
from .prompts import TargetPrompts
from .target import Target
from .texts import begin_input, begin_return, begin_role, begin_text, check_input, check_role, check_text, refuse_break
from .tools import begin_tool, calling, check_tool, waits_for_itself
from .user_code import here

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


KINDS = KindHandlers(
    check={
        Text: check_text,
        RoleBegin: check_role,
        Gen: check_gen,
        Select: check_select,
        Fork: check_fork,
        Join: check_join,
        ToolNode: check_tool,
        Switch: check_region,
        Loop: check_region,
        Map: check_region,
        Input: check_input,
        Break: refuse_break,
    },
    begin={
        Text: begin_text,
        RoleBegin: begin_role,
        RoleEnd: begin_role,
        Gen: begin_gen,
        Select: begin_select,
        Fork: begin_fork,
        Join: begin_join,
        ToolNode: begin_tool,
        Switch: begin_switch,
        Loop: begin_loop,
        Map: begin_map,
        Input: begin_input,
        Return: begin_return,
    },
)


PACKAGE = "sglang-dsl"


def record_of(machine: Machine) -> RunRecord:
    """The record of a run as far as it has come. Nodes of sub-graphs are in outcomes and errors under their run ids."""
    entries = machine.entries.values()
    return RunRecord(
        program=machine.spec.program,
        seed=machine.seed,
        graph=Graph((e.node for e in entries if e.scope is machine.root), name=machine.spec.program).freeze(),
        outcomes={entry.id: entry.outcome for entry in entries if entry.outcome is not None},
        errors={entry.id: entry.error for entry in entries if entry.error is not None},
        usage=machine.totals.so_far(machine.now()),
        error=machine.error,
        options=plain_options(machine.spec.options),
        versions=_versions(machine),
    )


def _versions(machine: Machine) -> dict[str, str]:
    """Of this package, and of the weights of each model that was called."""
    metas = (e.outcome.meta for e in machine.entries.values() if e.outcome is not None and e.outcome.meta is not None)
    weights = {meta.model: meta.weight_version for meta in metas if meta.model}
    try:
        return {PACKAGE: version(PACKAGE), **weights}
    except PackageNotFoundError:  # run from a source tree that is not installed
        return weights


class InterpretedRun:
    """Implements `ir.execution.Run` over Targets: event-driven, one lock, no thread of its own.

    The body's thread goes on in `extend`, the engine's thread in the sinks; whichever makes nodes ready submits them.
    Where `extend` raises, none of its nodes is taken; but a call that turns out not to fit only when its prompt is put
    together is there, as a failed one.

    Args:
        targets: by alias; None is the default model.
        share_equal: whether calls that ask for equal work (see `requests.py`) are one.
    """

    def __init__(self, spec: RunSpec, targets: Mapping[str | None, Target], *, share_equal: bool = True) -> None:
        _give_way()
        models = {alias: TargetPrompts(target, spec.options.namespace) for alias, target in targets.items()}
        self._machine = Machine(spec, models, KINDS, share_equal=share_equal)
        self._summary: Future[RunSummary] = Future()
        self._summary.set_running_or_notify_cancel()
        self._closed = False
        self._cancelled: DslError | None = None  # why it was closed, if not by `seal`
        self._machine.on_idle = self._finish

    @property
    def id(self) -> str:
        """Unique among all runs."""
        return self._machine.run_id

    @property
    def seed(self) -> int:
        """The run's seed, given or drawn."""
        return self._machine.seed

    def extend(self, nodes: Sequence[Node]) -> None:
        """Take appended nodes. Never waits for a model."""
        with self._machine.turn():
            if self._closed:
                sealed = RunError("the run is sealed: its program has returned", hint="append before the program ends")
                raise self._cancelled or sealed
            self._machine.body_goes_on = True
            taken = self._machine.take(nodes, self._machine.root)
            self._machine.settle()
            # joins and returns that failed at once fail when they are read
            failures = (e.error for e in taken if e.status == "failed" and not isinstance(e.node, (Join, Return)))
            failure = next(failures, None)
        if failure is not None:
            raise failure

    def register(self, key: str, function: Callable[..., Any]) -> None:
        """Add a Python callable (tool, join key, validator) that nodes appended later name by `key`."""
        with self._machine.turn():
            self._machine.registry[key] = function

    def await_on(self, loop: AbstractEventLoop) -> None:
        """The program is a coroutine of this event loop: what registered callables give to be awaited is awaited there."""
        with self._machine.turn():
            self._machine.user_code.await_on(loop)

    def value(self, node_id: str) -> Future[Outcome]:
        """See `Run`. Nodes of sub-graphs are there once their region has begun. What would wait for itself has failed.

        Raises:
            GraphError: no such node was appended.
        """
        _give_way()
        with self._machine.turn():
            entry = self._machine.entries.get(node_id)
            if entry is None:
                raise GraphError(f"node {node_id!r} was not appended to this run")
            caller = calling.get()
            if caller is None or self._machine.entries.get(caller.id) is not caller:  # the program's own body asks
                self._machine.body_rests()
            elif (error := waits_for_itself(caller, entry)) is not None:
                never: Future[Outcome] = Future()
                never.set_exception(error)
                return never
            return self._machine.future(entry)

    def cancel(self, node_ids: Sequence[str] | None = None, reason: str = "") -> None:
        """Cancel these nodes and all that lies below them in context; None: the whole run. Finished results stay.

        Unknown and ended nodes are left alone.
        """
        with self._machine.turn():
            if node_ids is None:
                self._cancel_all(reason)
                return
            for node_id in node_ids:
                if (entry := self._machine.entries.get(node_id)) is not None:
                    self._machine.cancel(entry, reason)

    def seal(self) -> Future[RunSummary]:
        """Say that no more nodes come. The future resolves when every live node has ended (never raises a node's error).

        Sealing again returns the same future.
        """
        with self._machine.turn():
            if not self._closed:
                self._closed = True
                self._machine.seal()
        return self._summary

    def record(self) -> RunRecord:
        """What the run has left behind so far: all of it, once the future of `seal` has resolved."""
        with self._machine.turn():
            return record_of(self._machine)

    def events(self) -> Iterator[Event]:
        """All events from the beginning, then live ones, ending after "run_finished". Any number of readers."""
        return self._machine.events.read()

    def subscribe(self, listener: Callable[[Event], None], *, replay: bool = False) -> Callable[[], None]:
        """Call `listener` for each event from now on, on the runtime's thread: it must return fast and not raise."""
        return self._machine.events.subscribe(listener, replay=replay)

    def _cancel_all(self, reason: str) -> None:
        error = CancelledError("the run was cancelled" + (f": {reason}" if reason else ""))
        self._machine.error = self._machine.error or error
        self._machine.cancel_all(reason or "the run was cancelled")
        if not self._closed:
            self._closed, self._cancelled = True, error
            self._machine.seal()

    def _finish(self) -> None:
        """The last entry of a sealed run has ended."""
        machine = self._machine
        own = [entry for entry in machine.entries.values() if entry.scope.outer is None]
        summary = RunSummary(
            usage=machine.totals.so_far(machine.now()),
            seed=machine.seed,
            error=machine.error,
            text=text_up_to(last_of(own)),
        )
        machine.defer(partial(self._summary.set_result, summary))
        machine.emit(Event(kind="run_finished", error=machine.error, at_s=machine.now()))


def _give_way() -> None:
    """Called where user code is about to wait for a run. If it is on a worker's thread, its place goes to the next call: so a
    judge never keeps others from being asked, and programs that call each other cannot wait for each other's workers.
    """
    leave: Callable[[], None] | None = getattr(here, "leave", None)
    if leave is not None:
        leave()
