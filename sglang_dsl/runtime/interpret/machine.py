"""The state machine of a run: which entries wait, begin, end; how ends and failures travel.

Signals between entries:

    context --placed--> its children        text up to here is known: they may be placed in turn
    value   --done----> who mentions it     data and control edges
    failure ----------> both, at once       the first cause, unchanged

All methods run inside a `turn`, under the run's one lock, and never wait. What has to happen outside is deferred to its end.
What a kind of node *does* stands in the other files of this folder; `run.py` lists them.
"""

from __future__ import annotations

import secrets
import threading
import uuid
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ...errors import BranchError, CancelledError, DslError, EngineClosedError, GraphError, RunError
from ...ir.execution import BatchItem, Event, EventKind, Outcome, RunSpec
from ...ir.nodes import Gen, Join, Node, RoleBegin, RoleEnd, data_of
from ...ir.semantics import Lookup
from ..schedule.request import BranchOrder, Lineage, Request, Sink
from .entries import (
    Entry,
    Leases,
    Scope,
    longest_path,
    passes_through,
)
from .events import Budget, CallbackQueue, EventLog, UsageTotals
from .target import Target
from .user_code import Alarm, UserCode

if TYPE_CHECKING:
    from .prompts import TargetPrompts

PATIENCE_S = 0.5  # how long a run that is over waits for requests that were cancelled to end

SEED_BITS = 63  # fits every generator's signed 64-bit seed

EXACTLY_FORESEEN = 64  # entries of a run up to which every new one is looked at before a call is sent

Begin: TypeAlias = "Callable[[Machine, Entry], None]"


class KindHandlers(NamedTuple):
    """Per node class: what to check when an entry is taken in (raises DslError), and what to do when it begins."""

    check: Mapping[type[Node], Begin]
    begin: Mapping[type[Node], Begin]


class Machine:
    """The entries of one run.

    Args:
        models: by alias; None is the default model.
        share_equal: whether calls that ask for equal work are one.
    """

    def __init__(
        self,
        spec: RunSpec,
        models: Mapping[str | None, TargetPrompts],
        kinds: KindHandlers,
        *,
        share_equal: bool = True,
    ) -> None:
        self.spec = spec
        self.run_id = uuid.uuid4().hex[:16]
        self.seed = secrets.randbits(SEED_BITS) if spec.options.seed is None else spec.options.seed
        self.models = models
        self.default = models[None]  # the model of calls that name none
        self.registry: dict[str, Callable[..., Any]] = dict(spec.registry)
        self.root = Scope()
        batch = spec.batch or BatchItem(self.run_id, 0, 1)
        self._lineage = Lineage(batch.batch_id, batch.index, batch.size)
        self.entries: dict[str, Entry] = {}
        self.events = EventLog()
        self.totals = UsageTotals()
        self.error: Exception | None = None
        self.unended = 0
        self._clock = self.default.target.now
        self._started_s = self._clock()
        self.budget = Budget(spec.options.deadline_s, spec.options.token_budget, self.now)
        self.share_equal = share_equal
        self._kinds = kinds
        self._lock = threading.Lock()
        self._deferred = CallbackQueue()
        self.defer = self._deferred.defer  # has something done outside the run's lock
        self._ready: deque[Entry] = deque()
        self._ended: deque[Entry] = deque()  # with watchers that are not told yet
        self._critical_tokens: dict[Entry, int] = {}  # what holds for the first `_foreseen` entries
        self._foreseen = 0
        # requests to submit together at the end of `settle`, each with who hears of it and the entries that wait for it
        self.requests: dict[Target, list[tuple[Request, Sink, Collection[Entry]]]] = {}
        self.equal_requests: dict[Hashable, Sink] = {}  # by the work that they are
        self.leases = Leases(self.defer)
        self.pure_calls: dict[tuple[str, Hashable], Entry] = {}  # (tool, what its arguments are)
        self._user_code: UserCode | None = None
        self.on_idle: Callable[[], None] = _nothing
        self.body_goes_on = (
            False  # it may append more, for all that is known: it has asked for nothing since it last did
        )
        self._at_rest: list[Callable[[], None]] = []
        self.in_flight = 0  # requests that have not ended: those of fallen entries, too
        self._patience: Alarm | None = None
        self._overdue = False
        self._sealed = False
        self._idle = False

    @property
    def user_code(self) -> UserCode:
        """Where tools, validators and the like are called; made when the first of them is."""
        if self._user_code is None:
            self._user_code = UserCode()
        return self._user_code

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the run's lock; at the end, let go on what can, and then do outside what was deferred."""
        try:
            with self._lock:
                yield
                self.settle()
                self._end_if_idle()
        finally:
            self._deferred.flush()

    def when_body_rests(self, action: Callable[[], None]) -> None:
        """Do it once the program waits for something, or has ended; now, if it does."""
        if self.body_goes_on:
            self._at_rest.append(action)
        else:
            action()

    def body_rests(self) -> None:
        """The program asks for a value, or has ended."""
        self.body_goes_on = False
        waiting, self._at_rest = self._at_rest, []
        for action in waiting:
            action()

    # Taking nodes in

    def take(self, nodes: Iterable[Node], scope: Scope, context: Entry | None = None) -> list[Entry]:
        """Make entries of nodes and link them: all of them, or none where this raises.

        Args:
            context: stands in where a node has no context of its own (the root of a sub-graph).

        Raises:
            DslError: what the border can see.
        """
        taken: list[Entry] = []
        try:
            for node in nodes:
                if node.id in scope.names:
                    raise GraphError(f"node id {node.id!r} is taken")
                if type(node) not in self._kinds.begin and type(node) not in self._kinds.check:
                    raise GraphError(f"node {node.id!r} is of kind {node.kind!r}, which this runtime cannot execute")
                entry = Entry(scope.prefix + node.id, node, scope, context, adds_text=not passes_through(node))
                scope.names[node.id] = self.entries[entry.id] = entry
                self.unended += 1
                taken.append(entry)
                self._link(entry)
                if (check := self._kinds.check.get(type(node))) is not None:
                    check(self, entry)
                if entry.missing == 0:
                    self._ready.append(entry)
        except DslError as error:
            for entry in reversed(taken):
                self._untake(entry)
            raise error.at(node.origin) from None
        return taken

    def _untake(self, entry: Entry) -> None:
        """Undo `take` of an entry that has not begun and that nothing else hangs on."""
        entry.status = "cancelled"
        del entry.scope.names[entry.node.id]
        del self.entries[entry.id]
        self.unended -= 1
        if entry.claim is not None and entry.may_spend:
            entry.claim.spenders -= 1
        for source in (entry.context, *map(entry.scope.find, _waits_for(entry.node))):
            for waiting in () if source is None else (source.children, source.on_place, source.on_done):
                if entry in waiting:
                    waiting.remove(entry)

    def _link(self, entry: Entry) -> None:
        """Where the entry stands, and what it waits for. Raises the error of what it hangs on, where that has failed."""
        node, scope = entry.node, entry.scope
        if node.context is not None:
            entry.context = scope.find(node.context)
        context = entry.context
        if context is None:
            entry.lineage = self._lineage
        else:
            claim, entry.lineage, entry.place = context.claim, context.lineage, context.place
            entry.known = context if context.placed else context.known
            entry.turns = context.turns
            if node.branch is not None:
                size = getattr(context.node, "size", 0)
                if not 0 <= node.branch < size:
                    raise BranchError(
                        f"node {entry.id!r} names branch {node.branch} of {context.id!r}, which has no such branch"
                    )
                claim = self.leases.claim(context, node.branch)
                entry.lineage = Lineage(context.id, node.branch, size, context.lineage)
                entry.place = BranchOrder(context.place, node.branch)
            if claim is not None:
                entry.claim = claim
                claim.spenders += entry.may_spend
            if context.error is not None:
                raise context.error
            context.children.append(entry)
            if not context.placed:
                entry.missing += 1
                context.on_place.append(entry)
        if isinstance(node, RoleBegin):
            entry.turns = entry.turns.opened(node.role)
        elif isinstance(node, RoleEnd):
            entry.turns = entry.turns.ended()
        for node_id in _waits_for(node):
            source = scope.find(node_id)
            if not scope.encloses(source):
                self.await_value(entry, source)
        if not entry.adds_text and (context is None or context.placed):
            self.place(entry, context.anchor if context else None)

    def await_value(self, entry: Entry, source: Entry) -> None:
        """`entry` begins only once `source` is done; it fails with it. Raises the cause if that has failed already."""
        if source.status == "done":
            return
        if source.error is not None:
            raise source.error
        entry.missing += 1
        source.on_done.append(entry)

    # Progress

    def settle(self) -> None:
        """Begin everything that is ready, then submit the requests that came of it, per target all at once.

        Who watches an end is told here, not in `_end`: joins nested 500 deep must not be as many calls deep.
        """
        while self._ended or self._ready:
            if self._ended:
                ended = self._ended.popleft()
                watchers, ended.watchers = ended.watchers, []
                for watcher in watchers:
                    watcher(ended)
                continue
            entry = self._ready.popleft()
            if entry.status == "waiting":
                entry.status = "running"
                self.attempt(entry, partial(self._kinds.begin[type(entry.node)], self, entry))
        for target, requests in self.requests.items():
            for request, _, waiting in requests:
                if not waiting:  # all who asked fell in this very turn
                    self.in_flight -= 1
                    self.leases.unspend(target, request)
            wanted = [(request, sink) for request, sink, waiting in requests if waiting]
            if wanted:
                self.defer(partial(self._submit, target, wanted))
        self.requests.clear()

    def attempt(self, entry: Entry, action: Callable[[], None]) -> None:
        """Run an entry's action; whatever goes wrong in it is that entry's failure, never the engine thread's."""
        try:
            action()
        except DslError as error:
            self.fail(entry, error.at(entry.node.origin))
        except Exception as error:  # noqa: BLE001 - a fault in one node must not hang the run
            failure = RunError(f"{entry.id!r} failed unexpectedly: {error!r}", origin=entry.node.origin)
            failure.__cause__ = error
            self.fail(entry, failure)

    def place(self, entry: Entry, anchor: Entry | None) -> None:
        """The text up to and including `entry` is known and stands at `anchor`."""
        entry.anchor, entry.placed = anchor, True
        waiting, entry.on_place = entry.on_place, []
        for child in waiting:
            if not child.ended:
                if not child.adds_text and not child.placed:
                    self.place(child, child.context.anchor if child.context else None)
                self._signal(child)

    def _signal(self, entry: Entry) -> None:
        entry.missing -= 1
        if entry.missing == 0 and entry.status == "waiting":
            self._ready.append(entry)

    def finish(self, entry: Entry, outcome: Outcome) -> None:
        """`entry` is done, and its text stands at itself if it was not placed before."""
        if entry.ended:
            return
        entry.status, entry.outcome = "done", outcome
        if not entry.placed:
            self.place(entry, entry)
        waiting, entry.on_done = entry.on_done, []
        for dependent in waiting:
            if not dependent.ended:
                self._signal(dependent)
        self._end(entry, "finished")

    def fail(self, entry: Entry, error: Exception) -> None:
        """`entry` and all that depends on it fail with `error`, at once. Calls of theirs that run are ended."""
        self.error = self.error or error
        if not entry.ended:
            self._drop(entry, error, "failed")
            self._spread(entry, error)

    def cancel(self, entry: Entry, reason: str) -> None:
        """End `entry` and all below it in context; what depends on their values fails with this CancelledError."""
        error = CancelledError(
            f"{entry.id!r} was cancelled" + (f": {reason}" if reason else ""), origin=entry.node.origin
        )
        below = list(entry.below())
        for each in below:
            if not each.ended:
                self._drop(each, error, "cancelled")
        for each in below:
            self._spread(each, error)

    def _spread(self, entry: Entry, error: Exception) -> None:
        """Fail what depends on a fallen entry, without recursion."""
        stack = [entry]
        while stack:
            fallen = stack.pop()
            if fallen.status == "done":
                continue
            dependents = (*fallen.on_place, *fallen.on_done, *fallen.heirs)
            fallen.on_place, fallen.on_done = [], []
            for dependent in dependents:
                if not dependent.ended:
                    self._drop(dependent, error, "failed")
                    stack.append(dependent)

    def _drop(self, entry: Entry, error: Exception, status: EventKind) -> None:
        entry.status = "cancelled" if status == "cancelled" else "failed"
        entry.error = error
        if entry.stop is not None:
            entry.stop(str(error))
        self._end(entry, status)

    def _end(self, entry: Entry, kind: EventKind) -> None:
        entry.order = len(self.entries) - self.unended
        self.unended -= 1
        entry.stop = None
        if entry.claim is not None and entry.may_spend:
            entry.claim.spenders -= 1
            self.leases.settle(entry.claim)
        self.emit(Event(kind=kind, node_id=entry.id, outcome=entry.outcome, error=entry.error, at_s=self.now()))
        if entry.future is not None:
            self.defer(partial(_resolve, entry, entry.future))
        if entry.watchers:
            self._ended.append(entry)

    def cancel_all(self, reason: str) -> None:
        """End every entry that has not ended."""
        for entry in list(self.entries.values()):
            if not entry.ended:
                self.cancel(entry, reason)

    def seal(self) -> None:
        """No more nodes come from outside: what branches were promised and will not use is given back."""
        self.body_rests()
        self._sealed = True
        if self.leases.forks:
            self.leases.close_all()

    def _end_if_idle(self) -> None:
        if self._sealed and not self.unended and not self._idle:
            if self.in_flight and not self._overdue:  # what the fallen ones cost is counted where it is soon known
                self._patience = self._patience or self.user_code.alarms.after(PATIENCE_S, self._end_anyway)
                return
            if self._patience is not None:
                self.user_code.alarms.cancel(self._patience)
            self._idle = True
            if self.leases.forks:
                self.leases.end()
            if self._user_code is not None:
                self._user_code.close()
            self.on_idle()

    def _end_anyway(self) -> None:
        with self.turn():
            self._overdue = True

    # Outside

    def now(self) -> float:
        """Seconds since the run began."""
        return self._clock() - self._started_s

    def future(self, entry: Entry) -> Future[Outcome]:
        """The entry's future: always the same one."""
        if entry.future is None:
            entry.future = Future()
            entry.future.set_running_or_notify_cancel()  # cancelling it is without effect
            if entry.ended:
                _resolve(entry, entry.future)
        return entry.future

    def lookup(self, entry: Entry) -> Lookup:
        """How `entry`'s references find their values."""

        def value_of(node_id: str) -> Any:
            source = entry.scope.find(node_id)
            return source.outcome.value if source.outcome is not None else None

        return value_of

    def spend_tokens(self, tokens: int) -> None:
        """Tokens were generated; once they are more than the run's budget, every call that runs fails. So many calls as run may go
        over it by a step.
        """
        budget = self.budget
        budget.generated_tokens += tokens
        if budget.tokens is not None and budget.generated_tokens > budget.tokens:
            for entry in list(self.entries.values()):
                if isinstance(entry.node, Gen) and entry.status == "running":
                    self.fail(entry, budget.error(entry))

    def critical_tokens(self, entry: Entry) -> int:
        """Tokens that may have to be generated on the longest path that waits for `entry`, its own included.

        Only a hint for the order of calls: where a program is far ahead of the model, what was found stays until there is an eighth
        more to be seen.
        """
        if len(self.entries) - self._foreseen > (self._foreseen >> 3 if self._foreseen > EXACTLY_FORESEEN else 0):
            self._critical_tokens.clear()
            self._foreseen = len(self.entries)
        if not entry.children and not entry.on_done:
            return _most_tokens(entry)
        return longest_path(entry, _followers, _most_tokens, self._critical_tokens)

    def emit(self, event: Event) -> None:
        """Log an event and tell the listeners."""
        for listener in self.events.append(event):
            self.defer(partial(listener, event))

    def _submit(self, target: Target, requests: Sequence[tuple[Request, Sink]]) -> None:
        try:
            target.submit(requests)
        except EngineClosedError as error:
            for _, sink in requests:
                sink.done(error)
        except BaseException as error:  # Ctrl-C, or a target's own fault: nobody may wait for what was not queued
            target.cancel([request.request_id for request, _ in requests], "its submission was interrupted")
            for _, sink in requests:
                sink.done(RunError(f"the call could not be submitted: {type(error).__name__}"))
            raise


def _waits_for(node: Node) -> Iterable[str]:
    """Ids of the nodes whose ends it waits for, each once. A join is told of each by itself."""
    mentioned = () if isinstance(node, Join) else data_of(node)
    return dict.fromkeys((*mentioned, *node.control)) if node.control else mentioned


def _nothing() -> None:
    """Nobody asked to be told."""


def _followers(entry: Entry) -> Iterator[Entry]:
    yield from entry.heirs
    yield from entry.on_done


def _most_tokens(entry: Entry) -> int:
    return entry.node.sampling.most_tokens if isinstance(entry.node, Gen) and not entry.ended else 0


def _resolve(entry: Entry, future: Future[Outcome]) -> None:
    if entry.error is not None:
        future.set_exception(entry.error)
    else:
        future.set_result(entry.outcome or Outcome())
