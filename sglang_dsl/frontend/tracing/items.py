"""Nodes loosened from their context, and linked again.

Where a node stands is said by its line: the program's own, or a branch (fork id, index). Its context is whatever comes
before it on that line. Loose nodes of two runs of a body can be compared and moved, and linking gives them their context
back:

    loosen    Text "a" -> Fork f -> Text "b" (branch 0)        =>   (main, Text "a") (main, Fork f) ((f, 0), Text "b")
    link      a Region, which holds what differs between runs, becomes a Switch with linked graphs for arms
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, TypeAlias

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
from .decisions import OCCURRENCE, Group

Line: TypeAlias = tuple[str, int] | None  # a branch of a fork; None: the line that the graph itself continues


class Item(NamedTuple):
    """A node, the line it stands on, and the turn that is open there before it (of a Return, which belongs to no turn: None)."""

    line: Line
    node: Node
    role: str | None = None


class Way(NamedTuple):
    """One arm of a Region: the values it is for, what happens, and what is read of it afterwards."""

    values: Group
    items: tuple[Item, ...]
    results: tuple[tuple[str, Expression], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Region(Node):
    """A Switch that is not linked yet."""

    kind: ClassVar[str] = "region"

    on: Reference
    ways: tuple[Way, ...]
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


def _arm(way: Way, line: Line, outside: Mapping[Line, str]) -> Arm:
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


class Around(NamedTuple):
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


def parts_of(expression: Expression) -> tuple[Around, Sequence[Expression]] | None:
    """A list, object or text taken apart; None for anything else, and where nothing is in it."""
    match expression:
        case Concat(parts) if parts:
            return Around(Concat, len(parts)), parts
        case ListOf(items) if items:
            return Around(ListOf, len(items)), items
        case Constant(value=[*items]) if items:
            return Around(ListOf, len(items)), [Constant(item) for item in items]
        case DictOf(pairs) if pairs:
            return Around(DictOf, len(pairs), tuple(key for key, _ in pairs)), [part for _, part in pairs]
        case Constant(value=dict() as known) if known:
            return Around(DictOf, len(known), tuple(known)), [Constant(part) for part in known.values()]
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
