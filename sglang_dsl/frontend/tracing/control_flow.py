"""`s.switch`, `s.loop` and `s.map` in a trace, and what reading a binding gives there.

A switch is a decision like that of an `if`: each run of the body takes one arm. The body of a loop, or of a map over items
that are not known, is followed by itself, with all its ways, and becomes a sub-graph.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from inspect import iscoroutine
from typing import Any, NoReturn

from ...errors import TraceError
from ...ir.execution import MISSING
from ...ir.graph import Graph
from ...ir.nodes import (
    Constant,
    Expression,
    Gen,
    Input,
    Json,
    Loop,
    Map,
    Node,
    Reference,
    Return,
    Select,
    Switch,
    ToolNode,
)
from ...ir.outcome import AppendedText
from ...ir.semantics import is_among, taken_by
from ..bindings import Bindings, JoinBinding, LocalBinding, NodeBinding, SpanBinding
from ..call_sites import CallSite
from ..cursor import Body, Cursor, Line
from ..data import MENTIONS, json_constant
from ..expressions import Handle
from ..recorder import decided_by, run_switch
from ..statement import push
from .explore import explored
from .items import BodyStopped, Chooser, Decision, Group, link, loosen
from .shapes import (
    BOOL,
    JSON,
    TEXT,
    DataShape,
    FiniteShape,
    NumberShape,
    OpaqueShape,
    Shape,
    TextShape,
    of_schema,
    of_type,
)
from .trace import BodyRun
from .values import Unknown, after, is_abstract

_PLAIN: dict[type, Shape] = {
    str: TEXT, int: NumberShape(), float: NumberShape(float), bool: BOOL, list: DataShape(list, plain=True), dict: DataShape(dict, plain=True)
}  # fmt: skip


def value_of(path: BodyRun, bound: NodeBinding) -> Any:
    """The stand-in for what is bound."""
    return _at(path, Reference(bound.node_id), bound)


def _at(path: BodyRun, reference: Reference, bound: NodeBinding) -> Any:
    if isinstance(bound, JoinBinding):
        return _gathered(path, reference, bound)
    return path.trace.member(reference, shape_of(path, bound))


def _gathered(path: BodyRun, reference: Reference, bound: JoinBinding) -> Any:
    match bound.mode:
        case "all":
            return _list(path, reference, bound)
        case "first":
            k = getattr(path.graph[bound.node_id], "k", 1)
            return [_any_part(path, after(reference, "item", i), bound) for i in range(k)]
        case "vote" | "quorum" | "best":
            return _any_part(path, reference, bound)
    return path.stop(
        f"the values of a join with mode {bound.mode!r} were read: which are errors only a run can say", reference
    )


def _list(path: BodyRun, reference: Reference, bound: JoinBinding) -> list[Any]:
    """A real list: how many branches there are is known."""
    found: list[Any] = []
    for index, part in enumerate(bound.parts[branch] for branch in bound.listed(())):
        item = after(reference, "item", index)
        if index in bound.spliced and isinstance(part, JoinBinding):
            found.extend(_part(path, after(item, "item", j), leaf) for j, leaf in enumerate(part.leaves))
        else:
            found.append(_part(path, item, part))
    return found


def _part(path: BodyRun, reference: Reference, part: NodeBinding | None) -> Any:
    return MISSING if part is None else _at(path, reference, part)


def _any_part(path: BodyRun, reference: Reference, bound: JoinBinding) -> Any:
    """A value of one branch, whichever it is: they have to be alike."""
    parts = [part for part in bound.parts if part is not None]
    shapes = {repr(shape_of(path, part)) for part in parts}
    if len(shapes) != 1 or any(isinstance(part, JoinBinding) for part in parts):
        path.stop("branches of different kinds were joined, and which one wins only a run can say", reference)
    return _at(path, reference, parts[0])


def shape_of(path: BodyRun, bound: NodeBinding) -> Shape:
    """What is known of a bound value."""
    if isinstance(bound, SpanBinding):
        return TEXT
    if isinstance(bound, LocalBinding):
        return JSON
    node: Node = path.graph[bound.node_id]
    match node:
        case Select(choices=choices):
            texts = [c for c in choices if isinstance(c, str)]
            read = bound.convert or str
            return (
                FiniteShape(tuple((c, read(c)) for c in dict.fromkeys(texts))) if len(texts) == len(choices) else TEXT
            )
        case Gen():
            return _of_gen(node, bound.convert)
        case ToolNode(tool=key):
            return _of_result(path.function(key), bound.convert)
        case Switch():
            return OpaqueShape("the result of a switch")
    return JSON


def _of_gen(node: Gen, convert: Callable[[Any], Any] | None) -> Shape:
    constraint = node.constraint
    if node.partial_ok and node.decode == "json":
        return OpaqueShape("a value that may be a part of one")
    if constraint is not None and constraint.kind == "choices" and not node.partial_ok:
        texts = json.loads(constraint.text)
        raw = texts if node.decode == "text" else [json.loads(text) for text in texts]
        return FiniteShape(tuple((value, value if convert is None else convert(value)) for value in raw))
    if node.decode == "text":
        return TEXT if convert is None else OpaqueShape()
    if constraint is not None and constraint.kind == "regex":
        return NumberShape(float, convert=True) if convert is float else NumberShape()
    if convert is None:
        return of_schema(json.loads(constraint.text)) if constraint is not None else JSON
    return of_type(convert.wanted) if hasattr(convert, "wanted") else OpaqueShape()


def _of_result(function: Callable[..., Any] | None, convert: Callable[[Any], Any] | None) -> Shape:
    """What a tool says it returns. Plain types are read as they come, so a number stays what it is in JSON."""
    tool = getattr(function, "tool", None)
    hint = tool.hints.get("return", Any) if tool is not None else Any
    if convert is None:
        return _PLAIN.get(hint, JSON) if isinstance(hint, type) else JSON
    return of_type(hint)


def follow_switch(
    path: BodyRun, cursor: Cursor, bound: NodeBinding, arms: Mapping[Any, Body], default: Body | None, site: CallSite
) -> Any:
    """Decide which arm this run takes, and take it."""
    on = Reference(bound.node_id)
    shape = shape_of(path, bound)
    if isinstance(shape, FiniteShape):
        values = [(raw, typed) for raw, typed in shape.choices if _is_left(raw, path.left(on))]
        value = _decided_value(path, on, values, arms)
        return run_switch(cursor, bound, value, arms, default, site)
    known = path.left(on)
    if known is not None and len(known) == 1:
        return run_switch(cursor, bound, known[0], arms, default, site)
    groups: list[Group] = [(_plain(key, site),) for key in arms]
    taken = path.decide(on, groups if default is None else [*groups, None])
    body = [*arms.values(), default][taken]
    if body is None:
        raise TypeError("a switch without arms took one")
    with decided_by(cursor.line, bound):
        return body(cursor)


def _decided_value(path: BodyRun, on: Reference, values: list[tuple[Json, Any]], arms: Mapping[Any, Body]) -> Any:
    """A value of the group that this run goes on with: those with one arm are one group."""
    groups: dict[int | None, list[tuple[Json, Any]]] = {}
    keys = [(key,) for key in arms]
    for raw, typed in values:
        groups.setdefault(taken_by(typed, keys), []).append((raw, typed))
    chosen = list(groups.values())
    return chosen[path.decide(on, [tuple(raw for raw, _ in group) for group in chosen])][0][1]


def _is_left(raw: Json, left: Group) -> bool:
    return left is None or is_among(raw, left)


def follow_loop(
    path: BodyRun,
    cursor: Cursor,
    body: Body,
    until: Handle[Any] | str | None,
    stop_value: Any,
    limit: int,
    site: CallSite,
) -> Any:
    """Record the body once, with all its ways, and push a Loop."""
    deciders: list[Reference] = []

    def once(inside: Cursor) -> Any:
        result = body(inside)
        deciders.extend(() if until is None else (Reference(inside.find(until).node_id),))
        return result

    recorded = _Recorded(path, cursor, cursor.line, once, site)
    graph, result = recorded.graph()
    node_id = push(
        cursor, site, Loop, body=graph, result=result, limit=limit,
        until=deciders[0] if deciders else None, stop_value=_plain(stop_value, site),
    )  # fmt: skip
    recorded.leave()
    return None if result is None else stand_in(path, Reference(node_id), recorded.returned)


def follow_map(
    path: BodyRun, cursor: Cursor, items: Unknown, body: Callable[[Cursor, Any], Any], site: CallSite
) -> Any:
    """Record the body once, for an item that stays unknown, and push a Map."""
    outer = cursor.line
    outer.forks += 1
    round_ = "*" if outer.forks == 1 else f"{outer.forks}:*"
    line = outer.start_branch(outer.tip, None, f"{outer.path},{round_}" if outer.path else round_)
    shape = getattr(items._shape, "item", None) or JSON
    item = Input(id=f"{site.label}.item{line.suffix}", name=f"{site.label}.item{line.suffix}")

    def once(inside: Cursor) -> Any:
        inside.recorder.graph.append(item)
        return _awaited(path, body(inside, path.trace.member(Reference(item.id), shape)))

    recorded = _Recorded(path, cursor, line, once, site)
    graph, result = recorded.graph()
    whole = Graph([item, *graph], name=graph.name).freeze()
    node_id = push(cursor, site, Map, items=items._reference, item=item.id, body=whole, result=result)
    return path.trace.member(Reference(node_id), DataShape(list, item=_shape_of(recorded.returned)))


def _awaited(path: BodyRun, value: Any) -> Any:
    """What the coroutine of an `async def` body gives. In a trace all values are there, so nothing of the program's own waits."""
    if not iscoroutine(value):
        return value
    try:
        value.send(None)
    except StopIteration as ended:
        return ended.value
    value.close()
    return (path.trace.path or path).stop(
        "the `async def` body of a map waits for something else than the program's calls"
    )


class _Recorded:
    """A body followed on a copy of the place where it is called. `returned`: what it gives, one value per run."""

    def __init__(self, path: BodyRun, cursor: Cursor, line: Line, body: Body, site: CallSite) -> None:
        self.returned: list[Any] = []
        self._path = path
        self._cursor = cursor
        self._line = line
        self._body = body
        self._site = site
        self._names: Bindings[str] = Bindings()
        self._counts: dict[str, int] = {}

    def graph(self) -> tuple[Graph, Expression | None]:
        """Its sub-graph and what it returns."""
        trace, outer = self._path.trace, self._path
        base = (self._line.tip, self._line.branch) if self._line.tip and self._line.branch is not None else None
        try:
            items = explored(self._walk, lambda nodes: loosen(nodes, base, self._line.role))
        finally:
            trace.path = outer
        nodes = list(link(items))
        returned = next((n.value for n in nodes if isinstance(n, Return)), None)
        kept = [node for node in nodes if not isinstance(node, Return)]
        result = None if returned == Constant(None) else returned
        return Graph(kept, name=trace.name).freeze(), result

    def leave(self) -> None:
        """What the body has bound and counted, for what comes after it on the same line."""
        counts = self._cursor.line.counts
        counts.update((label, count) for label, count in self._counts.items() if count > counts.get(label, 0))
        for name, bound in self._names.items():
            if self._cursor.names.get(name) is not bound:
                self._cursor.rebind(name, _Inside(self._path, name))

    def _walk(self, script: Sequence[Decision], choose: Chooser, before: Sequence[Node]) -> BodyRun:
        path = self._path.inside(script, choose, before)
        path.trace.path = path
        line, outer = self._line.copy(), self._cursor
        cursor = Cursor(path, line, outer.names.copy(), outer.scope, outer.depth, outer.regions)
        try:
            value = self._body(cursor)
            expression = path.expression(value, cursor.find, self._site.origin)
            self.returned.append(value)
            path.append([Return(id="return", context=line.tip, value=expression)])
            self._names, self._counts = cursor.names, line.counts
        except BodyStopped:
            pass
        path.check_replay()
        return path


def stand_in(path: BodyRun, reference: Reference, returned: Sequence[Any]) -> Any:
    """What stands for a value of which `returned` has one in each way: the same structure, and the parts that are known."""
    first: Any = returned[0] if returned else None
    kind = type(first)
    if kind in (list, tuple) and all(type(value) is kind and len(value) == len(first) for value in returned):
        parts = [
            stand_in(path, after(reference, "item", i), each) for i, each in enumerate(zip(*returned, strict=True))
        ]
        return kind(parts)
    if kind is dict and all(type(value) is dict and value.keys() == first.keys() for value in returned):
        return {key: stand_in(path, after(reference, "item", key), [v[key] for v in returned]) for key in first}
    if all(not is_abstract(value) and type(value) is kind and value == first for value in returned) and _is_leaf(
        path, first
    ):
        return first
    return path.trace.member(reference, _shape_of(returned))


def _is_leaf(path: BodyRun, value: Any) -> bool:
    """Whether a value is the same whatever the model says."""
    return value is None or (isinstance(value, (bool, int, float, str)) and path.trace.is_clean(value))


def _shape_of(returned: Sequence[Any]) -> Shape:
    """What all of the values have in common."""
    shapes = {_shape(value) for value in returned}
    return shapes.pop() if len(shapes) == 1 else JSON


def _shape(value: Any) -> Shape:
    if type(value) is Unknown:
        return value._shape
    if isinstance(value, str) and not isinstance(value, Enum):
        return TextShape()
    if isinstance(value, (int, float)) and not isinstance(value, (bool, Enum)):
        return NumberShape(type(value))
    return JSON


class _Inside(LocalBinding):
    """A name that the body of a loop binds: which round's value it has only a run can say."""

    __slots__ = ("_path",)

    def __init__(self, path: BodyRun, label: str) -> None:
        super().__init__("", None, label)
        self._path = path

    @property
    def expression(self) -> NoReturn:
        """No node has it."""
        self._end()

    def resolve(self, said_at: Callable[[str], AppendedText]) -> NoReturn:
        """Ends the run of the body."""
        self._end()

    def _end(self) -> NoReturn:
        self._path.stop(
            f"the name {self.label!r} is bound inside a loop and read after it: let the body return the value"
        )


def _plain(value: Any, site: CallSite) -> Json:
    """A value that decides, as JSON."""
    if isinstance(value, MENTIONS):
        raise TraceError(f"{value!r} is not a plain value", hint="decide by plain values", origin=site.origin)
    found: Json = json_constant(value, site.origin).value
    return found
