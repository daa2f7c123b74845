"""What reading a binding gives while tracing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ...ir.execution import MISSING
from ...ir.nodes import Gen, Node, Reference, Select, Switch, Tool
from ..bindings import Bound, Gathered, Local, Span
from ..values import after
from .shapes import BOOL, JSON, TEXT, Data, Finite, Number, Opaque, Shape, of_schema, of_type
from .walk import Walk

_PLAIN: dict[type, Shape] = {
    str: TEXT, int: Number(), float: Number(float), bool: BOOL, list: Data(list, plain=True), dict: Data(dict, plain=True)
}  # fmt: skip


def value_of(path: Walk, bound: Bound) -> Any:
    """The stand-in for what is bound."""
    return _at(path, Reference(bound.node_id), bound)


def _at(path: Walk, reference: Reference, bound: Bound) -> Any:
    if isinstance(bound, Gathered):
        return _gathered(path, reference, bound)
    return path.trace.member(reference, shape_of(path, bound))


def _gathered(path: Walk, reference: Reference, bound: Gathered) -> Any:
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


def _list(path: Walk, reference: Reference, bound: Gathered) -> list[Any]:
    """A real list: how many branches there are is known."""
    found: list[Any] = []
    for index, part in enumerate(bound.parts[branch] for branch in bound.listed(())):
        item = after(reference, "item", index)
        if index in bound.spliced and isinstance(part, Gathered):
            found.extend(_part(path, after(item, "item", j), leaf) for j, leaf in enumerate(part.leaves))
        else:
            found.append(_part(path, item, part))
    return found


def _part(path: Walk, reference: Reference, part: Bound | None) -> Any:
    return MISSING if part is None else _at(path, reference, part)


def _any_part(path: Walk, reference: Reference, bound: Gathered) -> Any:
    """A value of one branch, whichever it is: they have to be alike."""
    parts = [part for part in bound.parts if part is not None]
    shapes = {repr(shape_of(path, part)) for part in parts}
    if len(shapes) != 1 or any(isinstance(part, Gathered) for part in parts):
        path.stop("branches of different kinds were joined, and which one wins only a run can say", reference)
    return _at(path, reference, parts[0])


def shape_of(path: Walk, bound: Bound) -> Shape:
    """What is known of a bound value."""
    if isinstance(bound, Span):
        return TEXT
    if isinstance(bound, Local):
        return JSON
    node: Node = path.graph[bound.node_id]
    match node:
        case Select(choices=choices):
            texts = [c for c in choices if isinstance(c, str)]
            read = bound.convert or str
            return Finite(tuple((c, read(c)) for c in dict.fromkeys(texts))) if len(texts) == len(choices) else TEXT
        case Gen():
            return _of_gen(node, bound.convert)
        case Tool(tool=key):
            return _of_result(path.function(key), bound.convert)
        case Switch():
            return Opaque("the result of a switch")
    return JSON


def _of_gen(node: Gen, convert: Callable[[Any], Any] | None) -> Shape:
    constraint = node.constraint
    if node.partial_ok and node.decode == "json":
        return Opaque("a value that may be a part of one")
    if constraint is not None and constraint.kind == "choices" and not node.partial_ok:
        texts = json.loads(constraint.text)
        raw = texts if node.decode == "text" else [json.loads(text) for text in texts]
        return Finite(tuple((value, value if convert is None else convert(value)) for value in raw))
    if node.decode == "text":
        return TEXT if convert is None else Opaque()
    if constraint is not None and constraint.kind == "regex":
        return Number(float, convert=True) if convert is float else Number()
    if convert is None:
        return of_schema(json.loads(constraint.text)) if constraint is not None else JSON
    return of_type(convert.wanted) if hasattr(convert, "wanted") else Opaque()


def _of_result(function: Callable[..., Any] | None, convert: Callable[[Any], Any] | None) -> Shape:
    """What a tool says it returns. Plain types are read as they come, so a number stays what it is in JSON."""
    tool = getattr(function, "tool", None)
    hint = tool.hints.get("return", Any) if tool is not None else Any
    if convert is None:
        return _PLAIN.get(hint, JSON) if isinstance(hint, type) else JSON
    return of_type(hint)
