"""Reading the readable form: `graph.lark` and what each of its rules becomes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ..errors import FormatError
from .codec import Data

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


def compact_json(value: Any) -> str:
    """JSON as `ConstraintSpec.json_schema` writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def spaced_json(value: Any) -> str:
    """JSON as `ConstraintSpec.choices` writes it."""
    return json.dumps(value, ensure_ascii=False)


JSON_WRITERS: Mapping[str, Callable[[Any], str]] = {"json_schema": compact_json, "choices": spaced_json}


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
