"""Which ways a run took through the sub-graphs of a node, and what it gave there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

from ..execution import Outcome
from ..graph import Graph
from ..nodes import Loop, Map, Node, Switch, subgraphs
from ..operations import apply_all
from .labels import arm_label

T = TypeVar("T")


class Instance(NamedTuple, Generic[T]):
    """One execution of a node. id: the node's own, in a sub-graph with the region, and the arm, turn or item, in front.

    given: what it left, an outcome or an error.
    """

    node: Node
    id: str
    given: T


def instances(graph: Graph, given: Mapping[str, T], prefix: str = "") -> Iterator[Instance[T]]:
    """Every execution of every node of a graph and its sub-graphs that left something."""
    for node in graph:
        node_id = prefix + node.id
        if node_id in given:
            yield Instance(node, node_id, given[node_id])
        for number, inner in enumerate(subgraphs(node)):
            for label in [str(number)] if isinstance(node, Switch) else _labels(f"{node_id}/", given):
                yield from instances(inner, given, f"{node_id}/{label}/")


def _labels(prefix: str, given: Mapping[str, object]) -> list[str]:
    """The turns of a loop or items of a map that left something, in order."""
    found = {key[len(prefix) :].partition("/")[0] for key in given if key.startswith(prefix)}
    return sorted(found, key=lambda label: (len(label), label))


def in_graph(graph: Graph, given: Mapping[str, T]) -> Iterator[tuple[str, T]]:
    """What executions left, under the ids the nodes have in the graph; of a loop in the order of its turns, and so on."""
    yield from given.items()
    for instance in instances(graph, given):
        yield instance.node.id, instance.given


def by_node(graph: Graph, outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """Outcomes under the ids the nodes have in the graph: of a loop the last turn's, of a map the last item's."""
    return dict(in_graph(graph, outcomes))


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


def ways_taken(
    node: Node, outcomes: Mapping[str, Outcome], errors: Mapping[str, BaseException] | None = None
) -> list[bool]:
    """For each sub-graph of a node whether the run came through it. An arm is known by the value that decided."""
    if isinstance(node, Switch) and node.on.node_id in outcomes:
        value = apply_all(outcomes[node.on.node_id].value, node.on.operations)
        named = [arm.values is not None and value in arm.values for arm in node.arms]
        return named if any(named) else [arm.values is None for arm in node.arms]
    return [_ran(graph, outcomes, errors or {}) for graph in subgraphs(node)]


def _ran(graph: Graph, outcomes: Mapping[str, Outcome], errors: Mapping[str, BaseException]) -> bool:
    return any(
        node.id in outcomes or node.id in errors or any(_ran(g, outcomes, errors) for g in subgraphs(node))
        for node in graph
    )
