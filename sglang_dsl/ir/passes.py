"""Rewrites of a finished graph that leave every result as it was.

Each pass has a name, can be left out, and is recorded with the graph before and after. They are for graphs that run
without their Python source: in a live run the interpreter does the same as nodes arrive. Sub-graphs stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from ..errors import SpecError
from .graph import Graph
from .nodes import Fork, Gen, Join, ModelCall, Node, Plain, Raw, Reference, RoleBegin, RoleEnd, Select, Text, subgraphs
from .rewrite import moved_node

RACING = ("first", "quorum", "vote")  # joins that cancel branches


@dataclass(frozen=True, slots=True)
class Applied:
    """One pass over one graph. gone: ids of nodes that are no longer there, or no longer call a model."""

    name: str
    before: Graph
    after: Graph
    gone: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The graph after all passes, and each pass on the way there."""

    graph: Graph
    passes: tuple[Applied, ...]


def rewrite(graph: Graph, *, without: Collection[str] = ()) -> Rewritten:
    """Run all passes but those named in `without`.

    Raises:
        SpecError: `without` names a pass that does not exist.
    """
    if unknown := set(without) - PASSES.keys():
        raise SpecError(f"no pass is called {', '.join(sorted(unknown))}", hint=f"there are {', '.join(PASSES)}")
    applied: list[Applied] = []
    for name, run in PASSES.items():
        if name not in without:
            after = run(graph)
            applied.append(Applied(name, graph, after, _gone(graph, after)))
            graph = after
    return Rewritten(graph, tuple(applied))


def _gone(before: Graph, after: Graph) -> tuple[str, ...]:
    return tuple(n.id for n in before if n.id not in after or after[n.id].kind != n.kind)


# --- merge text -----------------------------------------------------------------------------------------------------


def merge_text(graph: Graph) -> Graph:
    """Texts that follow each other directly become one node, and plain pieces beside each other one piece.

    Between two seams text is tokenized as one stretch anyway, so no token changes. The merged node has the id of the last
    one, so that whatever hangs on it, or names it as a tip, still does.
    """
    followers: dict[str, int] = {}
    for node in graph:
        if node.context is not None:
            followers[node.context] = followers.get(node.context, 0) + 1
    tips = {tip for node in graph if isinstance(node, Join) for tip in node.tips}
    merged: dict[str, Node] = {}
    for node in graph:
        before = merged.get(node.context or "")
        if isinstance(node, Text) and isinstance(before, Text) and _mergeable(before, node, followers, tips):
            del merged[before.id]
            node = replace(node, context=before.context, branch=before.branch, pieces=before.pieces + node.pieces)
        merged[node.id] = _tidy(node)
    return Graph(merged.values(), name=graph.name)


def _mergeable(before: Text, node: Text, followers: Mapping[str, int], tips: Collection[str]) -> bool:
    alone = followers[before.id] == 1 and before.id not in tips
    return alone and node.branch is None and (before.control, before.scope) == (node.control, node.scope)


def _tidy(node: Node) -> Node:
    if not isinstance(node, Text):
        return node
    pieces: list[Plain | Raw | Reference] = []
    for piece in node.pieces:
        last = pieces[-1] if pieces else None
        if isinstance(piece, Plain) and isinstance(last, Plain):
            pieces[-1] = Plain(last.text + piece.text)
        elif not isinstance(piece, Plain) or piece.text:
            pieces.append(piece)
    return replace(node, pieces=tuple(pieces))


# --- share equal calls ----------------------------------------------------------------------------------------------


def share_equal_calls(graph: Graph) -> Graph:
    """A call that must give what an earlier one gives is not made: its text and value are the earlier one's.

    Must: the same prompt, options and model, and no chance in it (greedy, or the same explicit seed and sample; a
    select has none). Left alone are calls that others continue from (they would be tokenized again), and calls on
    branches that a join may cancel.
    """
    continued = _continued(graph)
    racing = _on_racing_branches(graph)
    prompts: dict[str, int] = {}
    number: dict[tuple[int, str], int] = {}  # of each distinct prompt: what stands before its last part, and that part
    first: dict[tuple[int, str], str] = {}
    moves: dict[str, str] = {}
    kept: list[Node] = []
    for original in graph:
        node = moved_node(original, moves)
        prompt = prompts[node.context] if node.context is not None else 0
        if isinstance(node, Gen | Select) and _certain(node) and node.id not in racing:
            earlier = first.setdefault((prompt, _what(node)), node.id)
            if earlier != node.id and node.id not in continued:
                moves[node.id] = earlier
                node = _quote(node, earlier)
        prompts[node.id] = number.setdefault((prompt, _part(node)), len(number) + 1)
        kept.append(node)
    return Graph(kept, name=graph.name)


def _quote(node: Gen | Select, earlier: str) -> Text:
    return Text(
        id=node.id,
        context=node.context,
        branch=node.branch,
        control=node.control,
        scope=node.scope,
        origin=node.origin,
        pieces=(Reference(earlier),),
    )


def _certain(node: Gen | Select) -> bool:
    return isinstance(node, Select) or node.sampling.greedy or node.sampling.seed is not None


def _what(node: Gen | Select) -> str:
    """The call alone: without its name and its place in the graph."""
    return repr(replace(node, id="", name=None, context=None, branch=None, control=(), scope="", origin=None))


def _part(node: Node) -> str:
    """What a node adds to the prompt of its followers, equal for two nodes only if every token of it is."""
    match node:
        case Text(pieces=pieces):
            return repr(pieces)
        case RoleBegin(role=role) | RoleEnd(role=role):
            return f"{node.kind} {role}"
        case Fork():
            return "seam"
        case Join(mode=mode) if mode != "concat":
            return "join"
    return f"node {node.id}"


def _continued(graph: Graph) -> set[str]:
    """Nodes whose text stands in front of a call, or is joined into a text that may."""
    continued: set[str] = set()
    concat = [tip for node in graph if isinstance(node, Join) and node.mode == "concat" for tip in node.tips]
    calling = [node.context for node in graph if isinstance(node, ModelCall) or subgraphs(node)]
    for start in (*concat, *calling):
        current = start
        while current is not None and current not in continued:
            continued.add(current)
            current = graph[current].context
    return continued


def _on_racing_branches(graph: Graph) -> set[str]:
    """Nodes below a fork whose join may cancel branches before they end."""
    forks = {node.fork for node in graph if isinstance(node, Join) and node.mode in RACING}
    below: set[str] = set()
    for node in graph:
        if (node.context in forks and node.branch is not None) or node.context in below:
            below.add(node.id)
    return below


PASSES: Mapping[str, Callable[[Graph], Graph]] = {"merge text": merge_text, "share equal calls": share_equal_calls}
