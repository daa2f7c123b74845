"""Which call gets which reply. Strict: an unscripted call fails with its prompt, and replies left over fail `verify`.

["one", "two"]                      the calls in order of the program: siblings in rounds, in branch order
{"answer": "yes"}                   every call of this name (or node id)
{"answer": ["a", "b"]}              its first call, its second call
{"k": {"Lyon": -1.0, "Paris": -2}}  a select: scores of its choices; {"k": "Lyon"} makes that choice win
lambda call: ...                    a function of the call; None: not scripted
[Rule(when=..., reply=...), ...]    by predicate, the first that fits
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from ....errors import ScriptError
from ....ir.specs import shown, whole
from ...schedule.request import Lineage
from .calls import Answerer, Call, Reply, ReplyLike, fails, reply_of

Policy: TypeAlias = Literal["strict", "cycle", "last", "echo"]
Score: TypeAlias = float | Sequence[float]
Scores: TypeAlias = Callable[[Call, str], Score] | Mapping[str, Mapping[str, Score]]
ScriptLike: TypeAlias = "Script | Answerer | Mapping[str, Any] | Sequence[Any] | None"

_NO_RUN = Lineage("", 0, 1)  # calls that no program makes
PROMPT_SHOWN = 240  # characters of a prompt's end, in an error


@runtime_checkable
class Script(Protocol):
    """Answers calls. Called in order of submission, under the mock's lock."""

    def answer(self, call: Call) -> Reply | None:
        """The reply; None: not scripted."""

    def describe(self) -> str:
        """What the script holds, for the message of an unscripted call."""

    def leftovers(self) -> list[str]:
        """What was never used, in words."""

    def names(self) -> Iterable[str]:
        """Names it knows, for near misses."""


class ReplyQueue:
    """Replies in order; then an error, the whole list again, or the last one for ever.

    The order is that of the program, not of who asks first: see `CallNumbers`. A call whose place lies behind the end of the list
    (siblings that call unequally often) takes the first reply that is left.
    """

    def __init__(self, replies: Sequence[ReplyLike | Answerer], policy: Policy = "strict") -> None:
        if not replies:
            raise ScriptError("a script without replies", hint="give at least one reply, or no script at all")
        self._replies = list(replies)
        self._policy = policy
        self._places = CallNumbers()
        self._left = dict.fromkeys(range(len(replies)))

    def answer(self, call: Call) -> Reply | None:
        """The reply; None: not scripted."""
        index = self._places.next(call.request.label.lineage or _NO_RUN)
        if self._policy == "cycle":
            index %= len(self._replies)
        elif index not in self._left:
            index = next(iter(self._left), -1)
            if index < 0 and self._policy != "last":
                return None
        self._left.pop(index, None)
        return _answered(self._replies[index], call)

    def describe(self) -> str:
        """What the script holds, for the message of an unscripted call."""
        return f"all {len(self._replies)} scripted replies were used by earlier calls"

    def leftovers(self) -> list[str]:
        """What was never used, in words."""
        return [f"reply {i}: {_short(self._replies[i])}" for i in self._left]

    def names(self) -> Iterable[str]:
        """Names it knows, for near misses."""
        return ()


class CallNumbers:
    """Which call is the how-manieth, whoever of several siblings asks first.

    Siblings (branches of a fork, items of a map or a batch) take turns in rounds: first the first call of each, in order, then
    the second of each. What a state calls after a fork comes after all that its branches have called by then; a run that is
    asked for later comes after those before it.

        x    fork(3): x x    x         places   0    1 2 3    7
                      x x                            4 5 6
    """

    def __init__(self) -> None:
        self._lines: dict[Lineage, _Line] = {}
        self._outermost: dict[str, _Region] = {}
        self._end = 0

    def next(self, lineage: Lineage) -> int:
        """The place of this sibling's next call."""
        line = self._line(lineage)
        place = line.begin + line.calls * line.width + line.offset
        line.calls += 1
        self._end = max(self._end, place + 1)
        while (outer := line.region.outer) is not None:  # what follows a region comes behind its last round
            behind = line.region.begun_at + line.region.size * line.calls
            if outer.calls >= behind:
                break
            outer.calls, line = behind, outer
        return place

    def _line(self, lineage: Lineage) -> _Line:
        """The line of this sibling, made along with those of its outer ones where it is new."""
        unknown: list[Lineage] = []
        at: Lineage | None = lineage
        while at is not None and at not in self._lines:
            unknown.append(at)
            at = at.outer
        outer = None if at is None else self._lines[at]
        for each in reversed(unknown):
            regions = self._outermost if outer is None else outer.regions
            region = regions.get(each.region)
            if region is None:
                region = regions[each.region] = _Region(each.size, outer, self._end)
            outer = region.lines.get(each.index)
            if outer is None:
                outer = region.lines[each.index] = _Line(region, each.index)
            self._lines[each] = outer
        return self._lines[lineage]


class _Region:
    """A fork, map or batch, as far as its siblings call. `begun_at`: calls of the outer line when the first sibling called."""

    def __init__(self, size: int, outer: _Line | None, end: int) -> None:
        self.size = size
        self.outer = outer
        self.begun_at: int = 0 if outer is None else outer.calls
        self.begin: int = end if outer is None else outer.begin + outer.calls * outer.width
        self.width: int = size * (1 if outer is None else outer.width)
        self.offset: int = 0 if outer is None else outer.offset * size
        self.lines: dict[int, _Line] = {}


class _Line:
    """The calls of one sibling: its call number n has the place begin + n * width + offset."""

    def __init__(self, region: _Region, index: int) -> None:
        self.region = region
        self.begin = region.begin
        self.width = region.width
        self.offset = region.offset + index
        self.calls = 0
        self.regions: dict[str, _Region] = {}


class RepliesByName:
    """A reply, or a queue of them, per name or node id."""

    def __init__(self, replies: Mapping[str, Any], policy: Policy = "strict") -> None:
        for name in replies:
            if not isinstance(name, str):
                raise ScriptError(f"a script has the name {shown(name)}, which is no text", hint='{"answer": ...}')
        self._queues = {
            name: ReplyQueue(reply, policy) if isinstance(reply, list) else ReplyQueue([reply], "last")
            for name, reply in replies.items()
        }

    def answer(self, call: Call) -> Reply | None:
        """The reply; None: not scripted."""
        queue = self._queues.get(call.node_id) or self._queues.get(call.name)
        return None if queue is None else queue.answer(call)

    def describe(self) -> str:
        """What the script holds, for the message of an unscripted call."""
        return f"the script has replies for {', '.join(sorted(self._queues)) or 'nothing'}"

    def leftovers(self) -> list[str]:
        """What was never used, in words."""
        return [f"{name}, {left}" for name, queue in self._queues.items() for left in queue.leftovers()]

    def names(self) -> Iterable[str]:
        """Names it knows, for near misses."""
        return self._queues


@dataclass(slots=True)
class Rule:
    """A reply for the calls of which `when` is true; at most `times` of them."""

    when: Callable[[Call], bool]
    reply: ReplyLike | Answerer
    times: int | None = None
    used: int = 0

    def __post_init__(self) -> None:
        if not callable(self.when):
            raise ScriptError(f"when={shown(self.when)} is no function of the call", hint="when=lambda call: ...")
        if self.times is not None:
            whole("times", self.times, 1)

    def takes(self, call: Call) -> bool:
        """Whether this call is its own."""
        return (self.times is None or self.used < self.times) and self.when(call)


class Rules:
    """The first rule that fits answers."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = list(rules)

    def answer(self, call: Call) -> Reply | None:
        """The reply; None: not scripted."""
        rule = next((rule for rule in self._rules if rule.takes(call)), None)
        if rule is None:
            return None
        rule.used += 1
        return _answered(rule.reply, call)

    def describe(self) -> str:
        """What the script holds, for the message of an unscripted call."""
        return f"none of {len(self._rules)} rules fits"

    def leftovers(self) -> list[str]:
        """What was never used, in words."""
        return [
            f"rule {i}: {_short(rule.reply)}, used {rule.used} times"
            for i, rule in enumerate(self._rules)
            if rule.used < (1 if rule.times is None else rule.times)
        ]

    def names(self) -> Iterable[str]:
        """Names it knows, for near misses."""
        return ()


class ReplyFunction:
    """A function of the call."""

    def __init__(self, function: Answerer) -> None:
        self._function = function

    def answer(self, call: Call) -> Reply | None:
        """The reply; None: not scripted."""
        return _answered(self._function, call)

    def describe(self) -> str:
        """What the script holds, for the message of an unscripted call."""
        return "the script's function returned None"

    def leftovers(self) -> list[str]:
        """What was never used, in words."""
        return []

    def names(self) -> Iterable[str]:
        """Names it knows, for near misses."""
        return ()


class _Around:
    """Another script, with something added."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def answer(self, call: Call) -> Reply | None:
        """The reply; None: not scripted."""
        return self._script.answer(call)

    def describe(self) -> str:
        """What the script holds, for the message of an unscripted call."""
        return self._script.describe()

    def leftovers(self) -> list[str]:
        """What was never used, in words."""
        return self._script.leftovers()

    def names(self) -> Iterable[str]:
        """Names it knows, for near misses."""
        return self._script.names()


class FailingCalls(_Around):
    """Calls whose prompt contains a text fail."""

    def __init__(self, text: str, script: Script) -> None:
        super().__init__(script)
        self._text = text

    def answer(self, call: Call) -> Reply | None:
        """The reply; None: not scripted."""
        return fails(f"the prompt contains {self._text!r}") if self._text in call.prompt else super().answer(call)


class ScoredSelects(_Around):
    """Selects the script does not answer are scored by a table or a function."""

    def __init__(self, scores: Scores, script: Script) -> None:
        super().__init__(script)
        self._scores = scores

    def answer(self, call: Call) -> Reply | None:
        """The reply; None: not scripted."""
        reply = super().answer(call)
        if reply is not None or not call.choices:
            return reply
        if callable(self._scores):
            score = self._scores
            return reply_of({choice: score(call, choice) for choice in call.choices}, call)
        table = self._scores.get(call.name) or self._scores.get(call.node_id)
        return None if table is None else reply_of(table, call)


class EmptyScript:
    """No script: whatever is asked is unscripted."""

    def answer(self, call: Call) -> Reply | None:
        """The reply; None: not scripted."""
        return None

    def describe(self) -> str:
        """What the script holds, for the message of an unscripted call."""
        return "the mock has no script"

    def leftovers(self) -> list[str]:
        """What was never used, in words."""
        return []

    def names(self) -> Iterable[str]:
        """Names it knows, for near misses."""
        return ()


def script_of(script: ScriptLike, policy: Policy = "strict") -> Script:
    """What a user passes, as a Script. Raises ScriptError for what is none."""
    match script:
        case None:
            return EmptyScript()
        case Mapping():
            return RepliesByName(script, policy)
        case str() | bytes():
            raise ScriptError(
                "a script is not a single text", hint="pass a list of replies, a dict by name, or a function"
            )
        case [*entries] if any(isinstance(entry, Rule) for entry in entries):
            if not all(isinstance(entry, Rule) for entry in entries):
                raise ScriptError("a script mixes rules and replies", hint="Rule(when=lambda call: True, reply=...)")
            return Rules(entries)
        case Sequence():
            return ReplyQueue(script, policy)
    if callable(script):
        return ReplyFunction(script)
    if isinstance(script, Script):
        return script
    raise ScriptError(
        f"{shown(script)} is no script", hint="pass a list of replies, a dict by name, a list of Rules, or a function"
    )


def unscripted(call: Call, script: Script) -> ScriptError:
    """The error for a call nobody scripted: its node, the end of its prompt, and the nearest match."""
    who = f"{call.name!r} (node {call.node_id})" if call.name else f"node {call.node_id!r}"
    names = list(script.names())
    if call.name in names or call.node_id in names:
        why = "the replies for it were all used by earlier calls."
    else:
        near = get_close_matches(call.name or call.node_id, names, n=1)
        why = f"{script.describe()}." + (f" The nearest name in the script is {near[0]!r}." if near else "")
    shown = call.prompt if len(call.prompt) <= PROMPT_SHOWN else "..." + call.prompt[-PROMPT_SHOWN:]
    return ScriptError(
        f"the call of {who} is not scripted: {why} Its prompt ends: {shown!r}",
        hint='add a reply for it, or ask for one with unscripted="schema" or "echo"',
    )


def left_over(script: Script) -> ScriptError | None:
    """The error for replies that no call used, if there are any."""
    left = script.leftovers()
    if not left:
        return None
    return ScriptError(
        f"{len(left)} scripted replies were not used: {'; '.join(left[:5])}{'; ...' if len(left) > 5 else ''}",
        hint="the program made fewer calls than the script expects: remove them, or look why",
    )


def _answered(reply: ReplyLike | Answerer, call: Call) -> Reply | None:
    answer: ReplyLike = reply(call) if callable(reply) else reply
    return None if answer is None else reply_of(answer, call)


def _short(reply: object) -> str:
    shown = repr(reply)
    return shown if len(shown) <= 60 else shown[:57] + "..."
