"""What a scripted model answers: text, exact token pieces, a value, scores of choices, or a fault.

What an unscripted mock does: deterministic words, valid values, and a little language model to score choices with.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, TypeAlias

from ....errors import EngineError, ScriptError
from ....ir.specs import number, shown, whole
from ...constrain.compile import compile_constraint
from .log import Call


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
