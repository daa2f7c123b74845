"""What a node resolved to, and what is known about how; and the one text of what several nodes of a path say.

In that text a character whose bytes two calls wrote is one character:

    call 1   e4 b8 80 e6 97     text "一\\ufffd"   torn: tail e6 97
    call 2   a5 21              text "\\ufffd!"    torn: head a5
    path                        "一日!"            whose bytes are decoded as one text
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

_MOST = 3  # bytes of a character that is not whole
_REPLACED = "\ufffd"


class PartialCharacters(NamedTuple):
    """The bytes of characters that a text begins or ends in the middle of; it shows U+FFFD for each of `head`, and one for
    `tail`. Of a text that is nothing but `head` no tail is noted.
    """

    head: bytes = b""
    tail: bytes = b""


class AppendedText(Protocol):
    """What a node has added to its path."""

    @property
    def text(self) -> str:
        """Decoded alone."""

    @property
    def torn(self) -> PartialCharacters | None:
        """Where it begins or ends inside a character."""


def torn_of(data: bytes | bytearray) -> PartialCharacters | None:
    """Where these bytes begin or end inside a character; None if they do neither."""
    size = len(data)
    first = 0
    while first < min(size, _MOST) and 0x80 <= data[first] < 0xC0:
        first += 1
    tail = b"" if first == size else _open_end(data)
    return PartialCharacters(bytes(data[:first]), tail) if first or tail else None


class PathText:
    """Grows one text by what each node says, in order.

    half: bytes at the end that may be the first ones of a character; `text` shows one U+FFFD for them.
    Goes on from where another one ended with `PathText(text, half)`.
    """

    __slots__ = ("_head", "_parts", "_whole_head", "half")

    def __init__(self, text: str = "", half: bytes = b"") -> None:
        self._parts = [text] if text else []
        self._head = b""
        self._whole_head = not text  # nothing but `_head` so far
        self.half = half

    def add(self, text: str, torn: PartialCharacters | None = None) -> None:
        """More text; `torn`: where it begins or ends inside a character."""
        if not str.__len__(text):  # of a text in a trace, whose own length is a question
            return
        if torn is None:
            self.half, self._whole_head = b"", False
            self._parts.append(text)
            return
        head, is_head = torn.head, len(text) == len(torn.head)
        if self._whole_head:
            self._head += head[: _MOST - len(self._head)]
            self._whole_head = is_head
        if self.half and head:
            self._parts[-1] = self._parts[-1][:-1]
            joined = self.half + head
            text = joined.decode("utf-8", "replace") + text[len(head) :]
            self.half = _open_end(joined) if is_head else torn.tail
        else:
            self.half = torn.tail
        self._parts.append(text)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._parts)

    @property
    def torn(self) -> PartialCharacters | None:
        """Where all of it begins or ends inside a character."""
        return PartialCharacters(self._head, self.half) if self._head or self.half else None


def _open_end(data: bytes | bytearray) -> bytes:
    """The last bytes, if they can only be the beginning of a character."""
    for size in range(1, min(_MOST, len(data)) + 1):
        lead = data[-size]
        if lead >= 0xC0:
            end = bytes(data[-size:])
            whole = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return end if size < whole and end.decode("utf-8", "replace") == _REPLACED else b""
        if lead < 0x80:
            return b""
    return b""


FinishReason: TypeAlias = Literal["stop", "length", "eos", "constraint", "cancelled", "selected"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScore:
    """One position: its token, natural-log probability, raw bytes, and the best alternatives asked for.

    `logprob` and `top` are the model's own, before masks, penalties and temperature. constrained_logprob: of the token among
    those that its constraint allowed there; None where there was no constraint.
    """

    token_id: int
    logprob: float
    token_bytes: bytes = b""
    top: tuple[tuple[int, float, bytes], ...] = ()
    constrained_logprob: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceScore:
    """How one choice of a select fared: its score under the method, and each token's log-probability on its own path."""

    text: str
    score: float
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    unconditional: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What is known about a finished model call besides its value. Token counts are of the last attempt.

    prompt_tokens = cached_tokens (found in the prefix cache or shared with a sibling) + computed_tokens.
    """

    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason = "stop"
    matched: str | int | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    token_scores: tuple[TokenScore, ...] = ()
    choices: tuple[ChoiceScore, ...] = ()
    reasoning: str = ""
    reasoning_tokens: int = 0  # of `generated_tokens`; the end marker is among them
    reasoning_cut: bool = False  # the thoughts were ended by their budget, not by the model
    attempts: int = 1
    seed: int | None = None
    findings: tuple[str, ...] = ()  # what is odd about how the call was written
    model: str = ""
    weight_version: str = ""
    asked_s: float | None = None  # on the run's clock, as all of these: when the call could have begun
    started_s: float = 0.0
    first_token_s: float = 0.0
    finished_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Accepted:
    """A validator's answer that takes a value and holds what it was made into, so that nobody has to make it again."""

    made: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a node resolved to. `value`: JSON-like data (a join's list may hold exceptions and MISSING), or what a tool
    gave, the object itself; `text`: what it adds to the state's text. A JoinError is raised by the future, not returned.

    torn: the text begins or ends inside a character, whose other bytes a neighbour may have (`PathText`).
    to_json: makes JSON of a tool's object for a record; raises FormatError where none comes back as an equal object.
    accepted: what a gen's validator made of the value; for readers in the run itself.
    """

    value: Any = None
    text: str = ""
    meta: Meta | None = None
    torn: PartialCharacters | None = None
    winners: tuple[int, ...] | None = None  # joins: the branches that decided, in deciding order
    to_json: Callable[[Any], Any] | None = field(default=None, compare=False, repr=False)
    accepted: Accepted | None = field(default=None, compare=False, repr=False)


class _Missing:
    """The value of a branch that never bound the joined name. Falsy; a single instance."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return "MISSING"  # the one there is, in another process too


MISSING = _Missing()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of a run. asked: prompt tokens summed over finished calls, as an engine without any sharing would compute
    them. reused: those of them that were found computed. computed: all tokens of prompts and of choices that were put
    through the model for this run, also those of calls that were cancelled or failed (which are in `lost_tokens`, too) and
    those computed again after a shortage of memory.
    """

    calls: int = 0
    asked_tokens: int = 0
    computed_tokens: int = 0
    reused_tokens: int = 0
    lost_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    peak_kv_pages: int = 0
    wall_s: float = 0.0

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """What a notebook shows: the counts as a table."""
        shown = [(field.name.replace("_", " "), getattr(self, field.name)) for field in fields(self)]
        rows = "".join(
            f"<tr><td>{name}</td><td style='text-align:right'>{f'{value:,.3f}' if isinstance(value, float) else f'{value:,}'}</td></tr>"
            for name, value in shown
        )
        return {"text/html": f"<table>{rows}</table>", "text/plain": repr(self)}
