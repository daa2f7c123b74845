"""What a mock was asked, in order, with what tests want to know about it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Protocol

from ....errors import ScriptError, SpecError
from ....ir.specs import ConstraintSpec, SamplingSpec, shown
from ...schedule.request import GenerateRequest, GenerateResult, Label, Request, Result


class Shows(Protocol):
    """Who can show token ids."""

    def show(self, token_ids: Sequence[int]) -> str:
        """Their text, control tokens included."""


@dataclass(slots=True, eq=False)
class Call:
    """One request that reached the mock, and what came of it.

    started, ended: when, as places in one order of all starts and ends (-1: not yet).
    """

    request: Request
    tokenizer: Shows
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

    def start(self, call: Call) -> None:
        """It was admitted."""
        call.started = self._tick()

    def end(self, call: Call, result: Result | Exception) -> None:
        """It ended."""
        call.result = result
        call.ended = self._tick()

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

    def _tick(self) -> int:
        with self._lock:
            self._clock += 1
            return self._clock


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
