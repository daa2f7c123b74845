"""Golden graphs: a program's graph, kept beside the tests as readable text and compared by meaning.

def test_triage_graph(golden):
    golden(triage.trace(["ticket"]))          # tests/golden/test_triage_graph.graph; pytest --update-golden writes it
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from ..errors import GoldenError, SpecError
from ..ir.graph import Graph
from ..ir.nodes import Node
from ..ir.specs import shown
from ..ir.text_format import parse, print_graph

SUFFIX = ".graph"
SHOWN_CHANGES = 20


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two graphs. `what`: in words."""

    node_id: str
    kind: Literal["added", "removed", "changed", "moved"]
    what: str

    def __str__(self) -> str:
        return f"{self.kind} {self.node_id}: {self.what}"


def compare(golden: Graph, graph: Graph) -> tuple[Change, ...]:
    """What changed from `golden` to `graph`, by node id: origins and the program's name do not count.

    Raises:
        SpecError: one of them is no Graph.
    """
    for name, each in (("golden", golden), ("graph", graph)):
        if not isinstance(each, Graph):
            raise SpecError(
                f"{name}={shown(each)} is no Graph", hint="program.trace(...) makes one, and result.graph is one"
            )
    return tuple(_changes(golden, graph))


def check_golden(graph: Graph, path: Path, *, update: bool = False) -> None:
    """Compare a graph with the file at `path`, or write it there with `update`.

    Raises:
        SpecError: `graph` is none.
        GoldenError: the graph differs, or there is no file yet.
        FormatError: the file cannot be read.
    """
    if not isinstance(graph, Graph):
        raise SpecError(f"{shown(graph)} is no Graph", hint="program.trace(...) makes one, and result.graph is one")
    path = Path(path)
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(print_graph(graph), encoding="utf-8")
        return
    if not path.exists():
        raise GoldenError(f"there is no golden graph at {path}", hint="run pytest with --update-golden, and look at it")
    changes = compare(parse(path.read_text(encoding="utf-8")), graph)
    if changes:
        lines = "\n".join(f"  {change}" for change in changes[:SHOWN_CHANGES])
        more = f"\n  and {len(changes) - SHOWN_CHANGES} more" if len(changes) > SHOWN_CHANGES else ""
        raise GoldenError(
            f"{len(changes)} nodes differ from {path.name}:\n{lines}{more}",
            hint="if the change is meant, run pytest with --update-golden",
        )


def _changes(golden: Graph, graph: Graph) -> Iterator[Change]:
    for node in golden:
        if node.id not in graph:
            yield Change(node.id, "removed", f"it was a {node.kind}")
    common = [node.id for node in golden if node.id in graph]
    now = [node.id for node in graph if node.id in golden]
    for node in graph:
        if node.id not in golden:
            yield Change(node.id, "added", _said(node))
        elif node != golden[node.id]:
            yield Change(node.id, "changed", _differing(golden[node.id], node))
    for was, stands in zip(common, now, strict=True):
        if was != stands:
            yield Change(stands, "moved", f"it stands where {was} stood")
            return


def _said(node: Node) -> str:
    context = f" after {node.context}" if node.context else ""
    return f"a {node.kind}{context}"


def _differing(old: Node, new: Node) -> str:
    if type(old) is not type(new):
        return f"a {old.kind} became a {new.kind}"
    names = [f.name for f in fields(new) if f.compare and getattr(old, f.name) != getattr(new, f.name)]
    return "; ".join(f"{name} was {getattr(old, name)!r}, is {getattr(new, name)!r}" for name in names)
