"""What all nodes of the graph have in common. The kinds stand in `nodes.py`; graphs (`graph.py`) need to know no more than this."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..errors import Origin
from .expressions import Expression, Piece, references_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What all kinds have.

    context: id of the node whose text is this node's prefix (None at the root). branch: where the context is a Fork,
    the index of the branch that starts here. control: ids of the values that decided that this node runs.
    scope: path of nested programs and var scopes, "" at the top. origin: the user's line; not part of equality.
    """

    kind: ClassVar[str] = "node"
    holds_graphs: ClassVar[bool] = False

    id: str
    context: str | None = None
    branch: int | None = None
    control: tuple[str, ...] = ()
    scope: str = ""
    origin: Origin | None = field(default=None, compare=False)

    def mentions(self) -> Iterable[Expression | Piece | str | None]:
        """Everything this node mentions the value of, in reading order."""
        return ()

    def graphs(self) -> tuple[Any, ...]:
        """The Graphs it holds: a Switch's arms, a Loop's or Map's body."""
        return ()


def data_of(node: Node) -> tuple[str, ...]:
    """Ids of the nodes whose *values* this node mentions, each once, in reading order."""
    return tuple(dict.fromkeys(r.node_id for mentioned in node.mentions() for r in references_in(mentioned)))
