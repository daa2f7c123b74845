"""Which ways a run took through the sub-graphs of a node, and what it gave there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..execution import Outcome
from ..graph import Graph
from ..nodes import Loop, Map, Node, Switch, subgraphs
from ..operations import apply_all
from .labels import arm_label


class Instance(NamedTuple):
    """One execution of a node. id: the node's own, in a sub-graph with the region, and the arm, turn or item, in front."""

    node: Node
    id: str
    outcome: Outcome


def instances(graph: Graph, outcomes: Mapping[str, Outcome], prefix: str = "") -> Iterator[Instance]:
    """Every execution of every node of a graph and its sub-graphs that has an outcome."""
    for node in graph:
        node_id = prefix + node.id
        if node_id in outcomes:
            yield Instance(node, node_id, outcomes[node_id])
        for number, inner in enumerate(subgraphs(node)):
            for label in [str(number)] if isinstance(node, Switch) else _labels(f"{node_id}/", outcomes):
                yield from instances(inner, outcomes, f"{node_id}/{label}/")


def _labels(prefix: str, outcomes: Mapping[str, Outcome]) -> list[str]:
    """The turns of a loop or items of a map that left outcomes, in order."""
    found = {key[len(prefix) :].partition("/")[0] for key in outcomes if key.startswith(prefix)}
    return sorted(found, key=lambda label: (len(label), label))


def by_node(graph: Graph, outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """Outcomes under the ids the nodes have in the graph: of a loop the last turn's, of a map the last item's."""
    return {**outcomes, **{instance.node.id: instance.outcome for instance in instances(graph, outcomes)}}


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
