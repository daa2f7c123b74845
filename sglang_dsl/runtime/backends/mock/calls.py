"""The calls that reached a mock, what tests want to know about them, and what each was answered.

A reply is text, exact token pieces, a value, scores of choices, or a fault. A mock without a script makes its own: deterministic words
and valid values; and a little language model scores choices.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from random import Random
from typing import Any, Protocol, TypeAlias

from ....errors import EngineError, ScriptError, SpecError
from ....ir.specs import ConstraintSpec, SamplingSpec, number, shown, whole
from ...constrain.compile import compile_constraint
from ...schedule.request import GenerateRequest, GenerateResult, Label, Request, Result


class ShowsTokens(Protocol):
    """Who can show token ids."""

    def show(self, token_ids: Sequence[int]) -> str:
        """Their text, control tokens included."""


@dataclass(slots=True, eq=False)
class Call:
    """One request that reached the mock, and what came of it.

    started, ended: when, as places in one order of all starts and ends (-1: not yet).
    """

    request: Request
    tokenizer: ShowsTokens
    choices: tuple[str, ...] = ()
    result: Result | Exception | None = None
    deltas: list[str] = field(default_factory=list)
    started: int = -1
    ended: int = -1

    @property
    def prompt(self) -> str:
        """What was asked, as text, control tokens included."""
        return self.tokenizer.show(self.request.prompt_ids)

    @property
    def label(self) -> Label:
        """Who asked: run, node, name, sample, attempt."""
        return self.request.label

    @property
    def name(self) -> str:
        """The gen's or select's name; "" if it has none."""
        return self.label.name

    @property
    def node_id(self) -> str:
        """The node's id."""
        return self.label.node_id

    @property
    def sampling(self) -> SamplingSpec | None:
        """How tokens are chosen; None for a select."""
        return self.request.sampling if isinstance(self.request, GenerateRequest) else None

    @property
    def constraint(self) -> ConstraintSpec | None:
        """What the output may be."""
        return self.request.constraint if isinstance(self.request, GenerateRequest) else None

    @property
    def text(self) -> str:
        """What was generated; "" for a select, a failed call or one still running."""
        return self.result.text if isinstance(self.result, GenerateResult) else ""

    @property
    def error(self) -> Exception | None:
        """Why there is no result."""
        return self.result if isinstance(self.result, Exception) else None


class Calls:
    """Some of a mock's calls, in the order in which they were submitted."""

    def __init__(self, calls: Sequence[Call], missing: str = "") -> None:
        self._calls = tuple(calls)
        self._missing = missing  # what to say when a question about no call at all is asked

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Call]:
        return iter(self._calls)

    def __getitem__(self, index: int) -> Call:
        return self._calls[index]

    def __repr__(self) -> str:
        return f"<{len(self)} calls: {', '.join(call.name or call.node_id for call in self._calls[:8])}>"

    @property
    def count(self) -> int:
        """How many."""
        return len(self._calls)

    @property
    def prompts(self) -> list[str]:
        """What each was given."""
        return [call.prompt for call in self._calls]

    @property
    def texts(self) -> list[str]:
        """What each generated."""
        return [call.text for call in self._calls]

    @property
    def max_parallel(self) -> int:
        """The most of them that ran at the same time."""
        self._need_some("max_parallel")
        changes = [(call.started, 1) for call in self._calls if call.started >= 0]
        changes += [(call.ended, -1) for call in self._calls if call.started >= 0 and call.ended >= 0]
        running = most = 0
        for _, change in sorted(changes):
            running += change
            most = max(most, running)
        return most

    @property
    def asked_tokens(self) -> int:
        """Prompt tokens, as if nothing were shared."""
        return sum(len(call.request.prompt_ids) for call in self._calls)

    @property
    def distinct_tokens(self) -> int:
        """Prompt tokens, each shared prefix counted once."""
        total = 0
        before: tuple[int, ...] = ()
        for prompt in sorted(tuple(call.request.prompt_ids) for call in self._calls):
            total += len(prompt) - _common(before, prompt)
            before = prompt
        return total

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that were really put through the model."""
        return sum(getattr(call.result, "computed_tokens", 0) for call in self._calls)

    @property
    def prefilled_once(self) -> bool:
        """Whether no shared prefix was computed twice (but for the one token a call recomputes of a prompt that is
        cached as a whole).
        """
        self._need_some("prefilled_once")
        return self.computed_tokens <= self.distinct_tokens + self.count

    def _need_some(self, question: str) -> None:
        """Raise ScriptError where the answer would be true of nothing, because the name is wrong."""
        if self._missing and not self._calls:
            raise ScriptError(
                f"{question} was asked of {self._missing}", hint="correct the name; calls(...).count may be 0"
            )


class CallLog:
    """All calls of one mock. Thread-safe."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._lock = threading.Lock()
        self._clock = 0

    def add(self, call: Call) -> None:
        """A call was submitted."""
        with self._lock:
            self._calls.append(call)

    def tick(self) -> int:
        """The next place in the order of all starts and ends."""
        with self._lock:
            self._clock += 1
            return self._clock

    def calls(self, which: str | Callable[[Call], bool] | None = None) -> Calls:
        """Those of a name (or node id), or for which a function is true; None: all."""
        with self._lock:
            calls = list(self._calls)
        if which is None:
            return Calls(calls)
        if callable(which):
            return Calls([call for call in calls if which(call)])
        if not isinstance(which, str):
            raise SpecError(f"calls({shown(which)}): not a name, a node id or a function", hint='calls("answer")')
        names = {call.name or call.node_id for call in calls}
        near = get_close_matches(which, names, n=1)
        known = f"did you mean {near[0]!r}?" if near else f"calls were made of: {', '.join(sorted(names)) or 'none'}"
        missing = f"the calls of {which!r}, and there is none; {known}"
        return Calls([call for call in calls if which in (call.name, call.node_id)], missing)


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


@dataclass(frozen=True, slots=True)
class Piece:
    """One token: its bytes, its natural-log probability, and the alternatives a call with `logprobs` is shown."""

    raw: str | bytes
    logprob: float = -0.1
    top: tuple[tuple[str | bytes, float], ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.raw, (str, bytes)):
            raise ScriptError(
                f"{shown(self.raw)} is no token", hint="a token is text, or bytes of a part of a character"
            )
        number("logprob", self.logprob, -math.inf, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One scripted answer.

    pieces: exact tokens; None: `text` is cut into tokens by the mock's tokenizer. scores: of a select's choices, per
    choice the log-probabilities of its tokens (or one number, for the first token). silent_tokens: so many tokens
    without text come first: a slow model. error: raised after `error_after` tokens. max_tokens: the output is cut off
    there, as by length. unchecked: the answer goes out although it breaks the call's constraint.
    """

    text: str = ""
    pieces: tuple[Piece, ...] | None = None
    scores: tuple[tuple[str, tuple[float, ...]], ...] = ()
    silent_tokens: int = 0
    error: Exception | None = None
    error_after: int = 0
    max_tokens: int | None = None
    unchecked: bool = False

    def __post_init__(self) -> None:
        whole("tokens", self.silent_tokens, 0)
        whole("after", self.error_after, 0)
        if self.max_tokens is not None:
            whole("after", self.max_tokens, 1)
        if not isinstance(self.text, str):
            raise ScriptError(f"{shown(self.text)} is no text", hint="a reply's text is a str")
        if self.error is not None and not isinstance(self.error, Exception):
            raise ScriptError(f"{shown(self.error)} is no exception", hint='fails("the service is down")')


ReplyLike: TypeAlias = "Reply | str | Mapping[str, Any] | Sequence[Any] | Exception | bool | int | float | None"
Answerer: TypeAlias = Callable[[Call], ReplyLike]


def pieces(*tokens: str | bytes | Piece) -> Reply:
    """A reply that emits exactly these tokens: text or bytes, also parts of a character."""
    return Reply(pieces=tuple(token if isinstance(token, Piece) else Piece(token) for token in tokens))


def fails(error: Exception | str = "the mock was told to fail", *, after: int = 0, reply: ReplyLike = "") -> Reply:
    """A call that fails, after so many tokens of `reply`."""
    raised = EngineError(error, retryable=True) if isinstance(error, str) else error
    return replace(reply_of(reply), error=raised, error_after=after)


def cut_off(reply: ReplyLike, *, after: int) -> Reply:
    """A reply that ends by length after so many tokens."""
    return replace(reply_of(reply), max_tokens=after)


def stalls(reply: ReplyLike = "", *, tokens: int = 1 << 20) -> Reply:
    """A model that shows nothing for so many steps: by default until the call's deadline, length or cancellation."""
    return replace(reply_of(reply), silent_tokens=tokens)


def malformed(text: str) -> Reply:
    """A reply that goes out although it breaks the call's constraint."""
    return Reply(text=text, unchecked=True)


def reply_of(answer: ReplyLike, call: Call | None = None) -> Reply:
    """A script's answer as a Reply: text as it is, other JSON values as JSON, a dict for a select as its scores."""
    match answer:
        case Reply():
            return answer
        case str():
            return Reply(text=answer)
        case Exception():
            return Reply(error=answer)
        case Mapping() if call is not None and call.choices:
            return Reply(scores=tuple((choice, _logprobs(scores)) for choice, scores in answer.items()))
    try:
        return Reply(text=json.dumps(answer, ensure_ascii=False))
    except TypeError as error:
        raise ScriptError(
            f"a script holds {answer!r}, which is no reply: {error}",
            hint="give text, a JSON value, pieces(...), an exception, or a function of the call",
        ) from error


def _logprobs(scores: Any) -> tuple[float, ...]:
    return tuple(map(float, scores)) if isinstance(scores, Sequence) else (float(scores),)


INVENTED_CHARACTERS = 60  # about; more where the constraint needs more
SCORED_CONTEXT = 40  # characters that the little language model looks back


def echo(call: Call) -> Reply | None:
    """A reply for any call, the same for the same prompt: a value its constraint allows, else its name and a short code.

    A select is left to the language model: None.
    """
    if call.sampling is None:
        return None
    seed = _digest(call.prompt, str(call.label.sample), str(call.label.attempt))
    if call.constraint is not None:
        compiled = compile_constraint(call.constraint)
        return Reply(text=compiled.sample_text(Random(seed), characters=INVENTED_CHARACTERS))
    return Reply(text=f"{call.name or 'text'} {seed % 0x10000:04x}")


def valid(call: Call) -> Reply | None:
    """A reply for constrained calls only."""
    return echo(call) if call.constraint is not None else None


def token_logprob(before: str, token: str) -> float:
    """Between -8 and 0, from a hash: a model without sense, but a function of the text it is given."""
    return -(_digest(before[-SCORED_CONTEXT:], token) % 8000) / 1000


def _digest(*texts: str) -> int:
    parts = b"".join(f"{len(text)}:{text}".encode() for text in texts)
    return int.from_bytes(hashlib.blake2b(parts, digest_size=8).digest())
