"""What the graph says ahead of a run: which calls can run together, and what takes longest.

All of it is networkx over the dependencies: what has to exist before a node can run. Sub-graphs are looked at through
the node that holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .graph import Graph, edges_into
from .nodes import Fork, Gen, Join, ModelCall, Node, Select, subgraphs

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, slots=True)
class WeightedPath:
    """A path through the dependencies and the sum of its nodes' weights."""

    nodes: tuple[str, ...]
    weight: int


def dependencies(graph: Graph) -> nx.DiGraph[str]:
    """What has to have ended before what: context, data and control edges, and a join's tips.

    What a sub-graph needs of the graph around it is not among them: it is there when the sub-graph starts.
    """
    import networkx as nx

    needs: nx.DiGraph[str] = nx.DiGraph()
    needs.add_nodes_from(node.id for node in graph)
    for node in graph:
        sources = [source for source, _ in edges_into(node)] + list(node.tips if isinstance(node, Join) else ())
        needs.add_edges_from((source, node.id) for source in sources if source in graph)
    return needs


def calls_of(node: Node) -> int:
    """How many model calls a node stands for: itself, or those of its sub-graphs."""
    if isinstance(node, ModelCall):
        return 1
    return sum(calls_of(inner) for graph in subgraphs(node) for inner in graph)


def waves(graph: Graph) -> list[tuple[str, ...]]:
    """The calls in waves: all of a wave can run at once, given the waves before it."""
    import networkx as nx

    position = {node.id: i for i, node in enumerate(graph)}
    return [tuple(sorted(wave, key=position.__getitem__)) for wave in nx.topological_generations(_call_order(graph))]


def _call_order(graph: Graph) -> nx.DiGraph[str]:
    """The nodes that call a model, and which of them waits for which (only the nearest)."""
    import networkx as nx

    nearest: dict[str, set[str]] = {}
    order: nx.DiGraph[str] = nx.DiGraph()
    needs = dependencies(graph)
    for node_id in nx.topological_sort(needs):
        before = _nearest_before(graph[node_id], [nearest[source] for source in needs.predecessors(node_id)], nearest)
        if calls_of(graph[node_id]):
            order.add_node(node_id)
            order.add_edges_from((call, node_id) for call in before)
            before = {node_id}
        nearest[node_id] = before
    return order


def _nearest_before(node: Node, found: list[set[str]], nearest: Mapping[str, set[str]]) -> set[str]:
    """The calls before a node. Those before a fork are no longer near where it is joined, if a branch made any."""
    sets = {id(calls): calls for calls in found}
    if isinstance(node, Join) and any(nearest[tip] is not nearest[node.fork] for tip in node.tips if tip in nearest):
        sets.pop(id(nearest[node.fork]), None)
    return next(iter(sets.values())) if len(sets) == 1 else {call for calls in sets.values() for call in calls}


def sibling_groups(graph: Graph) -> list[tuple[str, ...]]:
    """Calls of one wave below the same fork: what belongs into one batch, sharing that fork's prefix."""
    fork_of: dict[str, str] = {}
    for node in graph:
        parent = graph[node.context] if node.context is not None else None
        if isinstance(parent, Fork) and node.branch is not None:
            fork_of[node.id] = parent.id
        elif parent is not None and parent.id in fork_of:
            fork_of[node.id] = fork_of[parent.id]
    groups: dict[tuple[int, str], list[str]] = {}
    for number, wave in enumerate(waves(graph)):
        for call in wave:
            groups.setdefault((number, fork_of.get(call, "")), []).append(call)
    return [tuple(group) for group in groups.values()]


def critical_path(graph: Graph, weight: Callable[[Node], int] | None = None) -> WeightedPath:
    """The path of dependencies with the largest sum of weights: what a run takes at least, however wide its batches.

    weight: of each node; by default the tokens it may generate.
    """
    import networkx as nx

    weigh = weight or generated_bound
    needs = dependencies(graph)
    weights = {node.id: weigh(node) for node in graph}
    weighted: nx.DiGraph[str] = nx.DiGraph()
    weighted.add_nodes_from(needs)
    weighted.add_edges_from((a, b, {"weight": weights[b]}) for a, b in needs.edges)
    roots = [node_id for node_id in needs if needs.in_degree(node_id) == 0]
    weighted.add_edges_from(("", root, {"weight": weights[root]}) for root in roots)
    path = nx.dag_longest_path(weighted, weight="weight")[1:] if roots else []
    return WeightedPath(tuple(path), sum(weights[node_id] for node_id in path))


def generated_bound(node: Node) -> int:
    """The most tokens a node can generate one after the other: a gen's `max_tokens`, 1 for a select (its choices are
    scored at once), the longest way through sub-graphs.
    """
    match node:
        case Gen():
            return node.sampling.most_tokens
        case Select():
            return 1
    inner = [critical_path(graph).weight for graph in subgraphs(node)]
    return max(inner, default=0) * getattr(node, "limit", 1)
