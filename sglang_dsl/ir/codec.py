"""Everything of ours that is stored, as plain JSON data and back, exact to the last bit.

A graph is {"name": ..., "nodes": [...]}. Every dataclass (nodes, options of calls, outcomes, results) is an object of its fields, those at their default left out; a node has its kind besides:

    {"id": "3.1", "kind": "text", "context": "3", "pieces": ["Rate ", {"ref": "2", "ops": [["strip"]]}, {"raw": "<|x|>"}]}

Expressions: a JSON scalar or {"const": value} is a Constant, an array a ListOf, {"dict": [[key, expression], ...]} a
DictOf, {"concat": [...]} a Concat, {"ref": id, "ops": [[name, *arguments], ...]} a Reference, null none at all.

The values that Python holds stand in `values.py`.

Writing goes by what a value is. Reading goes by the annotations of our dataclasses, from which pydantic builds a strict
validator for each class when one is first read: unknown fields, other types and missing fields are a FormatError that says where.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypeVar, get_type_hints

from ..errors import DslError, FormatError, GraphError, Origin
from .expressions import MAX_DATA_DEPTH, is_too_deep
from .graph import Graph
from .nodes import (
    NODE_CLASSES,
    Arm,
    Concat,
    Constant,
    DictOf,
    Expression,
    Json,
    ListOf,
    Node,
    Operation,
    Piece,
    Plain,
    Raw,
    Reasoning,
    Reference,
)
from .outcome import ChoiceScore, Meta, Outcome, PartialCharacters, TokenScore, Usage
from .specs import ConstraintSpec, SamplingSpec, shown
from .values import decode_error, decode_value, encode_error, encode_value

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")
Data = dict[str, Any]
AS_THEY_ARE = frozenset({str, int, bool, type(None)})
UNSTORED = frozenset({"objects", "to_json", "accepted"})  # fields that only the run itself has


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


# --- writing --------------------------------------------------------------------------------------------------------


def encode_graph(graph: Graph, *, origins: bool = True) -> Data:
    """A graph as {"name", "nodes"}. Without `origins` equal graphs give equal data."""
    return {"name": graph.name, "nodes": [encode_node(node, origins=origins) for node in graph]}


def encode_node(node: Node, *, origins: bool = True) -> Data:
    """A node as data, fields in the order of its class, its origin last. A number that is not finite is a FormatError."""
    data: Data = {"id": node.id, "kind": node.kind}
    for name, value in _stored_fields(node):
        if name not in ("id", "origin"):
            if isinstance(value, float) and not math.isfinite(value):
                raise FormatError(f"{node.kind} node {node.id!r}: {name}={value} is not JSON")
            data[name] = _written(value, origins=origins)
    if origins and node.origin is not None:
        data["origin"] = encode(node.origin)
    return data


def encode(stored: Any) -> Data:
    """One of our dataclasses as an object of the fields that are not at their default."""
    return {name: _written(value) for name, value in _stored_fields(stored)}


def encode_outcome(outcome: Outcome) -> Data:
    """An outcome as data. Raises FormatError for a value that is not JSON."""
    value = outcome.value if outcome.to_json is None else outcome.to_json(outcome.value)
    return {"value": encode_value(value), **encode(replace(outcome, value=None))}


def encode_expression(expression: Expression | None) -> Json:
    """An expression as data. Raises FormatError for a constant that is not JSON."""
    match expression:
        case None:
            return None
        case Constant(value=value, to_json=to_json):
            plain = _finite(encode_value(value if to_json is None else to_json(value)))
            return {"const": plain} if plain is None or isinstance(plain, list | dict) else plain
        case Reference(node_id=node_id, operations=operations):
            reference: dict[str, Json] = {"ref": node_id}
            if operations:
                reference["ops"] = [[o.name, *o.args] for o in operations]
            return reference
        case ListOf(items):
            return [encode_expression(item) for item in items]
        case DictOf(pairs):
            return {"dict": [[key, encode_expression(item)] for key, item in pairs]}
        case Concat(parts):
            return {"concat": [encode_expression(part) for part in parts]}


def _finite(plain: Any) -> Any:
    """Data of a constant. A record of outcomes holds nan and infinity; a graph, which others run, does not."""
    match plain:
        case {"$float": text}:
            raise FormatError(f"{text} is not JSON", hint="pass it as text, or None where there is no number")
        case list():
            return list(map(_finite, plain))
        case dict():
            return {key: _finite(item) for key, item in plain.items()}
    return plain


def _stored_fields(stored: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of the fields that are not at their default: exactly, type and all, so that True is no 1."""
    for name, default in _defaults(type(stored)):  # type: ignore[arg-type]  # a class can be hashed
        value = getattr(stored, name)
        if type(value) is not type(default) or value != default or (isinstance(value, SamplingSpec) and encode(value)):
            yield name, value


@cache
def _defaults(data_class: type[Any]) -> tuple[tuple[str, Any], ...]:
    """The stored fields of a dataclass, and what each is when nothing is said (NO_DEFAULT where something has to be)."""
    return tuple(
        (each.name, each.default if each.default_factory is NO_DEFAULT else each.default_factory())
        for each in fields(data_class)
        if each.name not in UNSTORED
    )


def _written(value: Any, *, origins: bool = True) -> Any:
    """What a field of one of our dataclasses holds, as data."""
    if type(value) in AS_THEY_ARE:
        return value
    match value:
        case float():
            return value if math.isfinite(value) else repr(value)
        case bytes():
            return value.hex()
        case tuple():
            return [_written(item, origins=origins) for item in value]
        case Graph():
            return encode_graph(value, origins=origins)
        case Plain(text):
            return text
        case Raw(text):
            return {"raw": text}
        case Constant() | Reference() | ListOf() | DictOf() | Concat():
            return encode_expression(value)
        case Arm(values, graph, result):  # whole: the form that is printed and hashed shows what is empty, too
            return {"values": _written(values), "graph": _written(graph, origins=origins), "result": _written(result)}
        case BaseException():
            return encode_error(value)
    return encode(value) if is_dataclass(value) else value


# --- reading --------------------------------------------------------------------------------------------------------


def decode_graph(data: Any) -> Graph:
    """The graph of `encode_graph`. Raises FormatError."""
    if not isinstance(data, dict):
        raise FormatError(f"a graph: {shown(data)} is not an object")
    if unknown := data.keys() - {"name", "nodes"}:
        raise _unknown_fields("a graph", unknown)
    name, nodes = data.get("name", ""), data.get("nodes")
    if not isinstance(nodes, list) or not isinstance(name, str):
        raise FormatError("a graph has a list of nodes and a name")
    decoded = [decode_node(node) for node in nodes]
    try:
        return Graph(decoded, name=name)
    except GraphError as error:
        raise FormatError(error.what) from error


def decode_node(data: Any) -> Node:
    """The node of `encode_node`. Raises FormatError."""
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in NODE_CLASSES:
        raise FormatError(f"{shown(data)} is not a node: its kind has to be one of {', '.join(NODE_CLASSES)}")
    found = {name: value for name, value in data.items() if name != "kind"}
    return decode(NODE_CLASSES[kind], found, f"{kind} node {shown(data.get('id'))}")


def decode(data_class: type[T], data: Any, where: str) -> T:
    """One of our dataclasses from its data, which `where` names. Raises FormatError."""
    from pydantic import ValidationError

    try:
        made: T = _reader(data_class).validate_python(data)  # type: ignore[arg-type]  # a class can be hashed
        return made
    except ValidationError as error:
        raise _unreadable(data, where, error) from error
    except FormatError:
        raise
    except GraphError as error:
        raise FormatError(f"{where}: {error.what}") from error


def _unreadable(data: Any, where: str, error: ValidationError) -> FormatError:
    """Pydantic's first finding in words, but unknown fields before all: where, what is there, and what has to be."""
    found = error.errors(include_url=False)
    first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
    unknown = [each for each in found if each["type"] == "extra_forbidden" and each["loc"][:-1] == first["loc"][:-1]]
    place, at = "", data
    for step in first["loc"][:-1] if first in unknown else first["loc"]:
        if not (step in at if isinstance(at, dict) else isinstance(at, list) and step in range(len(at))):
            break  # behind what is in the data stand names of pydantic's own, and what is missing
        at = at[step]  # an index of a list, or a key of a dict
        place += f"[{step}]" if isinstance(step, int) else f"{'.' if place else ', field '}{step}"
    if first in unknown:
        return _unknown_fields(where + place, {str(each["loc"][-1]) for each in unknown})
    raised = first.get("ctx", {}).get("error")
    match first["type"]:
        case "missing" if isinstance(at, list):
            what = f"{shown(at)} has too few items"
        case "missing":
            what = f"it lacks {first['loc'][-1]}"
        case "too_long":
            what = f"{shown(at)} has too many items"
        case "value_error":
            what = raised.what if isinstance(raised, DslError) else str(raised)
        case "literal_error":
            what = f"{shown(at)} is not one of {first['ctx']['expected']}"
        case kind:
            what = f"{shown(at)} is not {_SPELLED.get(kind) or first['msg']}"
    return FormatError(f"{where}{place}: {what}", hint=getattr(raised, "hint", ""))


_SPELLED = {
    "int_type": "int",
    "string_type": "str",
    "bool_type": "bool",
    "tuple_type": "a list",
    "dict_type": "an object",
}


def _unknown_fields(where: str, names: set[str]) -> FormatError:
    return FormatError(
        f"{where} has unknown fields: {', '.join(sorted(map(str, names)))}",
        hint="the file was written by another version, or by hand",
    )


@cache
def _reader(data_class: type[Any]) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(_form(data_class, _words()))


def _form(data_class: type[Any], words: Mapping[str, Any]) -> Any:
    """How a dataclass is read: an object of its fields by the types of its annotations, from which it is made."""
    from pydantic import AfterValidator, ConfigDict, StrictFloat, StrictInt, with_config

    if sys.version_info >= (3, 12):
        from typing import TypedDict
    else:
        from typing_extensions import TypedDict

    numbers = {"float": StrictInt | StrictFloat} if issubclass(data_class, Node) else {}  # a graph has no nan
    hints = get_type_hints(data_class, localns={**words, **numbers}, include_extras=True)
    items = {
        field.name: hints[field.name] if field.default is field.default_factory else NotRequired[hints[field.name]]
        for field in fields(data_class)
        if field.name not in UNSTORED
    }
    form: Any = TypedDict(data_class.__name__, items)  # type: ignore[misc]  # its fields are known when it is first read
    return Annotated[with_config(ConfigDict(extra="forbid"))(form), AfterValidator(lambda found: data_class(**found))]


@cache
def _words() -> Mapping[str, Any]:
    """What the words in the annotations of stored classes mean when they are read: strictly that type, or our form of it."""
    from pydantic import AfterValidator, PlainValidator, StrictBool, StrictInt, StrictStr

    def read(function: Callable[[Any], Any]) -> Any:
        return Annotated[Any, PlainValidator(function)]

    halves: Any = tuple[read(_bytes), read(_bytes)]  # type: ignore[misc]  # types made here
    words = {
        "int": StrictInt,
        "str": StrictStr,
        "bool": StrictBool,
        "float": read(_number),
        "bytes": read(_bytes),
        "PartialCharacters": Annotated[halves, AfterValidator(lambda found: PartialCharacters(*found))],
        "Any": read(decode_value),
        "Json": Annotated[Any, AfterValidator(_not_too_deep)],
        "Expression": read(_expression),
        "Reference": read(_reference),
        "DictOf": read(_dict_of),
        "Piece": read(_piece),
        "Graph": read(decode_graph),
        "BaseException": read(decode_error),
    }
    for nested in (SamplingSpec, ConstraintSpec, Reasoning, Origin, Arm, TokenScore, ChoiceScore, Meta, Usage, Outcome):
        words[nested.__name__] = _form(nested, words)
    return words


# What follows reads one word each; a ValueError is told with the field in which it was found.


def _number(data: Any) -> float:
    if data in ("inf", "-inf", "nan"):
        return float(data)
    if isinstance(data, int | float) and not isinstance(data, bool):
        return data
    raise ValueError(f"{shown(data)} is not a number")


def _bytes(data: Any) -> bytes:
    if not isinstance(data, str):
        raise ValueError(f"{shown(data)} is not a hexadecimal text")
    return bytes.fromhex(data)


def _not_too_deep(data: T) -> T:
    if is_too_deep(data):
        raise ValueError(f"its data is nested more than {MAX_DATA_DEPTH} levels deep")
    return data


def _expression(data: Any) -> Expression:
    match data:
        case None:
            raise ValueError('null stands inside an expression; a None value is {"const": null}')
        case bool() | int() | float() | str():
            return Constant(data)
        case list():
            return ListOf(tuple(map(_expression, data)))
        case {"const": value, **rest} if not rest:
            return Constant(decode_value(value))
        case {"dict": _, **rest} if not rest:
            return _dict_of(data)
        case {"concat": list() as parts, **rest} if not rest:
            return Concat(tuple(map(_expression, parts)))
        case {"ref": _}:
            return _reference(data)
    raise ValueError(f"{shown(data)} is not an expression")


def _dict_of(data: Any) -> DictOf:
    match data:
        case {"dict": list() as pairs, **rest} if not rest:
            return DictOf(tuple(map(_pair, pairs)))
    raise ValueError(f"{shown(data)} is not a dict of expressions")


def _pair(data: Any) -> tuple[str, Expression]:
    match data:
        case [str() as key, item]:
            return key, _expression(item)
    raise ValueError(f"{shown(data)} is not a key and an expression")


def _reference(data: Any) -> Reference:
    match data:
        case {"ref": str() as node_id, "ops": list() as operations, **rest} if not rest:
            return Reference(node_id, tuple(map(_operation, _not_too_deep(operations))))
        case {"ref": str() as node_id, **rest} if not rest:
            return Reference(node_id)
    raise ValueError(f"{shown(data)} is not a reference")


def _operation(data: Any) -> Operation:
    match data:
        case [str() as name, *args]:
            return Operation(name, tuple(args))
    raise ValueError(f"{shown(data)} is not an operation")


def _piece(data: Any) -> Piece:
    match data:
        case str():
            return Plain(data)
        case {"raw": str() as text, **rest} if not rest:
            return Raw(text)
    return _reference(data)
