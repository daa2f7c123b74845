"""Names of the Switches that regions became: the value decided on, and a number where it is decided on again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ...ir.graph import Graph
from ...ir.nodes import Arm, Expression, Join, Loop, Map, Node, Reference, Switch
from .items import translated, translated_expression


def renamed(nodes: Iterable[Node]) -> list[Node]:
    """The nodes with short, unique ids for Switches, in order of appearance."""
    listed = list(nodes)
    names: dict[str, str] = {}
    taken: dict[str, int] = {}
    for switch in _switches(listed):
        if switch.id not in names:
            base = f"{names.get(switch.on.node_id, switch.on.node_id)}?"
            taken[base] = taken.get(base, 0) + 1
            names[switch.id] = base if taken[base] == 1 else f"{base}{taken[base]}"
    return [_renamed(node, names) for node in listed] if names else listed


def _switches(nodes: Iterable[Node]) -> Iterator[Switch]:
    for node in nodes:
        if isinstance(node, Switch):
            yield node
            for arm in node.arms:
                yield from _switches(arm.graph)
        elif isinstance(node, (Loop, Map)):
            yield from _switches(node.body)


def _renamed(node: Node, names: dict[str, str]) -> Node:
    def reference(old: Reference) -> Reference:
        return Reference(names.get(old.node_id, old.node_id), old.operations)

    context = names.get(node.context, node.context) if node.context is not None else None
    node = replace(node, id=names.get(node.id, node.id), context=context)
    if isinstance(node, Join):
        node = replace(node, tips=tuple(names.get(tip, tip) for tip in node.tips))
    if isinstance(node, Switch):
        arms = tuple(_renamed_arm(arm, names) for arm in node.arms)
        return replace(node, on=reference(node.on), arms=arms)
    if isinstance(node, (Loop, Map)):
        node = replace(node, body=Graph((_renamed(n, names) for n in node.body), name=node.body.name).freeze())
    return translated(node, reference)


def _renamed_arm(arm: Arm, names: dict[str, str]) -> Arm:
    def reference(old: Reference) -> Reference:
        return Reference(names.get(old.node_id, old.node_id), old.operations)

    result: Expression | None = None if arm.result is None else translated_expression(arm.result, reference)
    graph = Graph((_renamed(node, names) for node in arm.graph), name=arm.graph.name).freeze()
    return Arm(arm.values, graph, result)
