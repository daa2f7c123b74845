"""Paths that part at a decision and meet again, as Switch regions.

Each answer of a decision was followed to its end. What all of them do alike (the same node, on the same line, in the same
order) happens once; every stretch in which they differ becomes a Region on the value decided on:

    a: | Text "A"        | Gen g | Text "x" |         Region(on v)  --  Gen g  --  Region(on v)
    b: | Text "B" Gen h  | Gen g |          |    =>    a: Text "A"                  a: Text "x"
                                                       b: Text "B", Gen h           b: nothing

A node after a Region that mentions a value from inside it reads the Region's result. The same nodes that differ only in what
they mention (a Return, a Join, a Text) stay one: the Region's result says what is mentioned.

Linked, a Region is a Switch. `renamed` calls it by the value decided on, with a number where that is decided on again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from ...errors import Origin
from ...ir.nodes import (
    Break,
    Constant,
    Expression,
    Fork,
    Node,
    Operation,
    Reference,
    Return,
    Switch,
    references_in,
)
from ...ir.semantics import every_node, mapped, renaming, replaced
from .items import (
    ArmItems,
    Decision,
    Group,
    Item,
    Line,
    Region,
    filled,
    forks_needed,
    holes,
    parts_of,
    skeleton,
)


def merged(decision: Decision, ways: Sequence[tuple[Group, list[Item]]], *, assumed: bool = False) -> list[Item]:
    """The items of all answers as one list."""
    distinct = _distinct(ways)
    if len(distinct) == 1:
        return distinct[0][1]
    return ArmMerger(decision, distinct, assumed=assumed).finished()


def _distinct(ways: Sequence[tuple[Group, list[Item]]]) -> list[tuple[Group, list[Item]]]:
    """Answers after which the same happens are one."""
    found: list[tuple[Group, list[Item]]] = []
    for values, items in ways:
        for index, (known, same) in enumerate(found):
            if same == items:
                found[index] = (None if known is None or values is None else known + values, same)
                break
        else:
            found.append((values, items))
    return found


@dataclass(slots=True)
class _Draft:
    """A Region being written. `results`: per way, what is read of it later."""

    id: str
    line: Line
    role: str | None
    ways: list[tuple[Group, list[Item]]]
    results: list[dict[str, Expression]] = field(default_factory=list)


class ArmMerger:
    """Merges the ways of one decision. Owner: whoever lists its items."""

    def __init__(self, decision: Decision, ways: Sequence[tuple[Group, list[Item]]], *, assumed: bool) -> None:
        self._on = decision.on
        self._origin: Origin = decision.origin
        self._assumed = assumed
        self._values = [values for values, _ in ways]
        if decision.narrowed and None not in self._values:
            self._values[-1] = None  # the last arm takes the values that cannot come, too
        self._paths = [items for _, items in ways]
        ended = [_returns(path) for path in self._paths]
        broken = [any(isinstance(i.node, Break) for i in p) and not ended[k] for k, p in enumerate(self._paths)]
        if not any(ended):  # all go on behind what meets here, also beyond their Breaks
            broken = [False for _ in ways]
        self._live = [k for k in range(len(ways)) if not broken[k]] if not all(broken) else list(range(len(ways)))
        self._out: list[Item | _Draft] = []
        self._homes: list[dict[str, _Draft]] = [{} for _ in ways]  # per way: in which Region a node's value is
        self._weave()

    def finished(self) -> list[Item]:
        """All of it. What follows has to be `shared` before."""
        return [self._region(each) if isinstance(each, _Draft) else each for each in self._out]

    def seen(self, reference: Reference) -> Reference:
        """How a value of the first way is mentioned from outside."""
        return self._seen(reference, 0)

    def shared(self, common: Item, by_way: Sequence[Item]) -> Item:
        """An item that follows all ways, given what each makes of it: the same node, which may mention other values."""
        if all(item is common for item in by_way):
            return common._replace(node=mapped(common.node, self.seen)) if self._homes[0] else common
        filling = []
        for number, expressions in enumerate(zip(*(holes(item.node) for item in by_way), strict=True)):
            filling.append(self._unified(f"{common.node.id}.{number}", common, dict(enumerate(expressions))))
        node = mapped(common.node, self.seen)
        return common._replace(node=filled(node, filling) if filling else node)

    def _unified(self, key: str, item: Item, by_way: dict[int, Expression]) -> Expression:
        """One expression for those of all ways: the same, or the same around parts of which the Region says which."""
        if all(expression == by_way[0] for expression in by_way.values()):
            return replaced(by_way[0], self.seen)
        inner = [parts_of(expression) for expression in by_way.values()]
        if inner[0] is None or any(parts is None or parts[0] != inner[0][0] for parts in inner):
            return self._one_of(key, item, by_way)
        found = zip(*(parts[1] for parts in inner if parts is not None), strict=True)
        return inner[0][0].made(
            [self._unified(f"{key}.{n}", item, dict(enumerate(each))) for n, each in enumerate(found)]
        )

    def _weave(self) -> None:
        live = [self._paths[k] for k in self._live]
        start = [0] * len(live)
        for anchor in [*_anchors(live), tuple(len(path) for path in live)]:
            self._stretch({k: live[n][start[n] : anchor[n]] for n, k in enumerate(self._live)}, _id_at(live, anchor))
            if anchor[0] < len(live[0]):
                self._meet({k: live[n][anchor[n]] for n, k in enumerate(self._live)})
            start = [place + 1 for place in anchor]

    def _stretch(self, parts: dict[int, list[Item]], after: str) -> None:
        """What differs before the next common item: one Region per line it continues."""
        if not self._out:  # ways that break off never meet the others: all of them stands here
            parts.update((k, path) for k, path in enumerate(self._paths) if k not in self._live)
        forks = {item.node.id for items in parts.values() for item in items if isinstance(item.node, Fork)}
        lines = dict.fromkeys(_base(item.line, forks, parts) for items in parts.values() for item in items)
        for line in lines:
            ways = {k: [i for i in items if _base(i.line, forks, parts) == line] for k, items in parts.items()}
            self._add(line, ways, next(items[0] for items in ways.values() if items))

    def _add(self, line: Line, ways: dict[int, list[Item]], first: Item) -> _Draft:
        """A Region on `line`, called by the first item in it, or after it if it is empty."""
        count = len(self._values)
        region_id = f"{self._on.node_id}?{first.node.id}"
        inner = {each for items in ways.values() for each in _region_ids(items)}
        inner |= {each.id for each in self._out if isinstance(each, _Draft)}
        while region_id in inner:
            region_id += "'"
        draft = _Draft(region_id, line, first.role, [], [{} for _ in range(count)])
        for k in range(count):
            moved = ways.get(k, [])
            before = bool(self._homes[k])  # else nothing that they mention has moved
            self._homes[k].update((item.node.id, draft) for item in moved)
            if before:
                seen = partial(self._seen, way=k, inside=draft)
                moved = [each._replace(node=mapped(each.node, seen)) for each in moved]
            draft.ways.append((self._values[k], moved))
        self._out.append(draft)
        return draft

    def _meet(self, found: dict[int, Item]) -> None:
        """A common item. Where the ways mention different values in it, a Region before it says which."""
        first = next(iter(found))
        node = found[first].node
        filling: list[Expression] = []
        for number, expressions in enumerate(zip(*(holes(item.node) for item in found.values()), strict=True)):
            by_way = dict(zip(found, expressions, strict=True))
            if all(e == by_way[first] for e in expressions) and not self._is_missed(node, by_way[first]):
                filling.append(replaced(by_way[first], partial(self._seen, way=first)))
            else:
                filling.append(self._one_of(f"{node.id}.{number}", found[first], by_way))
        common = filled(node, filling) if filling else mapped(node, partial(self._seen, way=first))
        self._out.append(found[first]._replace(node=common))

    def _is_missed(self, node: Node, value: Expression) -> bool:
        """Whether it is what the program returns, and some way breaks off before: then it is said of the others only."""
        return isinstance(node, Return) and len(self._live) < len(self._paths) and value != Constant(None)

    def _one_of(self, key: str, item: Item, by_way: dict[int, Expression]) -> Reference:
        draft = self._region_that_sees(by_way) or self._add(item.line, {}, item)
        for k, expression in by_way.items():
            draft.results[k][key] = replaced(expression, partial(self._seen, way=k, inside=draft))
        return Reference(draft.id, (Operation("item", (key,)),))

    def _region_that_sees(self, by_way: dict[int, Expression]) -> _Draft | None:
        """The last Region, if nothing that the expressions mention came after it."""
        later: set[str] = set()
        for each in reversed(self._out):
            if isinstance(each, _Draft):
                return each if later.isdisjoint(r.node_id for e in by_way.values() for r in references_in(e)) else None
            later.add(each.node.id)
        return None

    def _seen(self, reference: Reference, way: int, inside: _Draft | None = None) -> Reference:
        """How a value is mentioned from outside of the Region that made it (or from `inside` one)."""
        home = self._homes[way].get(reference.node_id)
        if home is None or home is inside:
            return reference
        for k in range(len(self._values)):
            if self._homes[k].get(reference.node_id) is home:
                home.results[k][reference.node_id] = Reference(reference.node_id)
        return Reference(home.id, (Operation("item", (reference.node_id,)), *reference.operations))

    def _region(self, draft: _Draft) -> Item:
        ways = tuple(
            ArmItems(values, tuple(items), tuple(results.items()))
            for (values, items), results in zip(draft.ways, draft.results, strict=True)
        )
        region = Region(id=draft.id, on=self._on, ways=ways, assumed=self._assumed, origin=self._origin)
        return Item(draft.line, region, draft.role)


class MergedReferences:
    """How what Regions have made is mentioned after them."""

    def __init__(self, meetings: tuple[ArmMerger, ...] = ()) -> None:
        self._meetings = meetings

    def after(self, meeting: ArmMerger) -> MergedReferences:
        """With one Region more."""
        return MergedReferences((*self._meetings, meeting))

    def translated(self, item: Item) -> Item:
        """The item with every value mentioned from here."""
        return item._replace(node=mapped(item.node, self._reference)) if self._meetings else item

    def expression(self, expression: Expression) -> Expression:
        """The same of an expression."""
        return replaced(expression, self._reference)

    def _reference(self, reference: Reference) -> Reference:
        for meeting in self._meetings:
            reference = meeting.seen(reference)
        return reference


def _id_at(paths: Sequence[Sequence[Item]], places: tuple[int, ...]) -> str:
    return paths[0][places[0]].node.id if places[0] < len(paths[0]) else "end"


def _region_ids(items: Sequence[Item]) -> Iterator[str]:
    for item in items:
        if isinstance(item.node, Region):
            yield item.node.id
            for way in item.node.ways:
                yield from _region_ids(way.items)


def _returns(items: Sequence[Item]) -> bool:
    """Whether a way comes to the end of the body, and does not end at a Break."""
    return any(
        isinstance(item.node, Return)
        or (isinstance(item.node, Region) and any(_returns(w.items) for w in item.node.ways))
        for item in items
    )


def _base(line: Line, forks: set[str], parts: dict[int, list[Item]]) -> Line:
    """The line outside of a stretch that a line inside it continues."""
    while line is not None and line[0] in forks:
        fork = line[0]
        line = next(i.line for items in parts.values() for i in items if i.node.id == fork)
    return line


# --- where ways meet --------------------------------------------------------------------------------------------------


def _anchors(paths: Sequence[Sequence[Item]]) -> list[tuple[int, ...]]:
    """Places of the items that all paths have in common, in order; the longest common end comes first of all."""
    places = [{item.node.id: i for i, item in enumerate(path)} for path in paths]
    last = tuple(len(path) for path in paths)
    found: list[tuple[int, ...]] = []
    for item in reversed(paths[0]):
        where = tuple(place.get(item.node.id, -1) for place in places)
        if any(w < 0 or w >= bound for w, bound in zip(where, last, strict=True)):
            continue
        bare = [skeleton(path[w]) for path, w in zip(paths, where, strict=True)]
        if all(each == bare[0] for each in bare):
            found.append(where)
            last = where
    return _connected(paths, found[::-1])


def _connected(paths: Sequence[Sequence[Item]], anchors: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Without anchors inside a fork's life (from the fork to its last branch item or join) where the fork is no anchor."""
    while True:
        spans = [(n, span) for n, path in enumerate(paths) for span in _lives(path, {a[n] for a in anchors})]
        kept = [a for a in anchors if not any(begin < a[n] <= end for n, (begin, end) in spans)]
        if len(kept) == len(anchors):
            return anchors
        anchors = kept


def _lives(path: Sequence[Item], common: set[int]) -> Iterator[tuple[int, int]]:
    for begin, item in enumerate(path):
        if isinstance(item.node, Fork) and begin not in common:
            needing = [i for i, other in enumerate(path) if item.node.id in forks_needed(other)]
            yield begin, max(needing, default=begin)


def renamed(nodes: Iterable[Node]) -> list[Node]:
    """The nodes with short, unique ids for Switches, in order of appearance."""
    listed = list(nodes)
    names: dict[str, str] = {}
    taken: dict[str, int] = {}
    for switch in every_node(listed):
        if isinstance(switch, Switch) and switch.id not in names:
            base = f"{names.get(switch.on.node_id, switch.on.node_id)}?"
            taken[base] = taken.get(base, 0) + 1
            names[switch.id] = base if taken[base] == 1 else f"{base}{taken[base]}"
    if not names:
        return listed

    def rename(node_id: str) -> str:
        return names.get(node_id, node_id)

    return [mapped(node, renaming(names), rename) for node in listed]
