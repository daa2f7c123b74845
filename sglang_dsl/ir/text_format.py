"""The readable form of a graph: deterministic, one line per node, made for reading and for diffs; exact both ways.

    graph "poems"
    %1 = text "Write a poem about " %topic|strip() "." <- %0
    %2 = fork 3 <- %1
    %3[0] = gen "poem" sampling(max_tokens=64) <- %2 branch 0

`<-` names the context, `when` the values that decided. Strings are JSON strings, so a node never spans lines; what a
node holds (arms, bodies) is indented below it. The grammar is `graph.lark`, beside this file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import FormatError
from .codec import Data, decode_graph, encode_graph, nesting
from .graph import Graph
from .nodes import Node, subgraphs
from .operations import OPERATION_NAMES
from .text_parser import CONSTANT_FIELDS, HEADS, ID_FIELDS, JSON_WRITERS, read

if TYPE_CHECKING:
    pass

RECORDS = ("sampling", "constraint", "reasoning")
APART = (
    "id",
    "kind",
    "context",
    "branch",
    "control",
    "scope",
    "arms",
    "body",
    "origin",
)  # printed in places of their own
_BARE_ID = re.compile(r"(?:[\w./:#@+~*-]|\[[\w,:]*\])+")
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")


def print_graph(graph: Graph, *, origins: bool = False) -> str:
    """The graph as text. `origins` adds each node's file and line as a comment.

    Raises:
        FormatError: a constant in the graph is not JSON (NaN, an object, ...).
    """
    try:
        with nesting(f"graph {graph.name!r}"):
            data = encode_graph(graph, origins=False)
            noted = [node for node in _all_nodes(graph) if node.origin] if origins else []
            places = {node.id: f"  # {_one_line(str(node.origin))}" for node in noted}
            return "\n".join([f"graph {_string(data['name'])}", *_node_lines(data["nodes"], "", places)]) + "\n"
    except (TypeError, ValueError) as error:
        raise FormatError(f"graph {graph.name!r} holds a value that is not JSON: {error}") from error


def parse(text: str) -> Graph:
    """The graph of `print_graph`: `parse(print_graph(g)) == g`.

    Raises:
        FormatError: the text does not follow the grammar (with a caret), a node in it is not valid, or it is nested too deeply.
    """
    with nesting("the graph text"):
        return decode_graph(read(text))


def _all_nodes(graph: Graph) -> Iterator[Node]:
    for node in graph:
        yield node
        for inner in subgraphs(node):
            yield from _all_nodes(inner)


# --- printing -------------------------------------------------------------------------------------------------------


def _node_lines(nodes: list[Data], indent: str, places: Mapping[str, str]) -> Iterator[str]:
    for node in nodes:
        opening = " {" if node.get("arms") or "body" in node else ""
        yield indent + " ".join(_words(node)) + opening + places.get(node["id"], "")
        if opening:
            for head, graph in _blocks(node):
                name = f" named {_string(graph['name'])}" if graph["name"] else ""
                yield f"{indent}  {head}{name} {{"
                yield from _node_lines(graph["nodes"], indent + "    ", places)
                yield f"{indent}  }}"
            yield f"{indent}}}"


def _blocks(node: Data) -> Iterator[tuple[str, Data]]:
    """What stands in front of each sub-graph of a node, and the sub-graph."""
    if "body" in node:
        yield "body", node["body"]
    for arm in node.get("arms", ()):
        values = arm["values"]
        head = "else" if values is None else " ".join(["case", ", ".join(map(_json, values))]).strip()
        yield head + (f" => {_value(arm['result'])}" if arm["result"] is not None else ""), arm["graph"]


def _words(node: Data) -> Iterator[str]:
    yield f"{_id(node['id'])} = {node['kind']}"
    head = HEADS[node["kind"]]
    if head in node:
        yield from _head_words(head, node[head])
    for name, value in node.items():
        if name not in APART and name != head:
            yield _argument(name, value)
    if "context" in node:
        yield f"<- {_id(node['context'])}"
    if "branch" in node:
        yield f"branch {node['branch']}"
    if "control" in node:
        yield f"when {', '.join(map(_id, node['control']))}"
    if "scope" in node:
        yield f"in {_string(node['scope'])}"


def _head_words(head: str, value: Any) -> Iterator[str]:
    yield from map(_value, value) if head == "pieces" else [_value(value)]


def _argument(name: str, value: Any) -> str:
    if name in RECORDS:
        return f"{name}({', '.join(_record_field(value, field) for field in value)})"
    if name in ID_FIELDS:
        return f"{name}=" + (_id(value) if isinstance(value, str) else f"[{', '.join(map(_id, value))}]")
    if name in CONSTANT_FIELDS and isinstance(value, list | dict):
        return f"{name}=const({_json(value)})"
    return f"{name}={_value(value)}"


def _record_field(record: Data, name: str) -> str:
    """JSON inside a string (a schema, choices) is printed as JSON, where reading gives exactly the string again."""
    value = record[name]
    if name == "text" and record.get("kind") in JSON_WRITERS:
        parsed = _parsed(value)
        if parsed is not None and JSON_WRITERS[record["kind"]](parsed) == value:
            return f"{name}=json({_json(parsed)})"
    return f"{name}={_value(value)}"


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _value(value: Any) -> str:
    match value:
        case {"ref": node_id}:
            return _id(node_id) + "".join(map(_operation, value.get("ops", ())))
        case {"raw": text}:
            return f"raw({_string(text)})"
        case {"const": constant}:
            return f"const({_json(constant)})"
        case {"dict": pairs}:
            return "{" + ", ".join(f"{_string(key)}: {_value(item)}" for key, item in pairs) + "}"
        case {"concat": parts}:
            return f"concat({', '.join(map(_value, parts))})"
        case list():
            return f"[{', '.join(map(_value, value))}]"
    return _json(value)


def _operation(operation: list[Any]) -> str:
    name, *args = operation
    return f"|{name if name in OPERATION_NAMES else _string(name)}({', '.join(map(_json, args))})"


def _id(node_id: str) -> str:
    return f"%{node_id}" if _BARE_ID.fullmatch(node_id) else f"%{_string(node_id)}"


def _string(text: str) -> str:
    return _json(text)


def _json(value: Any) -> str:
    """JSON on one line for every reader: characters that some take for a line end are escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _one_line(text: str) -> str:
    return " ".join(text.split())
