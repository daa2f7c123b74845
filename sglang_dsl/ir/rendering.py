"""The prompt of every node of a graph, as a model's meter renders it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .execution import Meter, Segment
from .graph import Graph, main_line
from .nodes import Loop, Node, Switch, subgraphs


def rendered(
    graph: Graph, meter: Meter, values: Mapping[str, str], before: Sequence[Node] = ()
) -> dict[str, list[Segment]]:
    """What each node adds to its prompt, sub-graphs included; every leaf's path is rendered once.

    A stretch between two seams has its tokens at its last segment. values: texts that are known, by node id. before:
    the path the graph continues.
    """
    parents = {node.context for node in graph}
    found: dict[str, list[Segment]] = {}
    for leaf in (node for node in graph if node.id not in parents):
        fresh: dict[str, list[Segment]] = {}
        for segment in meter.render([*before, *_flat_path(graph, leaf.id)], values):
            if segment.node_id not in found and segment.node_id in graph:
                fresh.setdefault(segment.node_id, []).append(segment)
        found.update(fresh)
    for node in graph:
        for inner in subgraphs(node):
            found.update(rendered(inner, meter, values, [*before, *graph.path(node.id)[:-1]]))
    return found


def _flat_path(graph: Graph, node_id: str) -> Iterator[Node]:
    """The context path of a node; a node with sub-graphs stands for the way through it with the most nodes."""
    for node in graph.path(node_id):
        yield node
        if node.id != node_id and isinstance(node, Switch | Loop):
            yield from max((list(main_line(inner)) for inner in subgraphs(node)), key=len, default=[])
