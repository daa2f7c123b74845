"""What one run of a body leaves: the decisions it went on with, and its nodes loosened from their context.

A decision is an answer to what the body asked of a value that has few possibilities. Where only a model can answer, `ModelAnswers`
are made up: yes and no, or a few values that lead different ways. They are never seen outside: a run with guesses only
shows what a body does whatever the answer (`tracer.py`).

Where a node stands is said by its line: the program's own, or a branch (fork id, index). Its context is whatever comes
before it on that line. Loose nodes of two runs of a body can be compared and moved, and linking gives them their context
back:

    loosen    Text "a" -> Fork f -> Text "b" (branch 0)        =>   (main, Text "a") (main, Fork f) ((f, 0), Text "b")
    link      a Region, which holds what differs between runs, becomes a Switch with linked graphs for arms
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeAlias

from ...errors import Origin
from ...ir.graph import Graph
from ...ir.nodes import (
    Arm,
    Concat,
    Constant,
    DictOf,
    Expression,
    Fork,
    Input,
    Join,
    Json,
    ListOf,
    Node,
    Piece,
    Plain,
    Reference,
    Return,
    RoleBegin,
    RoleEnd,
    Switch,
    Text,
)
from .shapes import DataShape, NumberShape
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


class BodyStopped(BaseException):
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


class ModelAnswers:
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
    if isinstance(shape, NumberShape):
        around = [n for arg in given if type(arg) in (int, float) for n in (arg - 1, arg, arg + 1)]
        return [shape.python(n) for n in dict.fromkeys([0, 1, *around])]
    if isinstance(shape, DataShape) and shape.python is list:
        return [[], [] if shape.item is None else [follower.member(after(reference, "item", 0), shape.item)]]
    if isinstance(shape, DataShape) and shape.python is dict:
        return [{}, {k: follower.member(after(reference, "item", k), inner) for k, inner in shape.members or ()}]
    return []


# --- nodes as items --------------------------------------------------------------------------------------------------------


Line: TypeAlias = tuple[str, int] | None  # a branch of a fork; None: the line that the graph itself continues


class Item(NamedTuple):
    """A node, the line it stands on, and the turn that is open there before it (of a Return, which belongs to no turn: None)."""

    line: Line
    node: Node
    role: str | None = None


class ArmItems(NamedTuple):
    """One arm of a Region: the values it is for, what happens, and what is read of it afterwards."""

    values: Group
    items: tuple[Item, ...]
    results: tuple[tuple[str, Expression], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Region(Node):
    """A Switch that is not linked yet."""

    kind: ClassVar[str] = "region"

    on: Reference
    ways: tuple[ArmItems, ...]
    assumed: bool = False


def loosen(nodes: Iterable[Node], base: Line = None, role: str | None = None) -> list[Item]:
    """The nodes of one run as items, Inputs aside. `base`: the branch that the run continues, if it is one's body; `role`: the turn
    that is open where it starts.
    """
    lines: dict[str, Line] = {}
    roles: dict[Line, str | None] = {None: role}
    items: list[Item] = []
    for node in nodes:
        if isinstance(node, Input):
            continue
        if node.branch is not None and node.context is not None and (node.context, node.branch) != base:
            line: Line = (node.context, node.branch)
        else:
            line = lines.get(node.context or "")
        lines[node.id] = line
        loose = replace(node, context=None, branch=None)
        if isinstance(loose, Join):
            loose = replace(loose, tips=())
        items.append(Item(line, loose, None if isinstance(node, Return) else roles.get(line)))
        _note_roles(roles, line, node)
    return items


def _note_roles(roles: dict[Line, str | None], line: Line, node: Node) -> None:
    """What turns are open after a node."""
    if isinstance(node, RoleBegin):
        roles[line] = node.role
    elif isinstance(node, RoleEnd):
        roles[line] = None
    elif isinstance(node, Fork):
        roles.update({(node.id, index): roles.get(line) for index in range(node.size)})


def link(items: Sequence[Item], base: Line = None, outside: Mapping[Line, str] | None = None) -> Iterator[Node]:
    """The items as nodes in order. `base`: the line that the graph continues; `outside`: the tips of lines around it."""
    tips: dict[Line, str] = {}
    around = outside or {}
    for line, node, _ in items:
        context, branch = tips.get(line), None
        if context is None and line is not None and line != base:
            context, branch = line
        if isinstance(node, Join):
            ends = [(node.fork, i) for i in range(len(node.values))]
            node = replace(node, tips=tuple(tips.get(end) or around.get(end) or node.fork for end in ends))
        linked = replace(node, context=context, branch=branch)
        yield _switch(linked, line, {**around, **tips}) if isinstance(linked, Region) else linked
        if not isinstance(node, Return):
            tips[line] = node.id


def _switch(region: Region, line: Line, outside: Mapping[Line, str]) -> Switch:
    arms = tuple(_arm(way, line, outside) for way in region.ways)
    return Switch(
        id=region.id, context=region.context, branch=region.branch, scope=region.scope, origin=region.origin,
        on=region.on, arms=arms, assumed=region.assumed,
    )  # fmt: skip


def _arm(way: ArmItems, line: Line, outside: Mapping[Line, str]) -> Arm:
    result = DictOf(way.results) if way.results else None
    items = [item for item in way.items if not _is_empty_return(item.node)]
    return Arm(way.values, Graph(link(items, line, outside)).freeze(), result)


def _is_empty_return(node: Node) -> bool:
    return isinstance(node, Return) and node.value == Constant(None)


# --- holes: the expressions in which two nodes may differ and still be one --------------------------------------------


def holes(node: Node) -> tuple[Expression, ...]:
    """The expressions of a node that a value of a Switch can stand in for."""
    match node:
        case Return(value=value):
            return (value,)
        case Join(values=values):
            return tuple(v for v in values if v is not None)
        case Text(pieces=pieces):
            return tuple(p for p in pieces if isinstance(p, Reference))
    return ()


def filled(node: Node, expressions: Sequence[Expression]) -> Node:
    """The node with other expressions in its holes, in order."""
    following = iter(expressions)
    match node:
        case Return():
            return replace(node, value=next(following))
        case Join(values=values):
            return replace(node, values=tuple(v if v is None else next(following) for v in values))
        case Text(pieces=pieces):
            said = tuple(_as_piece(next(following)) if isinstance(p, Reference) else p for p in pieces)
            return replace(node, pieces=said)
    return node


class ExpressionFrame(NamedTuple):
    """What stands around the parts of an expression: the kind, the number of parts, and the keys of an object."""

    kind: type
    size: int
    keys: tuple[str, ...] = ()

    def made(self, parts: Sequence[Expression]) -> Expression:
        """The expression with these parts."""
        if self.kind is DictOf:
            return DictOf(tuple(zip(self.keys, parts, strict=True)))
        made: Expression = self.kind(tuple(parts))
        return made


def parts_of(expression: Expression) -> tuple[ExpressionFrame, Sequence[Expression]] | None:
    """A list, object or text taken apart; None for anything else, and where nothing is in it."""
    match expression:
        case Concat(parts) if parts:
            return ExpressionFrame(Concat, len(parts)), parts
        case ListOf(items) if items:
            return ExpressionFrame(ListOf, len(items)), items
        case Constant(value=[*items]) if items:
            return ExpressionFrame(ListOf, len(items)), [Constant(item) for item in items]
        case DictOf(pairs) if pairs:
            return ExpressionFrame(DictOf, len(pairs), tuple(key for key, _ in pairs)), [part for _, part in pairs]
        case Constant(value=dict() as known) if known:
            return ExpressionFrame(DictOf, len(known), tuple(known)), [Constant(part) for part in known.values()]
    return None


def _as_piece(expression: Expression) -> Piece:
    return expression if isinstance(expression, Reference) else Plain("")


def forks_needed(item: Item) -> set[str]:
    """The forks whose branches an item stands on or joins."""
    needed = set() if item.line is None else {item.line[0]}
    if isinstance(item.node, Join):
        needed.add(item.node.fork)
    if isinstance(item.node, Region):
        needed.update(fork for way in item.node.ways for inner in way.items for fork in forks_needed(inner))
    return needed


def outline(item: Item) -> Item:
    """What has to be equal for two items of different runs to be the same: their skeletons, whatever round of a loop it is."""
    node = replace(item.node, id=OCCURRENCE.sub("", item.node.id), control=())
    return skeleton(item._replace(node=node))


def skeleton(item: Item) -> Item:
    """What has to be equal for two items to be one: all but what is in the holes."""
    return item._replace(node=filled(item.node, [Constant(None)] * len(holes(item.node))))
