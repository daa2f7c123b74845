"""The graph: nodes in append order, with networkx views over their edges; and what all nodes have in common (`Node`).

A graph is append-only while a run grows it, and frozen after. Owner: the State that builds it (one thread). It knows of its
nodes no more than `Node` says; the kinds stand in `nodes.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..errors import GraphError, Origin
from .expressions import Constant, Expression, Piece, Plain, Raw, references_in
from .specs import shown

if TYPE_CHECKING:
    import networkx as nx


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


_REFERS_TO_NOTHING = (Plain, Raw, Constant, str, type(None))  # most of what is mentioned


def data_of(node: Node) -> tuple[str, ...]:
    """Ids of the nodes whose *values* this node mentions, each once, in reading order."""
    found = [mentioned for mentioned in node.mentions() if not isinstance(mentioned, _REFERS_TO_NOTHING)]
    return tuple(dict.fromkeys(r.node_id for mentioned in found for r in references_in(mentioned))) if found else ()


EdgeKind = Literal["context", "data", "control"]
MAX_REGION_DEPTH = 64  # switches, loops and maps in each other, in a graph


class Graph:
    """Nodes by id, in the order in which they were appended.

    Two graphs are equal if their nodes are (origins do not count). `name` is the program's; `version` counts appends. depth: how many levels
    of sub-graphs its nodes hold.
    """

    __slots__ = ("_frozen", "_nodes", "_view", "depth", "name")

    def __init__(self, nodes: Iterable[Node] = (), *, name: str = "") -> None:
        self.name = name
        self._nodes: dict[str, Node] = {}
        self._frozen = False
        self.depth = 0
        self._view: tuple[int, nx.MultiDiGraph[str]] | None = None
        for node in nodes:
            self.append(node)

    def append(self, node: Node) -> None:
        """Add a node. Everything it mentions must be here already.

        Raises:
            GraphError: the graph is frozen, the id is taken, or the node holds sub-graphs in each other more than
                MAX_REGION_DEPTH deep.
        """
        if self._frozen:
            raise GraphError(f"graph {self.name!r} is frozen; node {node.id!r} cannot be added", origin=node.origin)
        if node.id in self._nodes:
            raise GraphError(f"node id {node.id!r} is taken", origin=node.origin)
        for inner in node.graphs():
            self.depth = max(self.depth, inner.depth + 1)
            if self.depth > MAX_REGION_DEPTH:
                raise GraphError(
                    f"node {shown(node.id)} holds switches, loops and maps in each other more than {MAX_REGION_DEPTH} deep",
                    hint="let the body of a loop do in turn what the levels do",
                    origin=node.origin,
                )
        self._nodes[node.id] = node

    def extend(self, nodes: Iterable[Node]) -> None:
        """`append` each. Raises like `append`; the nodes before the refused one stay."""
        taken = self._nodes
        for node in nodes:
            if self._frozen or node.id in taken or type(node).holds_graphs:
                self.append(node)
            else:
                taken[node.id] = node

    def freeze(self) -> Graph:
        """No more appends. Returns itself."""
        self._frozen = True
        return self

    @property
    def frozen(self) -> bool:
        """Whether appends are over."""
        return self._frozen

    def __getitem__(self, node_id: str) -> Node:
        return self._nodes[node_id]

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._nodes

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph):
            return NotImplemented
        return self.name == other.name and list(self._nodes.values()) == list(other._nodes.values())

    def __hash__(self) -> int:
        return hash((self.name, tuple(self._nodes)))

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {len(self)} nodes)"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """What a notebook shows: the page. Pictures are made of graphs, so what makes them is found when it is needed."""
        page: dict[str, str] = import_module(".draw", __package__).draw(self, "html")._repr_mimebundle_()
        return {**page, "text/plain": repr(self)}

    @property
    def nx(self) -> nx.MultiDiGraph[str]:
        """A networkx view: node attribute `node`, edge key and attribute `kind` in {context, data, control}.

        Edges point from what comes first to what needs it. Rebuilt when the graph has grown; do not mutate it.
        """
        import networkx as nx

        if self._view is None or self._view[0] != len(self._nodes):
            view: nx.MultiDiGraph[str] = nx.MultiDiGraph(name=self.name)
            view.add_nodes_from((node.id, {"node": node}) for node in self)
            for node in self:
                for source, kind in edges_into(node):
                    view.add_edge(source, node.id, key=kind, kind=kind)
            self._view = (len(self._nodes), view)
        return self._view[1]

    def path(self, node_id: str | None, after: str | None = None) -> list[Node]:
        """The context path from the root to `node_id`, both included; with `after`, only what stands behind that node of it."""
        path: list[Node] = []
        current = node_id
        while current is not None and current != after:
            node = self._nodes[current]
            path.append(node)
            current = node.context
        return path[::-1]


def main_line(graph: Graph) -> Iterator[Node]:
    """The nodes on a graph's own way from beginning to end, without those on the branches of its forks."""
    branched: set[str] = set()
    for node in graph:
        if node.branch is not None or node.context in branched:
            branched.add(node.id)
        else:
            yield node


def edges_into(node: Node) -> Iterator[tuple[str, EdgeKind]]:
    """(source id, kind) of every edge that ends at `node`."""
    if node.context is not None:
        yield node.context, "context"
    for source in data_of(node):
        yield source, "data"
    for source in node.control:
        yield source, "control"
