"""Tracing: a body runs on values that do not exist yet, and leaves its graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import Origin, TraceError
from ..ir.graph import Graph
from ..ir.nodes import Expression, Input, Node, Piece, Plain, Reference, Return
from .bindings import Bound
from .data import data_of_value
from .drafting import Cursor, Line
from .sites import Sites, caller_origin
from .state import State
from .values import TAG_BEGIN, TAG_END, Abstract

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
    value = program._call(state, args, given)
    if value is not None:
        tip = state._cursor.line.tip
        tracer.append([Return(id="return", context=tip, value=tracer.expression(value, program.origin))])
    return tracer.graph.freeze()


class Tracer:
    """A Recorder that runs nothing. Owner: one trace."""

    tracing = True
    asynchronous = False

    def __init__(self, name: str, sites: Sites) -> None:
        self.graph = Graph(name=name)
        self.sites = sites
        self._abstracts: list[Abstract] = []

    def input(self, name: str) -> Abstract:
        """An argument that stays unknown."""
        self.append([Input(id=name, name=name)])
        return self._abstract(Reference(name))

    def append(self, nodes: Sequence[Node]) -> None:
        """Keep the nodes."""
        for node in nodes:
            self.graph.append(node)

    def register(self, key: str, function: Callable[..., Any]) -> str:
        """Nothing is called while tracing."""
        return key

    def pieces(self, text: str) -> tuple[Piece, ...]:
        """Text between the tags, and references for the tags."""
        parts = _TAG.split(text)
        found: list[Piece] = []
        for index, part in enumerate(parts):
            if index % 2:
                found.append(self._abstracts[int(part)].reference)
            elif part:
                found.append(Plain(part))
        return tuple(found)

    def expression(self, value: Any, origin: Origin) -> Expression:
        """Data; an abstract value is a reference."""
        return value.reference if isinstance(value, Abstract) else data_of_value(value, origin)

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

    def cancel(self, node_ids: Sequence[str] | None, reason: str) -> None:
        """Nothing runs."""

    def _abstract(self, reference: Reference) -> Abstract:
        abstract = Abstract(len(self._abstracts), reference)
        self._abstracts.append(abstract)
        return abstract
