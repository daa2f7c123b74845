"""A Target that answers from a tape: the same text, split as it was, and ends in the order in which calls ended then.

A Target that passes everything to another and keeps what came back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ....errors import CancelledError, CassetteError, RoleError
from ....ir.execution import ConstraintReport
from ....ir.outcome import Torn
from ....ir.specs import ConstraintSpec
from ...cache.keys import Namespace
from ...constrain.compile import audit
from ...engine.worker import TargetInfo
from ...interpret.target import ForwardingTarget, Target
from ...schedule.request import GenerateResult, LeaseId, Request, Result, Sink
from ...text.plain import PieceTokenizer
from ...text.tokenizer import ChatTemplate, TextModel, TextPiece, Tokenizer, Turn
from .tape import Take, Tape, difference, key_of, nearest


class RecordingTarget(ForwardingTarget):
    """Thread-safe. Cancelled calls are kept, too: they lost a race, and have to lose it again."""

    def __init__(self, target: Target, tape: Tape, clean: Callable[[str], str]) -> None:
        super().__init__(target)
        self.text = RecordingText(target.text, tape)
        self._tape = tape
        self._clean = clean
        self._lock = threading.Lock()
        self._ends = 0
        tape.model = target.info.model
        tape.context_tokens = target.info.context_tokens
        tape.kv_bytes_per_token = target.info.kv_bytes_per_token

    def submit(self, requests: Sequence[tuple[Request, Sink]]) -> None:
        """See `Target`."""
        recorded = [(request, RecordingSink(sink, self._take(request), self._next_end)) for request, sink in requests]
        self._behind.submit(recorded)

    def _take(self, request: Request) -> Take:
        take = Take(key_of(request, self.info.model, self._behind.text.tokenizer, self._clean))
        with self._lock:
            self._tape.takes.append(take)
        return take

    def _next_end(self) -> int:
        with self._lock:
            self._ends += 1
            return self._ends - 1


class RecordingSink:
    """Keeps one call's output as it comes."""

    def __init__(self, sink: Sink, take: Take, next_end: Callable[[], int]) -> None:
        self._sink = sink
        self._take = take
        self._next_end = next_end

    def started(self) -> None:
        """See `Sink`."""
        self._sink.started()

    def text(self, delta: str, token_ids: Sequence[int]) -> None:
        """See `Sink`."""
        self._take.deltas.append((delta, len(token_ids)))
        self._sink.text(delta, token_ids)

    def done(self, result: Result | Exception) -> None:
        """See `Sink`."""
        self._take.end = self._next_end()
        self._take.outcome = result
        self._sink.done(result)


class RecordingText:
    """A TextModel that notes how control texts and turns read."""

    def __init__(self, text: TextModel, tape: Tape) -> None:
        self.tokenizer: Tokenizer = RecordingTokenizer(text.tokenizer, tape)
        self.template: ChatTemplate = RecordingTemplate(text.template, tape)


class RecordingTokenizer:
    """The tokenizer, noting what of each control text is plain."""

    def __init__(self, tokenizer: Tokenizer, tape: Tape) -> None:
        self.vocab_size = tokenizer.vocab_size
        self.bos_id = tokenizer.bos_id
        self.adds_bos = tokenizer.adds_bos
        self.stop_ids = tokenizer.stop_ids
        self.control_ids = tokenizer.control_ids
        self.fingerprint = tokenizer.fingerprint
        self.encode = tokenizer.encode
        self.token_bytes = tokenizer.token_bytes
        self.fewest_tokens = tokenizer.fewest_tokens
        self.decode = tokenizer.decode
        self._tokenizer = tokenizer
        self._tape = tape

    def encode_segment(self, pieces: Sequence[TextPiece], *, first: bool = False) -> list[int]:
        """See `Tokenizer`."""
        for piece in pieces:
            if piece.control and piece.text not in self._tape.controls:
                ids = self._tokenizer.encode_segment((piece,))
                self._tape.controls[piece.text] = self._tokenizer.decode(ids)
        return self._tokenizer.encode_segment(pieces, first=first)


class RecordingTemplate:
    """The template, noting what it says for which roles."""

    def __init__(self, template: ChatTemplate, tape: Tape) -> None:
        self._template = template
        self._tape = tape

    def open_turn(self, turns: Sequence[Turn], role: str) -> str:
        """See `ChatTemplate`."""
        marker = self._template.open_turn(turns, role)
        self._tape.template[turn_key("open", turns, role)] = marker
        return marker

    def close_turn(self, turns: Sequence[Turn]) -> str:
        """See `ChatTemplate`."""
        marker = self._template.close_turn(turns)
        self._tape.template[turn_key("close", turns)] = marker
        return marker


def turn_key(act: str, turns: Sequence[Turn], role: str = "") -> str:
    """Under what a template's answer is kept."""
    return " ".join([act, *(turn.role for turn in turns), *([role] if role else [])])


PATIENCE_S = 1.0  # how long a call waits for one that ended before it then and has not been made now


@dataclass(slots=True)
class _Waiting:
    request: Request
    sink: Sink
    take: Take


class ReplayTarget:
    """Thread-safe; reaches neither a model nor a network.

    Calls that ended earlier when they were recorded end earlier now, so races have the same winners. Should the program
    no longer make such a call, those behind it go on after `PATIENCE_S`.
    """

    def __init__(self, tape: Tape, clean: Callable[[str], str]) -> None:
        self.info = TargetInfo(
            model=tape.model,
            context_tokens=tape.context_tokens,
            kv_bytes_per_token=tape.kv_bytes_per_token,
            namespace=Namespace(model=f"cassette of {tape.model}"),
        )
        self.text: TextModel = ReplayText(tape)
        self._tape = tape
        self._clean = clean
        self._lock = threading.Lock()
        self._unused = list(tape.takes)
        self._waiting: dict[int, _Waiting] = {}
        self._next = 0
        starts = [getattr(take.outcome, "started_s", None) for take in tape.takes]
        self._began_s = min((start for start in starts if start is not None), default=0.0)
        self._timer: threading.Timer | None = None

    def submit(self, requests: Sequence[tuple[Request, Sink]]) -> None:
        """See `Target`."""
        refused: list[tuple[Sink, CassetteError]] = []
        with self._lock:
            for request, sink in requests:
                take = self._find(request)
                if isinstance(take, CassetteError):
                    refused.append((sink, take))
                else:
                    self._waiting[take.end] = _Waiting(request, sink, take)
        for sink, error in refused:
            sink.done(error)
        self._deliver()

    def cancel(self, request_ids: Sequence[str], reason: str = "") -> None:
        """See `Target`."""
        with self._lock:
            ended = [w for w in self._waiting.values() if w.request.request_id in request_ids]
            for waiting in ended:
                del self._waiting[waiting.take.end]
        for waiting in ended:
            waiting.sink.done(CancelledError(reason or "the request was cancelled"))
        self._deliver()

    def lease(self, prompt_ids: Sequence[int], namespace: Namespace, children: int) -> LeaseId:
        """See `Target`: there is nothing to keep."""
        return 0

    def release(self, lease: LeaseId, children: int | None = None) -> None:
        """See `Target`."""

    def audit(self, constraint: ConstraintSpec) -> ConstraintReport:
        """See `Target`."""
        return audit(constraint)

    def now(self) -> float:
        """See `Target`: time as it was recorded, from the beginning of the first call on."""
        ended = [take.outcome for take in self._tape.takes if take.end < self._next]
        return max([self._began_s, *(getattr(outcome, "finished_s", 0.0) for outcome in ended)])

    def unused(self) -> list[Take]:
        """What has not been asked for, but for calls that were cancelled then."""
        with self._lock:
            return [take for take in self._unused if not isinstance(take.outcome, CancelledError)]

    def close(self) -> None:
        """Let nothing wait any longer."""
        with self._lock:
            left, self._waiting = list(self._waiting.values()), {}
        for waiting in left:
            waiting.sink.done(CancelledError("the cassette was closed"))

    def _find(self, request: Request) -> Take | CassetteError:
        key = key_of(request, self.info.model, self.text.tokenizer, self._clean)
        for index, take in enumerate(self._unused):
            if take.key == key:
                return self._unused.pop(index)
        close = nearest(key, (take.key for take in self._tape.takes))
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
        while (waiting := self._take_next(late=late)) is not None:
            late = False
            _play(waiting, self.text.tokenizer)

    def _take_next(self, *, late: bool) -> _Waiting | None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            gone = {take.end for take in self._unused if isinstance(take.outcome, CancelledError)}
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
    sink, take = waiting.sink, waiting.take
    sink.started()
    for delta, _ in take.deltas:
        sink.text(delta, tokenizer.encode(delta))
    outcome = take.outcome
    if isinstance(outcome, GenerateResult):
        kept = outcome.text[: len(outcome.text) - len(outcome.tail_text)]
        ids = _ids_of(kept, outcome.torn or Torn(), tokenizer)
        outcome = replace(outcome, token_ids=ids, covered_ids=())
    if outcome is None:
        outcome = CassetteError("the recorded call has no end", hint="record it again")
    if not isinstance(outcome, Exception):
        outcome = replace(outcome, request_id=waiting.request.request_id)
    sink.done(outcome)


def _ids_of(text: str, torn: Torn, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Ids of a recorded text; the bytes of characters that it begins or ends in the middle of are tokens, as in every vocabulary."""
    whole = text[len(torn.head) : len(text) - bool(torn.tail)]
    return (*torn.head, *tokenizer.encode(whole), *torn.tail)


class ReplayText:
    """A TextModel from what a recording noted."""

    def __init__(self, tape: Tape) -> None:
        self.tokenizer: Tokenizer = ReplayTokenizer(tape)
        self.template: ChatTemplate = ReplayTemplate(tape)


class ReplayTokenizer(PieceTokenizer):
    """Words as tokens; control texts read as their plain part. An empty prompt begins with the end-of-text token."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.bos_id = self.eos_id
        self._controls = tape.controls

    def encode_segment(self, pieces: Sequence[TextPiece], *, first: bool = False) -> list[int]:
        """See `Tokenizer`."""
        return self.encode("".join(self._plain(piece) for piece in pieces))

    def _plain(self, piece: TextPiece) -> str:
        return self._controls.get(piece.text, piece.text) if piece.control else piece.text


class ReplayTemplate:
    """The turns that were recorded."""

    def __init__(self, tape: Tape) -> None:
        self._template = tape.template

    def open_turn(self, turns: Sequence[Turn], role: str) -> str:
        """See `ChatTemplate`. Raises RoleError for roles that were not recorded in this order."""
        return self._recorded(turn_key("open", turns, role))

    def close_turn(self, turns: Sequence[Turn]) -> str:
        """See `ChatTemplate`."""
        return self._recorded(turn_key("close", turns))

    def _recorded(self, key: str) -> str:
        if key not in self._template:
            raise RoleError(
                f"the cassette does not know how this turn reads: {key}", hint="record again with mode='record'"
            )
        return self._template[key]
