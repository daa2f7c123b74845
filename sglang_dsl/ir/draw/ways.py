"""Which ways a run took through the sub-graphs of a node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..execution import Outcome
from ..graph import Graph
from ..nodes import Loop, Map, Node, Switch, subgraphs
from ..operations import apply_all
from .labels import arm_label


def ways(node: Node) -> Iterator[tuple[str, Graph]]:
    """The sub-graphs of a node and when each is taken."""
    match node:
        case Switch(arms=arms):
            for arm in arms:
                yield arm_label(arm, arms), arm.graph
        case Loop(body=body):
            yield f"at most {node.limit} times", body
        case Map(body=body):
            yield "for each item", body


def ways_taken(node: Node, outcomes: Mapping[str, Outcome]) -> list[bool]:
    """For each sub-graph of a node whether the run came through it. An arm is known by the value that decided."""
    if isinstance(node, Switch) and node.on.node_id in outcomes:
        value = apply_all(outcomes[node.on.node_id].value, node.on.operations)
        named = [arm.values is not None and value in arm.values for arm in node.arms]
        return named if any(named) else [arm.values is None for arm in node.arms]
    return [_ran(graph, outcomes) for graph in subgraphs(node)]


def _ran(graph: Graph, outcomes: Mapping[str, Outcome]) -> bool:
    return any(node.id in outcomes or any(_ran(g, outcomes) for g in subgraphs(node)) for node in graph)
