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
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ..errors import FormatError
from .codec import Data, decode_graph, encode_graph, nesting
from .graph import Graph
from .operations import OPERATION_NAMES
from .semantics import every_node

if TYPE_CHECKING:
    from lark import Lark
    from lark.exceptions import UnexpectedInput

HEADS: Mapping[str, str] = {  # the field that stands without its name, right after the kind
    "input": "name",
    "text": "pieces",
    "role_begin": "role",
    "role_end": "role",
    "gen": "name",
    "select": "name",
    "fork": "size",
    "join": "name",
    "tool": "tool",
    "switch": "on",
    "loop": "name",
    "map": "name",
    "break": "reason",
    "return": "value",
}
ID_FIELDS = ("fork", "item", "tips")
CONSTANT_FIELDS = ("stop_value", "structure")  # plain JSON, printed as a constant where it is a list or an object
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


def compact_json(value: Any) -> str:
    """JSON as `ConstraintSpec.json_schema` writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def spaced_json(value: Any) -> str:
    """JSON as `ConstraintSpec.choices` writes it."""
    return json.dumps(value, ensure_ascii=False)


JSON_WRITERS: Mapping[str, Callable[[Any], str]] = {"json_schema": compact_json, "choices": spaced_json}


# --- reading --------------------------------------------------------------------------------------------------------


def read(text: str) -> Data:
    """A graph's text as the data of `codec.py`. Raises FormatError, with a caret where the grammar is broken."""
    from lark.exceptions import UnexpectedInput

    try:
        data: Any = _parser().parse(text)
    except UnexpectedInput as error:
        raise _syntax_error(text, error) from error
    except json.JSONDecodeError as error:
        raise FormatError(f"the graph text has a broken string: {error.doc}: {error.msg}") from error
    found: Data = data
    return found


@cache
def _parser() -> Lark:
    """The parser, made when it is first needed."""
    from lark import Lark, Transformer, v_args

    grammar = (files(__package__) / "graph.lark").read_text(encoding="utf-8")

    @v_args(inline=True)
    class Builder(Transformer):  # type: ignore[type-arg]
        """Turns the parse into the data of `codec.py`, rule by rule, while it is parsed."""

        def start(self, name: str, *nodes: Data) -> Data:
            return {"name": json.loads(name), "nodes": list(nodes)}

        def node(self, node_id: str, kind: str, *parts: tuple[str, Any]) -> Data:
            return _node_data(_id_of(node_id), str(kind), parts)

        def context(self, node_id: str) -> tuple[str, Any]:
            return "context", _id_of(node_id)

        def branch(self, index: str) -> tuple[str, Any]:
            return "branch", json.loads(index)

        def control(self, *ids: str) -> tuple[str, Any]:
            return "control", [_id_of(i) for i in ids]

        def scope(self, scope: str) -> tuple[str, Any]:
            return "scope", json.loads(scope)

        def block(self, *parts: tuple[str, Any]) -> tuple[str, Any]:
            if parts and parts[0][0] == "body":
                return parts[0]
            return "arms", [arm for _, arm in parts]

        def arm(self, *parts: Any) -> tuple[str, Any]:
            *values, graph = parts
            result = values.pop()[1] if values and isinstance(values[-1], _Result) else None
            return "arm", {"values": values, "graph": graph, "result": result}

        def otherwise(self, *parts: Any) -> tuple[str, Any]:
            return "arm", {"values": None, "graph": parts[-1], "result": parts[0][1] if len(parts) == 2 else None}

        def result(self, value: Any) -> _Result:
            return _Result((True, value))

        def body(self, graph: Data) -> tuple[str, Any]:
            return "body", graph

        def subgraph(self, *parts: Any) -> Data:
            name = json.loads(parts[0]) if parts and isinstance(parts[0], str) else ""
            return {"name": name, "nodes": [p for p in parts if isinstance(p, dict)]}

        def positional(self, value: Any) -> tuple[str, Any]:
            return "+", value

        def named(self, name: str, value: Any) -> tuple[str, Any]:
            return str(name), value

        def record(self, *pairs: tuple[str, Any]) -> Data:
            return dict(pairs)

        def field(self, name: str, value: Any) -> tuple[str, Any]:
            return str(name), value

        def pair(self, key: str, value: Any) -> list[Any]:
            return [json.loads(key), value]

        def json_pair(self, key: str, value: Any) -> tuple[str, Any]:
            return json.loads(key), value

        def array(self, *items: Any) -> list[Any]:
            return list(items)

        def dictionary(self, *pairs: list[Any]) -> Data:
            return {"dict": list(pairs)}

        def json_object(self, *pairs: tuple[str, Any]) -> Data:
            return dict(pairs)

        def raw(self, text: str) -> Data:
            return {"raw": json.loads(text)}

        def const(self, value: Any) -> Data:
            return {"const": value}

        def json_text(self, value: Any) -> Data:
            return {"json": value}

        def concat(self, *parts: Any) -> Data:
            return {"concat": list(parts)}

        def reference(self, node_id: str, *operations: list[Any]) -> Data:
            found: Data = {"ref": _id_of(node_id)}
            return {**found, "ops": list(operations)} if operations else found

        def operation(self, name: str, *args: Any) -> list[Any]:
            return [json.loads(name) if name.startswith('"') else str(name), *args]

        def scalar(self, token: str) -> Any:
            return json.loads(token)

    return Lark(grammar, parser="lalr", transformer=Builder(), maybe_placeholders=False)


class _Result(tuple[bool, Any]):
    """Marks the result of an arm among its values."""

    __slots__ = ()


def _id_of(token: str) -> str:
    return str(json.loads(token[1:])) if token.startswith('%"') else str(token[1:])


def _node_data(node_id: str, kind: str, parts: tuple[tuple[str, Any], ...]) -> Data:
    """The parts of a line as a node's data. Raises FormatError where one is given twice or a kind takes none."""
    data: Data = {"id": node_id, "kind": kind}
    positional = [value for name, value in parts if name == "+"]
    if positional:
        head = HEADS.get(kind)
        if head is None or (head != "pieces" and len(positional) > 1):
            raise FormatError(f"node {node_id!r}: {kind} does not take {len(positional)} values without a name")
        data[head] = positional if head == "pieces" else positional[0]
    for name, value in parts:
        if name in data:
            raise FormatError(f"node {node_id!r} has {name!r} twice")
        if name != "+":
            data[name] = _plain_field(name, value)
    for name in {"text": ("pieces",), "switch": ("arms",)}.get(kind, ()):
        data.setdefault(name, [])
    return data


def _plain_field(name: str, value: Any) -> Any:
    """Node ids are printed like references, and containers of `stop_value` as constants; in the data they are bare."""
    match value:
        case {"ref": node_id} if name in ID_FIELDS:
            return node_id
        case list() if name in ID_FIELDS:
            return [_plain_field(name, item) for item in value]
        case {"const": constant} if name in CONSTANT_FIELDS:
            return constant
        case {"text": {"json": parsed}, "kind": kind} if name == "constraint" and kind in JSON_WRITERS:
            return {**value, "text": JSON_WRITERS[kind](parsed)}
    return value


def _syntax_error(text: str, error: UnexpectedInput) -> FormatError:
    line, column = max(getattr(error, "line", 1), 1), max(getattr(error, "column", 1), 1)
    lines = text.splitlines() or [""]
    shown = lines[min(line, len(lines)) - 1]
    start = max(0, column - 41)
    expected = sorted(map(str, getattr(error, "expected", None) or getattr(error, "allowed", None) or ()))
    return FormatError(
        f"line {line}, column {column} of the graph text is not understood; expected {', '.join(expected)}\n"
        f"      | {shown[start : start + 80]}\n      | {' ' * (column - 1 - start)}^",
        hint="print_graph(graph) shows the form; ir/graph.lark is its grammar",
    )


# --- printing -------------------------------------------------------------------------------------------------------


def print_graph(graph: Graph, *, origins: bool = False) -> str:
    """The graph as text. `origins` adds each node's file and line as a comment.

    Raises:
        FormatError: a constant in the graph is not JSON (NaN, an object, ...).
    """
    try:
        with nesting(f"graph {graph.name!r}"):
            data = encode_graph(graph, origins=False)
            noted = [node for node in every_node(graph) if node.origin] if origins else []
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
