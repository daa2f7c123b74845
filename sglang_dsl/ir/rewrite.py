"""The same node with its values taken from elsewhere: what passes need to move references."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar, overload

from .graph import Graph
from .nodes import (
    Break,
    Concat,
    Constant,
    DictOf,
    Expression,
    Join,
    ListOf,
    Loop,
    Map,
    Node,
    Reference,
    Return,
    Select,
    Switch,
    Text,
    Tool,
)

T = TypeVar("T")
Moves = Mapping[str, str]  # node id -> id of the node whose value is to be used instead


def moved_graph(graph: Graph, moves: Moves) -> Graph:
    """A graph in which every reference follows `moves`."""
    return Graph((moved_node(node, moves) for node in graph), name=graph.name)


def moved_node(node: Node, moves: Moves) -> Node:
    """A node whose references, and those in its sub-graphs, follow `moves`. Its own place in the graph stays."""
    if not moves:
        return node
    if any(source in moves for source in node.control):
        node = replace(node, control=tuple(dict.fromkeys(moves.get(source, source) for source in node.control)))
    match node:
        case Text():
            return replace(node, pieces=tuple(_item(piece, moves) for piece in node.pieces))
        case Select():
            return replace(node, choices=tuple(_item(choice, moves) for choice in node.choices))
        case Join():
            return replace(node, values=tuple(_moved(value, moves) for value in node.values))
        case Tool():
            return replace(node, arguments=DictOf(tuple((k, _moved(v, moves)) for k, v in node.arguments.items)))
        case Switch():
            arms = (replace(a, graph=moved_graph(a.graph, moves), result=_moved(a.result, moves)) for a in node.arms)
            return replace(node, on=_item(node.on, moves), arms=tuple(arms))
        case Loop():
            until = None if node.until is None else _item(node.until, moves)
            return replace(node, body=moved_graph(node.body, moves), until=until, result=_moved(node.result, moves))
        case Map():
            body = moved_graph(node.body, moves)
            return replace(node, items=_moved(node.items, moves), body=body, result=_moved(node.result, moves))
        case Break():
            return replace(node, on=None if node.on is None else _item(node.on, moves))
        case Return():
            return replace(node, value=_moved(node.value, moves))
    return node


@overload
def _moved(expression: None, moves: Moves) -> None: ...
@overload
def _moved(expression: Expression, moves: Moves) -> Expression: ...
@overload
def _moved(expression: Expression | None, moves: Moves) -> Expression | None: ...
def _moved(expression: Expression | None, moves: Moves) -> Expression | None:
    match expression:
        case None | Constant():
            return expression
        case Reference():
            return _item(expression, moves)
        case ListOf(items):
            return ListOf(tuple(_moved(item, moves) for item in items))
        case DictOf(pairs):
            return DictOf(tuple((key, _moved(item, moves)) for key, item in pairs))
        case Concat(parts):
            return Concat(tuple(_moved(part, moves) for part in parts))


def _item(item: T, moves: Moves) -> T:
    """A piece, choice or reference."""
    if isinstance(item, Reference) and item.node_id in moves:
        return replace(item, node_id=moves[item.node_id])
    return item
