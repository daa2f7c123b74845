"""Nodes as plain JSON data and back: what the stored form and the text form have in common.

A node is an object of its fields, defaults left out:

    {"id": "3.1", "kind": "text", "context": "3", "pieces": ["Rate ", {"ref": "2", "ops": [["strip"]]}, {"raw": "<|x|>"}]}

Expressions: a JSON scalar or {"const": value} is a Constant, an array a ListOf, {"dict": [[key, expression], ...]} a
DictOf, {"concat": [...]} a Concat, {"ref": id, "ops": [[name, *arguments], ...]} a Reference, null none at all.
Reading is strict: an unknown field, kind or type is a FormatError that says where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..errors import FormatError, GraphError, Origin, SpecError
from .expression_codec import (
    check_nesting,
    decode_choice,
    decode_expression,
    decode_piece,
    decode_reference,
    decode_some_expression,
    encode_choice,
    encode_expression,
    encode_piece,
    shown,
)
from .graph import Graph
from .nodes import (
    NODE_CLASSES,
    Arm,
    DictOf,
    Json,
    Node,
    Reasoning,
)
from .specs import ConstraintSpec, SamplingSpec

Data = dict[str, Any]


@contextmanager
def nesting(what: str) -> Iterator[None]:
    """What is read or written inside is `what`. Raises FormatError where it is nested more deeply than this stack allows."""
    try:
        yield
    except RecursionError as error:
        raise FormatError(
            f"{what} is nested too deeply", hint="store flatter data, with fewer regions in each other"
        ) from error
    except FormatError:
        raise
    except GraphError as error:
        raise FormatError(f"{what}: {error.what}", hint=error.hint) from error


def encode_graph(graph: Graph, *, origins: bool = True) -> Data:
    """A graph as {"name", "nodes"}. Without `origins` equal graphs give equal data."""
    return {"name": graph.name, "nodes": [encode_node(node, origins=origins) for node in graph]}


def decode_graph(data: Any) -> Graph:
    """The graph of `encode_graph`. Raises FormatError."""
    found = _object(data, "a graph", {"name", "nodes"})
    if not isinstance(found.get("nodes"), list) or not isinstance(found.get("name", ""), str):
        raise FormatError("a graph has a list of nodes and a name")
    nodes = [decode_node(node) for node in found["nodes"]]
    try:
        return Graph(nodes, name=found.get("name", ""))
    except GraphError as error:
        raise FormatError(error.what) from error


def encode_node(node: Node, *, origins: bool = True) -> Data:
    """A node as data, fields in the order of its class."""
    data: Data = {"id": node.id, "kind": node.kind}
    for field in fields(node):
        value = getattr(node, field.name)
        if field.name in ("id", "origin", *_UNSTORED) or _is_default(field, value):
            continue
        if field.name in _GRAPH_FIELDS:
            data[field.name] = _GRAPH_FIELDS[field.name](value, origins)
        else:
            data[field.name] = _ENCODERS.get(field.name, _plain)(value)
    if origins and node.origin is not None:
        data["origin"] = _record(node.origin)
    return data


def decode_node(data: Any) -> Node:
    """The node of `encode_node`. Raises FormatError."""
    kind = data.get("kind") if isinstance(data, dict) else None
    if kind not in NODE_CLASSES:
        raise FormatError(f"{shown(data)} is not a node: its kind has to be one of {', '.join(NODE_CLASSES)}")
    node_class = NODE_CLASSES[kind]
    where = f"{kind} node {data.get('id')!r}"
    hints = _hints(node_class.__name__)
    found = _object(data, where, {*hints, "kind"})
    values = {
        name: _decode_field(name, value, hints[name], f"{where}, field {name!r}")
        for name, value in found.items()
        if name != "kind"
    }
    try:
        return node_class(**values)
    except (TypeError, SpecError, GraphError) as error:
        raise FormatError(f"{where}: {error}") from error


# --- fields ---------------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def _record(value: Any) -> Data:
    """A dataclass as an object of the fields that are not at their default."""
    return {f.name: _plain(getattr(value, f.name)) for f in fields(value) if not _is_default(f, getattr(value, f.name))}


def _is_default(field: Field[Any], value: Any) -> bool:
    if field.default is not MISSING:
        return type(value) is type(field.default) and bool(value == field.default)
    if isinstance(value, SamplingSpec):
        return not _record(value)
    return field.default_factory is not MISSING and bool(value == field.default_factory())


def _encode_arms(arms: tuple[Arm, ...], origins: bool) -> list[Json]:
    return [
        {
            "values": None if arm.values is None else list(arm.values),
            "graph": encode_graph(arm.graph, origins=origins),
            "result": encode_expression(arm.result),
        }
        for arm in arms
    ]


def _decode_arm(data: Any, where: str) -> Arm:
    found = _object(data, where, {"values", "graph", "result"})
    values = found.get("values")
    check_nesting(values, where)
    if values is not None and not isinstance(values, list):
        raise FormatError(f"{where}: an arm's values are a list or null")
    result = decode_expression(found.get("result"), where)
    return Arm(None if values is None else tuple(values), decode_graph(found.get("graph")), result)


_UNSTORED = frozenset({"objects"})  # a run's own
_GRAPH_FIELDS: Mapping[str, Callable[[Any, bool], Any]] = {
    "arms": _encode_arms,
    "body": lambda body, origins: encode_graph(body, origins=origins),
}
_ENCODERS: Mapping[str, Callable[[Any], Any]] = {
    "pieces": lambda value: [encode_piece(p) for p in value],
    "choices": lambda value: [encode_choice(c) for c in value],
    "values": lambda value: [encode_expression(v) for v in value],
    **dict.fromkeys(("arguments", "on", "until", "items", "value", "result"), encode_expression),
    **dict.fromkeys(("sampling", "constraint", "reasoning"), _record),
}


def _decode_field(name: str, value: Any, hint: Any, where: str) -> Any:
    match name:
        case "pieces":
            return tuple(decode_piece(p, where) for p in _list(value, where))
        case "choices":
            return tuple(decode_choice(c, where) for c in _list(value, where))
        case "values":
            return tuple(decode_expression(v, where) for v in _list(value, where))
        case "arms":
            return tuple(_decode_arm(a, where) for a in _list(value, where))
        case "body":
            return decode_graph(value)
        case "arguments":
            return _of_class(decode_some_expression(value, where), DictOf, where)
        case "on" | "until":
            return decode_reference(value, where)
        case "items" | "value" | "result":
            return decode_some_expression(value, where)
        case "sampling":
            return _decode_record(SamplingSpec, value, where)
        case "constraint":
            return _decode_record(ConstraintSpec, value, where)
        case "reasoning":
            return _decode_record(Reasoning, value, where)
        case "origin":
            return _decode_record(Origin, value, where)
    return _fit(value, hint, where)


def _of_class(value: Any, wanted: type, where: str) -> Any:
    if not isinstance(value, wanted):
        raise FormatError(f"{where}: it has to be a {wanted.__name__}")
    return value


def _decode_record(record_class: type[Any], data: Any, where: str) -> Any:
    hints = _hints(record_class.__name__)
    found = _object(data, where, set(hints))
    try:
        return record_class(**{name: _fit(value, hints[name], f"{where}.{name}") for name, value in found.items()})
    except (TypeError, SpecError) as error:
        raise FormatError(f"{where}: {error}") from error


_CLASSES: Mapping[str, type[Any]] = {
    c.__name__: c for c in (*NODE_CLASSES.values(), SamplingSpec, ConstraintSpec, Reasoning, Origin)
}


@cache
def _hints(class_name: str) -> Mapping[str, Any]:
    """Field types of one of our dataclasses (its class variables left out)."""
    data_class = _CLASSES[class_name]
    hints = get_type_hints(data_class, localns={"Graph": Graph, "Json": object})
    return {field.name: hints[field.name] for field in fields(data_class) if field.name not in _UNSTORED}


def _fit(value: Any, hint: Any, where: str) -> Any:
    """`value` as a field of type `hint`: arrays become tuples, everything else has to be of the type already."""
    check_nesting(value, where)
    if _fits(value, hint):
        return _tupled(value) if get_origin(hint) is tuple else value
    raise FormatError(f"{where}: {shown(value)} is not {_spell(hint)}")


def _tupled(value: Any) -> Any:
    return tuple(_tupled(v) for v in value) if isinstance(value, list) else value


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is tuple:
        args = get_args(hint)
        if not isinstance(value, list):
            return False
        if len(args) == 2 and args[1] is ...:
            return all(_fits(v, args[0]) for v in value)
        return len(value) == len(args) and all(map(_fits, value, args))
    if origin is Literal:
        return value in get_args(hint) and isinstance(value, str)
    if origin in (Union, UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return hint is object or isinstance(value, hint)


def _spell(hint: Any) -> str:
    return f"one of {get_args(hint)}" if get_origin(hint) is Literal else str(getattr(hint, "__name__", hint))


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise FormatError(f"{where}: {shown(value)} is not a list")
    return value


def _object(data: Any, where: str, names: set[str]) -> Data:
    if not isinstance(data, dict):
        raise FormatError(f"{where}: {shown(data)} is not an object")
    if unknown := data.keys() - names:
        raise FormatError(
            f"{where} has unknown fields: {', '.join(sorted(map(str, unknown)))}",
            hint="the file was written by another version, or by hand",
        )
    return data
