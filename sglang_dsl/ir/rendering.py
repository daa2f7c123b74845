"""The prompt of every node of a graph, as a model's meter renders it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .execution import Meter, Segment
from .graph import Graph, main_line
from .nodes import Fork, Loop, Node, Switch, subgraphs


def rendered(
    graph: Graph, meter: Meter, values: Mapping[str, str], before: Sequence[Node] = ()
) -> dict[str, list[Segment]]:
    """What each node adds to its prompt, sub-graphs included; every leaf's path is rendered once.

    A stretch between two seams has its tokens at its last segment. values: texts that are known, by node id. before:
    the path the graph continues.
    """
    parents = {node.context for node in graph}
    found: dict[str, list[Segment]] = {}
    paths: dict[str, list[Node]] = {}
    for leaf in (node for node in graph if node.id not in parents):
        fresh: dict[str, list[Segment]] = {}
        for segment in reversed(list(meter.render([*before, *_flat_path(graph, leaf.id, paths)], values))):
            if segment.node_id in found:
                break  # so is all that stands before it
            if segment.node_id in graph:
                fresh.setdefault(segment.node_id, []).insert(0, segment)
        found.update(fresh)
    for node in graph:
        for inner in subgraphs(node):
            found.update(rendered(inner, meter, values, [*before, *graph.path(node.id)[:-1]]))
    return found


def _flat_path(graph: Graph, node_id: str, paths: dict[str, list[Node]]) -> list[Node]:
    """The context path of a node; a node with sub-graphs stands for the way through it with the most nodes.

    paths: those up to each fork, found so far.
    """
    behind: list[Node] = []
    current: str | None = node_id
    while current is not None and current not in paths:
        behind.append(graph[current])
        current = graph[current].context
    path = list(paths[current]) if current is not None else []
    for node in reversed(behind):
        path.append(node)
        if isinstance(node, Fork):
            paths[node.id] = list(path)
        if node.id != node_id and isinstance(node, Switch | Loop):
            ways: list[list[Node]] = [list(main_line(inner)) for inner in subgraphs(node)]
            longest: list[Node] = max(ways, key=len, default=[])
            path.extend(longest)
    return path
