"""Runs that are answered without a model: from a cassette call by call, or from a record node by node.

`ReplayTarget` stands where a model would: the program runs again, and each of its calls gets what was recorded for it.
`RecordedExecutor` stands where a backend would: every node gives what it gave, and nothing is run, no tool either.
"""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from ...errors import CancelledError, CassetteError, GraphError, RoleError, RunError
from ...ir.codec import encode_node
from ...ir.execution import ConstraintReport, Event, Meter, Outcome, Run, RunSpec, RunSummary, Segment
from ...ir.nodes import Node
from ...ir.outcome import PartialCharacters
from ...ir.record import RunRecord
from ...ir.specs import ConstraintSpec
from ..cache.keys import Namespace
from ..constrain.compile import audit
from ..interpret.events import EventLog
from ..schedule.request import GenerateResult, LeaseId, Request, Sink, TargetInfo
from ..text.tokenizer import ChatTemplate, PieceTokenizer, TextModel, TextPiece, Tokenizer, Turn
from .cassette import Cassette, RecordedCall, difference, key_of, nearest, turn_key

PATIENCE_S = 1.0  # how long a call waits for one that ended before it then and has not been made now


# --- cassettes ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Waiting:
    request: Request
    sink: Sink
    call: RecordedCall


class ReplayTarget:
    """Thread-safe; reaches neither a model nor a network.

    Calls that ended earlier when they were recorded end earlier now, so races have the same winners. Should the program
    no longer make such a call, those behind it go on after `PATIENCE_S`.
    """

    def __init__(self, cassette: Cassette, clean: Callable[[str], str]) -> None:
        facts = cassette.facts
        self.info = TargetInfo(
            model=facts.model,
            context_tokens=facts.context_tokens,
            kv_bytes_per_token=facts.kv_bytes_per_token,
            namespace=Namespace(model=f"cassette of {facts.model}"),
        )
        self.text: TextModel = ReplayText(cassette)
        self._cassette = cassette
        self._clean = clean
        self._lock = threading.Lock()
        self._unused = list(cassette.calls)
        self._waiting: dict[int, _Waiting] = {}
        self._next = 0
        starts = [getattr(call.outcome, "started_s", None) for call in cassette.calls]
        self._began_s = min((start for start in starts if start is not None), default=0.0)
        self._timer: threading.Timer | None = None

    def submit(self, requests: Sequence[tuple[Request, Sink]]) -> None:
        """Answer each call that is on the cassette, when its turn to end has come; refuse the others with a CassetteError."""
        refused: list[tuple[Sink, CassetteError]] = []
        with self._lock:
            for request, sink in requests:
                call = self._find(request)
                if isinstance(call, CassetteError):
                    refused.append((sink, call))
                else:
                    self._waiting[call.end] = _Waiting(request, sink, call)
        for sink, error in refused:
            sink.done(error)
        self._deliver()

    def cancel(self, request_ids: Sequence[str], reason: str = "") -> None:
        """End these calls with a CancelledError, if they still wait."""
        with self._lock:
            ended = [w for w in self._waiting.values() if w.request.request_id in request_ids]
            for waiting in ended:
                del self._waiting[waiting.call.end]
        for waiting in ended:
            waiting.sink.done(CancelledError(reason or "the request was cancelled"))
        self._deliver()

    def lease(self, prompt_ids: Sequence[int], namespace: Namespace, children: int) -> LeaseId:
        """There is nothing to keep: a lease that means nothing."""
        return 0

    def release(self, lease: LeaseId, children: int | None = None) -> None:
        """There is nothing to give back."""

    def audit(self, constraint: ConstraintSpec) -> ConstraintReport:
        """Findings and forced tokens of a constraint, which no model is needed for. Raises ConstraintError."""
        return audit(constraint)

    def now(self) -> float:
        """Time as it was recorded, from the beginning of the first call on."""
        ended = [call.outcome for call in self._cassette.calls if call.end < self._next]
        return max([self._began_s, *(getattr(outcome, "finished_s", 0.0) for outcome in ended)])

    def unused(self) -> list[RecordedCall]:
        """What has not been asked for, but for calls that were cancelled then."""
        with self._lock:
            return [call for call in self._unused if not isinstance(call.outcome, CancelledError)]

    def close(self) -> None:
        """Let nothing wait any longer."""
        with self._lock:
            left, self._waiting = list(self._waiting.values()), {}
        for waiting in left:
            waiting.sink.done(CancelledError("the cassette was closed"))

    def _find(self, request: Request) -> RecordedCall | CassetteError:
        key = key_of(request, self.info.model, self.text.tokenizer, self._clean)
        for index, call in enumerate(self._unused):
            if call.key == key:
                return self._unused.pop(index)
        close = nearest(key, (call.key for call in self._cassette.calls))
        who = key["name"] or key["node"]
        if close is None:
            return CassetteError(f"the cassette is empty; the call of {who!r} is not on it", hint="record it")
        if close == key:
            return CassetteError(
                f"the call of {who!r} is made more often than it was recorded",
                hint="record it again with mode='record'",
            )
        return CassetteError(
            f"the call of {who!r} is not on the cassette. The nearest one is {close['name'] or close['node']!r}: "
            f"{difference(key, close)}",
            hint="if the change is meant, record again with mode='record'",
        )

    def _deliver(self, *, late: bool = False) -> None:
        """End what is next, and what waits behind it. `late`: what is missing is not waited for any longer."""
        while (waiting := self._next_ended(late=late)) is not None:
            late = False
            _play(waiting, self.text.tokenizer)

    def _next_ended(self, *, late: bool) -> _Waiting | None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            gone = {call.end for call in self._unused if isinstance(call.outcome, CancelledError)}
            while self._next in gone or (late and self._waiting and self._next not in self._waiting):
                self._next += 1
            if self._next in self._waiting:
                self._next += 1
                return self._waiting.pop(self._next - 1)
            early = [end for end in self._waiting if end < self._next]
            if early:
                return self._waiting.pop(min(early))
            if self._waiting:
                self._timer = threading.Timer(PATIENCE_S, self._deliver, kwargs={"late": True})
                self._timer.daemon = True
                self._timer.start()
            return None


def _play(waiting: _Waiting, tokenizer: Tokenizer) -> None:
    """Tell a sink what was recorded. Ids are those of the replay's own tokenizer."""
    sink, call = waiting.sink, waiting.call
    sink.started()
    for delta, _ in call.deltas:
        sink.text(delta, tokenizer.encode(delta))
    outcome = call.outcome
    if isinstance(outcome, GenerateResult):
        kept = outcome.text[: len(outcome.text) - len(outcome.tail_text)]
        ids = _ids_of(kept, outcome.torn or PartialCharacters(), tokenizer)
        outcome = replace(outcome, token_ids=ids, covered_ids=())
    if outcome is None:
        outcome = CassetteError("the recorded call has no end", hint="record it again")
    if not isinstance(outcome, Exception):
        outcome = replace(outcome, request_id=waiting.request.request_id)
    sink.done(outcome)


def _ids_of(text: str, torn: PartialCharacters, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Ids of a recorded text; the bytes of characters that it begins or ends in the middle of are tokens, as in every vocabulary."""
    whole = text[len(torn.head) : len(text) - bool(torn.tail)]
    return (*torn.head, *tokenizer.encode(whole), *torn.tail)


class ReplayText:
    """A TextModel from what a recording noted."""

    def __init__(self, cassette: Cassette) -> None:
        self.tokenizer: Tokenizer = ReplayTokenizer(cassette)
        self.template: ChatTemplate = ReplayTemplate(cassette)


class ReplayTokenizer(PieceTokenizer):
    """Words as tokens; control texts read as their plain part. An empty prompt begins with the end-of-text token."""

    def __init__(self, cassette: Cassette) -> None:
        super().__init__()
        self.bos_id = self.eos_id
        self._controls = cassette.facts.controls

    def encode_segment(self, pieces: Sequence[TextPiece], *, first: bool = False) -> list[int]:
        """Ids of the words in what is plain of the pieces."""
        return self.encode("".join(self._plain(piece) for piece in pieces))

    def _plain(self, piece: TextPiece) -> str:
        return self._controls.get(piece.text, piece.text) if piece.control else piece.text


class ReplayTemplate:
    """The turns that were recorded."""

    def __init__(self, cassette: Cassette) -> None:
        self._template = cassette.facts.template

    def open_turn(self, turns: Sequence[Turn], role: str) -> str:
        """What opened such a turn then. Raises RoleError for roles that were not recorded in this order."""
        return self._recorded(turn_key("open", turns, role))

    def close_turn(self, turns: Sequence[Turn]) -> str:
        """What closed such a turn then. Raises RoleError for roles that were not recorded in this order."""
        return self._recorded(turn_key("close", turns))

    def _recorded(self, key: str) -> str:
        if key not in self._template:
            raise RoleError(
                f"the cassette does not know how this turn reads: {key}", hint="record again with mode='record'"
            )
        return self._template[key]


# --- records --------------------------------------------------------------------------------------------------------


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
        """The seed of the recorded run."""
        return self._record.seed

    def extend(self, nodes: Sequence[Node]) -> None:
        """Resolve each node as it was recorded.

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
        """Nothing to do: no function of the program's is called."""

    def await_on(self, loop: AbstractEventLoop) -> None:
        """Nothing to do: nothing is awaited."""

    def value(self, node_id: str) -> Future[Outcome]:
        """What a node gave. Raises GraphError for a node that the record does not know."""
        if node_id not in self._futures:
            self._resolve(node_id)
        return self._futures[node_id]

    def cancel(self, node_ids: Sequence[str] | None = None, reason: str = "") -> None:
        """The run as a whole takes no more nodes; single nodes that were cancelled then are so already."""
        if node_ids is None:
            self._closed = self._closed or CancelledError("the run was cancelled" + (f": {reason}" if reason else ""))
            self._end()

    def seal(self) -> Future[RunSummary]:
        """The end: the recorded usage and error."""
        self._closed = self._closed or RunError("the run is sealed: its program has returned")
        self._end()
        return self._summary

    def record(self) -> RunRecord:
        """The record that is replayed."""
        return self._record

    def events(self) -> Iterator[Event]:
        """Everything that happens, in order; waits for more until the run has ended."""
        return self._events.read()

    def subscribe(self, listener: Callable[[Event], None], *, replay: bool = False) -> Callable[[], None]:
        """Call `listener` with each event; returns what ends that. With `replay`, also with those before."""
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
        """The known texts of a path, without what a template would add."""
        return tuple(Segment(node_id=node.id, text=values[node.id]) for node in path if node.id in values)

    def count(self, text: str) -> int:
        """Words, not tokens."""
        return len(text.split())

    def seam(self, before: str, after: str) -> str:
        """Nothing: words never merge."""
        return ""

    def audit(self, constraint: ConstraintSpec) -> ConstraintReport:
        """Findings and forced tokens of a constraint, which no model is needed for. Raises ConstraintError."""
        return audit(constraint)
