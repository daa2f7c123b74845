"""What a body does beyond a Break: the same for every answer that the question there may get.

A run ends where the body asks what only a model can say. Where a branch of a fork does, the other branches and what comes after
them do not all hang on the answer: they are found by running the body again with made-up answers, several ways, and keeping what
all of them do. The branch itself ends at its Break:

    answer no:   x0 Break end0     x1 Break end1     last
    answer yes:  x0 Break y0 end0  x1 Break y1 end1  last        =>    x0 Break  x1 Break  last

So what a graph holds beyond a Break is less than a run does, never more that hangs on a guess. The graph says that it is
incomplete, its counts are lower bounds, and nothing exports it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from ...ir.graph import Graph
from ...ir.nodes import Break, Join, Node, Reference
from ...ir.verify import findings
from ..values import Unknown, after
from .decisions import Decision, Group
from .items import Item, Line, link, loosen, translated
from .shapes import Data, Number

if TYPE_CHECKING:
    from .path import Path

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


def went_on(stopped: Path, run: Callable[[Guesses], Path], script: Sequence[Decision], inputs: Sequence[Node]) -> Path:
    """The run that stopped at a Break, with what every answer there leads to.

    run: runs the body again, with guesses. script: the decisions that the run repeats, also those beyond the Break. inputs: the
    nodes of the program's unknown arguments.
    """
    answers: Answers = {(d.on, d.groups): d.taken for d in [*script, *stopped.decisions]}
    runs: list[tuple[Path, Guesses]] = []
    for first, alternating in ((0, False), (1, False), (0, True), (1, True)):
        guesses = Guesses(first, alternating=alternating, answers=answers)
        runs.append((run(guesses), guesses))
    ended = [(p, g) for p, g in runs if p.broken is None]
    for usable in (
        ended,
        [(p, g) for p, g in runs if p.followed],
        runs,
    ):  # what a guess has ended is less, and not wrong
        if usable and _all_vary([guesses for _, guesses in usable]):
            _take(stopped, [path for path, _ in usable], script, inputs)
            break
    if len(stopped.decisions) < len(script):
        stopped.diverge()
    return stopped


def _take(stopped: Path, runs: Sequence[Path], script: Sequence[Decision], inputs: Sequence[Node]) -> None:
    """Let it be what all runs did, if that is a graph and repeats the script."""
    composed = _composed(runs)
    if composed is None:
        return
    nodes, decisions = composed
    asked = [(d.on, d.groups, d.taken) for d in decisions[: len(script)]]
    if asked == [(d.on, d.groups, d.taken) for d in script] and not findings(Graph([*inputs, *nodes])):
        stopped.nodes, stopped.decisions = nodes, decisions


def _all_vary(runs: Sequence[Guesses]) -> bool:
    """Whether nothing that was made up is the same in all runs: it would look as if the body had said it."""
    first = runs[0].made_up
    return all(any(run.made_up.get(question) != number for run in runs[1:]) for question, number in first.items())


def _composed(paths: Sequence[Path]) -> tuple[list[Node], list[Decision]] | None:
    """The nodes and decisions that all runs have."""
    runs = [loosen(path.nodes) for path in paths]
    kept = _common(runs)
    first = paths[0]
    items = [runs[0][n] for n in kept]
    if not any(isinstance(item.node, Break) for item in items):
        return None
    present = {item.node.id for item in items}
    everywhere = [{(d.on, d.groups, d.taken) for d in path.decisions} for path in paths[1:]]
    decisions = [
        replace(d, at=sum(n < d.at for n in kept))
        for d in first.decisions
        if all((d.on, d.groups, d.taken) in others for others in everywhere)
        and (d.on.node_id in present or d.on.node_id not in {node.id for node in first.nodes})
    ]
    return list(link(items)), decisions


def _common(runs: Sequence[Sequence[Item]]) -> list[int]:
    """The numbers of those items of the first run that all others have too, in the same order, that mention no others and stand
    behind no Break of their line.
    """
    places = [{item.node.id: n for n, item in enumerate(run)} for run in runs]
    dropped = {node_id for place in places for node_id in place if any(node_id not in other for other in places)}
    last = [-1] * len(runs)
    kept: list[int] = []
    ended: set[Line] = set()
    for number, item in enumerate(runs[0]):
        where = [place.get(item.node.id, -1) for place in places]
        same = all(
            n > before and (run[n].line, run[n].node) == (item.line, item.node)
            for run, n, before in zip(runs, where, last, strict=True)
        )
        if same and item.line not in ended and dropped.isdisjoint(_needed(item)):
            kept.append(number)
            last = where
            if isinstance(item.node, Break):
                ended.add(item.line)
        else:
            dropped.add(item.node.id)
    return kept


def _needed(item: Item) -> set[str]:
    """The nodes without which an item is nothing."""
    needed = set() if item.line is None else {item.line[0]}
    if isinstance(item.node, Join):
        needed.add(item.node.fork)

    def note(reference: Reference) -> Reference:
        needed.add(reference.node_id)
        return reference

    translated(item.node, note)
    return needed
