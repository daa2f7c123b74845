"""Decisions: where a body asked something of a value that has few possibilities.

Made-up answers to what only a model can say: yes and no, or a few values that lead different ways.

They are never seen outside: a run with guesses only shows what a body does whatever the answer (`tracer.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ...errors import Origin
from ...ir.nodes import Json, Reference
from .shapes import Data, Number
from .values import Unknown, after

Chooser: TypeAlias = "Callable[[Decision], int]"
Group: TypeAlias = tuple[Json, ...] | None  # values with one answer; None: all that no other group names

OCCURRENCE = re.compile(r"#\d+")


def _without_repeats(node_id: str) -> str:
    """The id as it would be had no program of its scope called itself, directly or through others."""
    *programs, label = node_id.split("/")
    kept: list[str] = []
    for program in programs:
        if program in kept:
            del kept[kept.index(program) + 1 :]
        else:
            kept.append(program)
    if len(kept) < len(programs):
        label = label.partition("[")[0]  # without the branches: each depth has its own
    return "/".join([*kept, label])


class Stop(BaseException):
    """Ends a run of the body at its Break. No `Exception`, so that the body's own handlers let it through."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One answer that a run of the body went on with.

    on: the value asked of, as JSON. groups: its possibilities by answer. taken: the index of the group followed. at: nodes that
    the body had appended before. narrowed: earlier answers have ruled out some values.
    """

    on: Reference
    groups: tuple[Group, ...]
    taken: int
    at: int
    origin: Origin
    narrowed: bool = False

    @property
    def values(self) -> Group:
        """The values followed."""
        return self.groups[self.taken]

    @property
    def place(self) -> tuple[str, int, int, str]:
        """The question without the round of a loop, or of a recursion, that it was asked in."""
        asked = _without_repeats(OCCURRENCE.sub("", self.on.node_id))
        return (self.origin.file, self.origin.line, self.origin.column, asked)

    @property
    def recursive(self) -> bool:
        """Whether it was asked in a program that runs inside itself."""
        return _without_repeats(self.on.node_id) != self.on.node_id

    def instead(self, taken: int) -> Decision:
        """The same question with another answer."""
        return replace(self, taken=taken)

    def same_question(self, other: Decision) -> bool:
        """Whether `other` asks the same at the same point."""
        return (self.on, self.groups, self.at) == (other.on, other.groups, other.at)


def way_out(reason: str, language: str) -> str:
    """What to write instead of what a trace stopped at, in the language of the program."""
    if "a trace asks no model" in reason:
        return (
            "append to this state what the other program says"
            if language == "sglang"
            else "call it on this state: other(s, ...)"
        )
    if language == "sglang":
        return (
            "ask a select, or a gen with choices= or dtype=bool; @sglang_dsl.program has tools and s.map for the rest"
        )
    if reason.startswith("iteration of") and "an item of a map" not in reason:
        return "s.map(items, body) for each of a list; or put the question into a tool"
    return "ask a select, a bool or a Literal; or put the question into a tool (s.call)"


MAX_GUESSES = 4096  # of one run: a loop that goes on by what is made up ends here
MAX_ROUNDS = 64  # of them on one branch
STEADY_ROUNDS = 24  # of one question on one branch, before its answers alternate, so that loops end

Answers: TypeAlias = dict[tuple[Reference, tuple[Group, ...]], int]


class Guesses:
    """Answers to questions that only a model can answer. Owner: one run.

    first: which of the possible answers comes first; alternating: whether the next branch that asks the same gets the next one.
    answers: what questions with few answers were answered in the runs beside this one. made_up: the numbers of the answers
    given, by question, of those that are not just yes or no.
    """

    def __init__(self, first: int, *, alternating: bool, answers: Answers) -> None:
        self.answers = answers
        self.made_up: dict[object, int] = {}
        self._first = first
        self._alternating = alternating
        self._given: dict[object, int] = {}
        self._asked: Counter[object] = Counter()
        self._total = 0

    def taken(self, question: object, place: object, line: object, count: int, *, finite: bool) -> int | None:
        """The number of the answer, the same each time a question is asked; None where there were too many."""
        self._asked[line] += 1
        self._total += 1
        if self._total > MAX_GUESSES or self._asked[line] > MAX_ROUNDS:
            return None
        if question not in self._given:
            lines, rounds = self._asked[place], self._asked[place, line]
            self._asked[place] += 1
            self._asked[place, line] += 1
            shift = lines if self._alternating else max(0, rounds - STEADY_ROUNDS)
            self._given[question] = (self._first + shift) % count
        if not finite:
            self.made_up[question] = self._given[question]
        return self._given[question]


def possible_answers(question: Callable[[Any], Any], candidates: Sequence[Any]) -> list[Any]:
    """What a question may be answered with: both answers of a yes or no; else what it gives for made-up values. No list of
    one: what cannot vary cannot show what hangs on it.
    """
    found: dict[object, Any] = {}
    for number, candidate in enumerate(candidates):
        try:
            answer = question(candidate)
        except Exception:  # noqa: BLE001  this candidate is no value that the question could be asked of
            continue
        if answer is not NotImplemented:
            plain = answer is None or isinstance(answer, (bool, int, float, str))
            found.setdefault((type(answer), answer) if plain else number, answer)
    answers = list(found.values())
    if answers and all(isinstance(answer, bool) for answer in answers):
        return [False, True]
    if len(answers) == 1 and type(answers[0]) in (int, str):
        answers.append(answers[0] + (1 if type(answers[0]) is int else "?"))
    return answers if len(answers) > 1 else []


def made_up_texts(given: Sequence[Any]) -> list[str]:
    """Texts that answer a question in different ways, `given` what it was asked with."""
    words = [
        str.__str__(each)
        for arg in given
        for each in (arg if isinstance(arg, tuple) else (arg,))
        if isinstance(each, str)
    ]
    return list(dict.fromkeys(["", *words, "1", "~"]))


def made_up_values(value: Unknown, given: Sequence[Any]) -> list[Any]:
    """The same of a number or of data."""
    shape, follower, reference = value._shape, value._follower, value._reference
    if isinstance(shape, Number):
        around = [n for arg in given if type(arg) in (int, float) for n in (arg - 1, arg, arg + 1)]
        return [shape.python(n) for n in dict.fromkeys([0, 1, *around])]
    if isinstance(shape, Data) and shape.python is list:
        return [[], [] if shape.item is None else [follower.member(after(reference, "item", 0), shape.item)]]
    if isinstance(shape, Data) and shape.python is dict:
        return [{}, {k: follower.member(after(reference, "item", k), inner) for k, inner in shape.members or ()}]
    return []
