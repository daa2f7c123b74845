"""Tracing: a body runs on values that do not exist yet, and leaves its graph."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import Origin, TraceError
from ..ir.graph import Graph
from ..ir.nodes import (
    Arm,
    Break,
    Concat,
    Constant,
    DictOf,
    Expression,
    Input,
    Json,
    ListOf,
    Loop,
    Map,
    Node,
    Plain,
    Reference,
    Return,
    Switch,
)
from .bindings import Bound
from .data import data_of_value
from .drafting import Cursor, Line
from .regions import Body, run_map
from .sites import Site, Sites, caller_origin, origin_of_traceback
from .state import State
from .values import TAG_BEGIN, TAG_END, Abstract, Forced

if TYPE_CHECKING:
    from .program import Program

_TAG = re.compile(f"{TAG_BEGIN}([0-9]+){TAG_END}")


def trace(
    program: Program[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    symbolic: tuple[str, ...],
    strict: bool,
) -> Graph:
    """The graph of one path through the body. Arguments named in `symbolic` are Inputs."""
    tracer = Tracer(program.name, program.sites)
    state = State(Cursor(tracer, Line(), {}, ""))
    given = {**kwargs, **{name: tracer.input(name) for name in symbolic}}
    try:
        value = run_body(program._call(state, args, given))
        if value is not None:
            expression = tracer.expression(value, program.origin)
            tracer.append([Return(id="return", context=state._cursor.line.tip, value=expression)])
    except Forced as forced:
        tracer.stop(state, forced, strict=strict)
    return tracer.graph.freeze()


def run_body(value: Any) -> Any:
    """What the body returned; an `async def` body is driven here, where nothing is ever waited for."""
    if not inspect.iscoroutine(value):
        return value
    try:
        value.send(None)
    except StopIteration as ended:
        return ended.value
    value.close()
    raise TraceError("the body awaits something that is not a value of its state", hint="await values and joins only")


class Tracer:
    """A Recorder that runs nothing. Owner: one trace."""

    tracing = True
    asynchronous = False

    def __init__(self, name: str, sites: Sites, abstracts: list[Abstract] | None = None) -> None:
        self.graph = Graph(name=name)
        self.sites = sites
        self._abstracts: list[Abstract] = [] if abstracts is None else abstracts

    def input(self, name: str) -> Abstract:
        """An argument that stays unknown."""
        self.append([Input(id=name, name=name)])
        return self._abstract(Reference(name))

    def append(self, nodes: Sequence[Node]) -> None:
        """Keep the nodes."""
        for node in nodes:
            self.graph.append(node)

    def stop(self, state: State, forced: Forced, *, strict: bool) -> None:
        """The body asked for a value: the graph ends in a Break at its line."""
        origin = origin_of_traceback(forced.__traceback__)
        reason = f"{forced.asked.strip('_')} of the value of {forced.reference.node_id!r} was asked for"
        if strict:
            raise TraceError(reason, hint="use switch, or trace with strict=False", origin=origin)
        self.append(
            [Break(id="break", context=state._cursor.line.tip, reason=reason, on=forced.reference, origin=origin)]
        )

    def register(self, key: str, function: Callable[..., Any]) -> str:
        """Nothing is called while tracing."""
        return key

    def pieces(self, text: str) -> tuple[Plain | Reference, ...]:
        """Text between the tags, and references for the tags."""
        parts = _TAG.split(text)
        found: list[Plain | Reference] = []
        for index, part in enumerate(parts):
            if index % 2:
                found.append(self._abstracts[int(part)].reference)
            elif part:
                found.append(Plain(part))
        return tuple(found)

    def expression(self, value: Any, origin: Origin) -> Expression:
        """Data; an abstract value is a reference."""
        if isinstance(value, Abstract):
            return value.reference
        if isinstance(value, (list, tuple)):
            return ListOf(tuple(self.expression(item, origin) for item in value))
        if isinstance(value, dict):
            return DictOf(tuple((str(key), self.expression(item, origin)) for key, item in value.items()))
        if isinstance(value, str):
            parts = tuple(p if isinstance(p, Reference) else Constant(p.text) for p in self.pieces(value))
            return Constant(value) if all(isinstance(p, Constant) for p in parts) else Concat(parts)
        return data_of_value(value, origin)

    def read(self, bound: Bound, timeout_s: float | None = None) -> Any:
        """A stand-in."""
        return self._abstract(Reference(bound.node_id))

    async def aread(self, bound: Bound) -> Any:
        """A stand-in."""
        return self.read(bound)

    def is_finished(self, node_id: str) -> bool:
        """Nothing is."""
        return False

    def outcome(self, node_id: str) -> NoReturn:
        """There is none."""
        raise TraceError(
            f"the text or meta of {node_id!r} was asked for while tracing, where nothing is computed",
            hint="run the program",
            origin=caller_origin(),
        )

    def switch(self, state: Any, bound: Bound, arms: Mapping[Any, Body], default: Body | None, site: Site) -> Any:
        """A Switch with every arm as a sub-graph."""
        recorded = [
            self._recorded(state, body, site, str(k)) for k, body in enumerate((*arms.values(), default)) if body
        ]
        values: list[tuple[Json, ...] | None] = [(_plain(key, site),) for key in arms]
        made = [Arm(value, graph, result) for value, (graph, result) in zip([*values, None], recorded, strict=False)]
        return self._region(state, site, Switch, on=Reference(bound.node_id), arms=tuple(made))

    def loop(self, state: Any, body: Body, until: Any, stop_value: Any, limit: int, site: Site) -> Any:
        """A Loop with its body as a sub-graph."""
        found: list[Reference] = []

        def once(inside: State) -> Any:
            result = body(inside)
            found.extend(() if until is None else (Reference(inside._find(until).node_id),))
            return result

        graph, result = self._recorded(state, once, site, "0")
        fields = {"until": found[0] if found else None, "stop_value": _plain(stop_value, site), "limit": limit}
        return self._region(state, site, Loop, body=graph, result=result, **fields)

    def map(self, state: Any, items: Sequence[Any], body: Callable[[Any, Any], Any], site: Site) -> list[Any]:
        """Known items fork; unknown ones are a Map with its body as a sub-graph."""
        if not isinstance(items, Abstract):
            return run_map(state._fork(len(items), site), items, body) if len(items) else []
        inputs: list[str] = []

        def once(inside: State) -> Any:
            tracer = inside._cursor.recorder
            if not isinstance(tracer, Tracer):
                raise TypeError("a traced body has a tracing state")
            inputs.append(f"{site.label}.item{inside._cursor.line.suffix}")
            return body(inside, tracer.input(inputs[0]))

        graph, result = self._recorded(state, once, site, "0")
        found: list[Any] = self._region(
            state, site, Map, items=items.reference, item=inputs[0], body=graph, result=result
        )
        return found

    def _recorded(self, state: State, body: Body, site: Site, label: str) -> tuple[Graph, Expression | None]:
        """A body's sub-graph and what it returns. It sees the names of the state; its ids have a path of their own."""
        inner = Tracer(self.graph.name, self.sites, self._abstracts)
        outer = state._cursor
        path = ",".join(filter(None, (outer.line.path, f"{site.label}={label}")))
        line = Line(path=path, role=outer.line.role, handles=dict(outer.line.handles))
        value = body(State(Cursor(inner, line, dict(outer.names), outer.scope)))
        return inner.graph.freeze(), None if value is None else inner.expression(value, site.origin)

    def _region(self, state: State, site: Site, kind: type[Node], **fields: Any) -> Any:
        statement = state._cursor.draft(site)
        node_id = statement.push(kind, **fields)
        state._cursor.commit(statement)
        return self._abstract(Reference(node_id))

    def cancel(self, node_ids: Sequence[str] | None, reason: str) -> None:
        """Nothing runs."""

    def _abstract(self, reference: Reference) -> Abstract:
        abstract = Abstract(len(self._abstracts), reference)
        self._abstracts.append(abstract)
        return abstract


def _plain(value: Any, site: Site) -> Json:
    """A value that decides, as data."""
    expression = data_of_value(value, site.origin)
    if not isinstance(expression, Constant):
        raise TraceError(f"{value!r} is not a plain value", hint="decide by plain values", origin=site.origin)
    return expression.value
