"""Cassettes: what a model answered, kept as data, and played back without it.

A cassette is a stored run of kind "calls" (`ir/record.py`). Its first line has facts of the model, each further one a call:

    {"format": "sglang_dsl.record", "version": 1, "kind": "calls", "model": ..., "template": {...}, "controls": {...}}
    {"key": {...}, "end": 3, "deltas": [["Hel", 1], ["lo", 1]], "result": {...}}
    {"key": {...}, "end": 4, "deltas": [], "error": ["E401", "the engine failed"], "retryable": true}

`RecordingTarget` passes calls on to a model and keeps what came back. `ReplayTarget` answers from the cassette: the same text,
split as it was; calls end in the order in which they ended then. What makes two calls the same call is their key.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ... import errors
from ...errors import DslError, EngineError, FormatError
from ...ir.codec import Data, decode, encode
from ...ir.expressions import Json
from ...ir.record import dump_lines, load_text, parse_lines, save_text
from ...ir.values import RecordedError, encode_error
from ..interpret.target import ForwardingTarget, Target
from ..schedule.request import GenerateResult, Request, Result, ScoreRequest, ScoreResult, Sink
from ..text.tokenizer import ChatTemplate, TextModel, TextPiece, Tokenizer, Turn

CallKey: TypeAlias = dict[str, Any]  # field -> JSON value
CONTEXT_CHARACTERS = 24  # shown around the first difference of two texts


# --- the file -------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class ModelFacts:
    """What replay has to know of the model: its name and sizes, and how its template and its control texts read.

    template: by operation and roles. controls: control text -> what of it is plain text.
    """

    model: str = ""
    context_tokens: int = 0
    kv_bytes_per_token: int = 0
    template: dict[str, str] = field(default_factory=dict)
    controls: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class RecordedCall:
    """One call. end: its place in the order in which calls ended. deltas: text as it was released, with the number of tokens
    behind it.
    """

    key: CallKey
    end: int = -1
    deltas: list[tuple[str, int]] = field(default_factory=list)
    outcome: Result | Exception | None = None


@dataclass(slots=True)
class Cassette:
    """All calls, in the order in which they were made, and the facts of the model."""

    facts: ModelFacts = field(default_factory=ModelFacts)
    calls: list[RecordedCall] = field(default_factory=list)

    def save(self, path: Path, clean: Callable[[str], str]) -> None:
        """Write it; the file appears whole or not at all. `clean` calls secrets out of every text. Raises OSError."""
        lines = [_encoded_call(call) for call in self.calls if call.outcome is not None]
        path.parent.mkdir(parents=True, exist_ok=True)
        save_text(path, dump_lines("calls", self.facts, lines, _End(), redact=clean))

    @classmethod
    def load(cls, path: Path) -> Cassette:
        """Read a file. Raises OSError, and FormatError: not a cassette, of another version, damaged, or changed."""
        calls: list[RecordedCall] = []
        try:
            facts, _ = parse_lines(
                "calls", load_text(path, "calls"), ModelFacts, lambda line: calls.append(_decoded_call(line)), _End
            )
        except FormatError as error:
            hint = error.hint or "record it again with mode='record'"
            raise FormatError(f"{path}: {error.what}", hint=hint) from error
        return cls(facts, calls)


@dataclass(frozen=True, slots=True)
class _End:
    """What the last line says besides its hash: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """The line of a call, as it is read."""

    key: dict[str, Json]
    end: int
    deltas: tuple[tuple[str, int], ...] = ()
    result: Json = None
    error: BaseException | None = None
    retryable: bool = False


def _encoded_call(call: RecordedCall) -> Data:
    line: Data = {"key": call.key, "end": call.end, "deltas": call.deltas}
    if isinstance(call.outcome, Exception):
        return {**line, "error": encode_error(call.outcome), "retryable": getattr(call.outcome, "retryable", False)}
    return {**line, "result": {name: value for name, value in encode(call.outcome).items() if name != "request_id"}}


def _decoded_call(data: Data) -> RecordedCall:
    line = decode(_Line, data, "a call")
    call = RecordedCall(line.key, line.end, list(line.deltas))
    if isinstance(line.error, RecordedError):
        call.outcome = _raisable(line.error, retryable=line.retryable)
    elif isinstance(line.result, dict):
        kind: type[Result] = GenerateResult if line.key.get("kind") == "generate" else ScoreResult
        call.outcome = decode(kind, {**line.result, "request_id": ""}, "the result of a call")
    else:
        raise FormatError("the call has neither a result nor an error")
    return call


def _raisable(recorded: RecordedError, *, retryable: bool) -> Exception:
    """An error of the class that was raised, where it calls a message alone; else an EngineError that names it."""
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, DslError) and kind.code == recorded.recorded_code:
            try:
                return kind(recorded.what, retryable=retryable)
            except TypeError:
                return EngineError(f"{kind.__name__}: {recorded.what}", retryable=retryable)
    return EngineError(f"{recorded.recorded_code}: {recorded.what}", retryable=retryable)


# --- keys -----------------------------------------------------------------------------------------------------------


def key_of(request: Request, model: str, tokenizer: Tokenizer, clean: Callable[[str], str]) -> CallKey:
    """The key of a request. The prompt counts as text, without control tokens; the derived seed does not count.

    Args:
        clean: calls secrets out of texts.
    """
    label = request.label
    kind = "score" if isinstance(request, ScoreRequest) else "generate"
    key: CallKey = {"node": label.node_id, "name": label.name, "model": model, "kind": kind}
    key["prompt"] = clean(tokenizer.decode(request.prompt_ids))
    if isinstance(request, ScoreRequest):
        key["choices"] = [clean(tokenizer.decode(ids)) for ids in request.continuations]
        key["unconditional"] = request.unconditional
    else:
        key["params"] = {name: _plain(value) for name, value in asdict(request.sampling).items() if name != "seed"}
        spec = request.constraint
        key["constraint"] = None if spec is None else {name: _plain(value) for name, value in asdict(spec).items()}
    return {**key, "sample": label.sample, "attempt": label.attempt}


def nearest(key: CallKey, recorded: Iterable[CallKey]) -> CallKey | None:
    """The recorded key with the fewest differing fields; among equals, the one with the most similar prompt."""
    keys = list(recorded)
    if not keys:
        return None
    fewest = min(len(differing(key, other)) for other in keys)
    close = [other for other in keys if len(differing(key, other)) == fewest]
    return max(close, key=lambda other: _similarity(key["prompt"], other["prompt"]))


def differing(key: CallKey, other: CallKey) -> list[str]:
    """Names of the fields that differ."""
    return [name for name in {**key, **other} if key.get(name) != other.get(name)]


def difference(key: CallKey, recorded: CallKey) -> str:
    """In words: the first field that differs, as it is and as it was recorded."""
    name = differing(key, recorded)[0]
    now, then = key.get(name), recorded.get(name)
    if isinstance(now, Mapping) and isinstance(then, Mapping):
        field = next(f for f in {**now, **then} if now.get(f) != then.get(f))
        return f"{name}.{field} is {now.get(field)!r}, recorded was {then.get(field)!r}"
    if isinstance(now, str) and isinstance(then, str):
        at = next((i for i, (a, b) in enumerate(zip(now, then, strict=False)) if a != b), min(len(now), len(then)))
        window = slice(max(at - CONTEXT_CHARACTERS, 0), at + CONTEXT_CHARACTERS)
        return f"{name} differs at character {at}: it is {now[window]!r}, recorded was {then[window]!r}"
    return f"{name} is {now!r}, recorded was {then!r}"


def _similarity(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a[-400:], b[-400:]).quick_ratio()


def _plain(value: Any) -> Any:
    """As it comes back from JSON."""
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else value


# --- recording ------------------------------------------------------------------------------------------------------


class RecordingTarget(ForwardingTarget):
    """Passes calls on to a model and keeps what came back. Thread-safe. Cancelled calls are kept, too: they lost a race, and have to lose it again."""

    def __init__(self, target: Target, cassette: Cassette, clean: Callable[[str], str]) -> None:
        super().__init__(target)
        self.text = RecordingText(target.text, cassette)
        self._cassette = cassette
        self._clean = clean
        self._lock = threading.Lock()
        self._ends = 0
        cassette.facts.model = target.info.model
        cassette.facts.context_tokens = target.info.context_tokens
        cassette.facts.kv_bytes_per_token = target.info.kv_bytes_per_token

    def submit(self, requests: Sequence[tuple[Request, Sink]]) -> None:
        """Pass calls on, each with a sink that keeps what comes back."""
        recorded = [
            (request, RecordingSink(sink, self._new_call(request), self._next_end)) for request, sink in requests
        ]
        self._behind.submit(recorded)

    def _new_call(self, request: Request) -> RecordedCall:
        call = RecordedCall(key_of(request, self.info.model, self._behind.text.tokenizer, self._clean))
        with self._lock:
            self._cassette.calls.append(call)
        return call

    def _next_end(self) -> int:
        with self._lock:
            self._ends += 1
            return self._ends - 1


class RecordingSink:
    """Keeps one call's output as it comes."""

    def __init__(self, sink: Sink, call: RecordedCall, next_end: Callable[[], int]) -> None:
        self._sink = sink
        self._call = call
        self._next_end = next_end

    def started(self) -> None:
        """The call was admitted."""
        self._sink.started()

    def text(self, delta: str, token_ids: Sequence[int]) -> None:
        """Keep a piece of text with the number of its tokens."""
        self._call.deltas.append((delta, len(token_ids)))
        self._sink.text(delta, token_ids)

    def done(self, result: Result | Exception) -> None:
        """Keep the end, and when it came among all ends."""
        self._call.end = self._next_end()
        self._call.outcome = result
        self._sink.done(result)


class RecordingText:
    """A TextModel that notes how control texts and turns read."""

    def __init__(self, text: TextModel, cassette: Cassette) -> None:
        self.tokenizer: Tokenizer = RecordingTokenizer(text.tokenizer, cassette)
        self.template: ChatTemplate = RecordingTemplate(text.template, cassette)


class RecordingTokenizer:
    """The tokenizer, noting what of each control text is plain."""

    def __init__(self, tokenizer: Tokenizer, cassette: Cassette) -> None:
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
        self._cassette = cassette

    def encode_segment(self, pieces: Sequence[TextPiece], *, first: bool = False) -> list[int]:
        """Encode, and note of each control text what a prompt decoded without control tokens shows."""
        for piece in pieces:
            if piece.control and piece.text not in self._cassette.facts.controls:
                ids = self._tokenizer.encode_segment((piece,))
                self._cassette.facts.controls[piece.text] = self._tokenizer.decode(ids)
        return self._tokenizer.encode_segment(pieces, first=first)


class RecordingTemplate:
    """The template, noting what it says for which roles."""

    def __init__(self, template: ChatTemplate, cassette: Cassette) -> None:
        self._template = template
        self._cassette = cassette

    def open_turn(self, turns: Sequence[Turn], role: str) -> str:
        """What opens a turn of this role behind these turns."""
        marker = self._template.open_turn(turns, role)
        self._cassette.facts.template[turn_key("open", turns, role)] = marker
        return marker

    def close_turn(self, turns: Sequence[Turn]) -> str:
        """What closes the last of these turns."""
        marker = self._template.close_turn(turns)
        self._cassette.facts.template[turn_key("close", turns)] = marker
        return marker


def turn_key(act: str, turns: Sequence[Turn], role: str = "") -> str:
    """Under what a template's answer is kept."""
    return " ".join([act, *(turn.role for turn in turns), *([role] if role else [])])
