"""The stored form of a graph: versioned, hashed JSON, described by `graph.schema.json` beside this file.

    {"format": "sglang_dsl.graph", "version": 1, "hash": "sha256:…", "graph": {"name": …, "nodes": […]}}

The hash is of the graph's canonical JSON without origins: equal graphs have equal hashes, wherever their lines stand.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import ExportError, FormatError, Origin
from .codec import Data, decode_graph, encode_graph, nesting
from .graph import Graph
from .nodes import Break, Gen, Join, Node, Switch, ToolNode
from .record import save_text
from .semantics import every_node

FORMAT = "sglang_dsl.graph"
VERSION = 1


def dumps(graph: Graph, *, origins: bool = True) -> str:
    """The graph as a JSON document. `origins`: keep each node's file and line, for error messages.

    Raises:
        FormatError: a constant in the graph is not JSON, or nested too deeply.
    """
    with nesting(f"graph {graph.name!r}"):
        document = {
            "format": FORMAT,
            "version": VERSION,
            "hash": graph_hash(graph),
            "graph": encode_graph(graph, origins=origins),
        }
        return json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def loads(text: str | bytes) -> Graph:
    """The graph of a JSON document.

    Raises:
        FormatError: not JSON, not one of ours, of a version this code does not know, changed since it was written, or
            holding a node that is not valid.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the graph file is not JSON: {error}") from error
    data = _checked(document)
    with nesting("the graph file"):
        graph = decode_graph(data)
        actual = graph_hash(graph)
    if actual != document["hash"]:
        raise FormatError(
            f"the graph's hash is {actual}, the file says {document['hash']!r}: it was changed after it was written",
            hint="write it again with save(graph, path)",
        )
    return graph


def save(graph: Graph, path: str | Path) -> None:
    """`dumps` into a file, which appears whole or not at all. Raises FormatError, OSError."""
    save_text(Path(path), dumps(graph))


def load(path: str | Path) -> Graph:
    """`loads` of a file. Raises FormatError, OSError."""
    return loads(Path(path).read_bytes())


def schema() -> Data:
    """The JSON Schema (2020-12) of the document."""
    found: Data = json.loads((files(__package__) / "graph.schema.json").read_text(encoding="utf-8"))
    return found


def graph_hash(graph: Graph) -> str:
    """`sha256:` and the hex digest of the graph's canonical JSON. Raises FormatError where it is not JSON."""
    data = encode_graph(graph, origins=False)
    try:
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    except (TypeError, ValueError) as error:
        raise FormatError(f"graph {graph.name!r} holds a value that is not JSON: {error}") from error


def _checked(document: Any) -> Data:
    """The graph's part of a document whose head is right."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise FormatError(f'this is not a graph file: it has to hold "format": "{FORMAT}"')
    if document.get("version") != VERSION:
        raise FormatError(
            f"the graph file has version {document.get('version')!r}; this release reads version {VERSION}",
            hint="trace the program again, or read the file with the release that wrote it",
        )
    if unknown := document.keys() - {"format", "version", "hash", "graph"}:
        raise FormatError(f"the graph file has unknown fields: {', '.join(sorted(unknown))}")
    if not isinstance(document.get("hash"), str):
        raise FormatError("the graph file has no hash")
    graph: Data = document.get("graph")  # type: ignore[assignment]  # decode_graph says what is wrong with it
    return graph


# --- export ---------------------------------------------------------------------------------------------------------


def check_exportable(graph: Graph, registry: Collection[str] = ()) -> None:
    """Refuse a graph that cannot run without its Python source. `registry`: keys the receiver knows.

    Raises:
        ExportError: names each Break, assumed Switch, unknown tool and unknown Python key, with the first one's line.
    """
    problems = list(_problems(graph, registry))
    if not problems:
        return
    listed = "; ".join(what for what, _ in problems[:10])
    more = f"; and {len(problems) - 10} more" if len(problems) > 10 else ""
    raise ExportError(
        f"graph {graph.name!r} needs its Python source: {listed}{more}",
        hint="say it with switch, loop and map; register tools and keys with whoever runs the graph",
        origin=next((origin for _, origin in problems if origin is not None), None),
    )


def _problems(graph: Graph, registry: Collection[str]) -> Iterator[tuple[str, Origin | None]]:
    for node in every_node(graph):
        for what in _needs_python(node, registry):
            yield f"node {node.id!r} {what}", node.origin


def _needs_python(node: Node, registry: Collection[str]) -> Iterator[str]:
    match node:
        case Break(reason=reason):
            yield f"is a break ({reason})"
        case Switch(assumed=True):
            yield "is a switch of which not every path was traced"
        case ToolNode(tool=tool) if tool not in registry:
            yield f"calls the tool {tool!r}, which is not registered"
        case Join(key=str() as key) if key not in registry:
            yield f"chooses by the Python function {key!r}, which is not registered"
        case Gen(validator=str() as key) if key not in registry:
            yield f"is checked by the Python function {key!r}, which is not registered"
