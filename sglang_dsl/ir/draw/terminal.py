"""A tree for the terminal, made with rich: what follows stands below, what branches is indented."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from ..analysis import calls_of
from ..execution import Outcome
from ..graph import Graph
from ..nodes import Fork, Node, RoleBegin, RoleEnd, Text, subgraphs
from .labels import Names, counts, names_of, notes, printable, shorten, title
from .picture import folded_branches, summary_of
from .ways import ways, ways_taken

if TYPE_CHECKING:
    from rich.text import Text as RichText
    from rich.tree import Tree

STYLES: Mapping[str, str] = {
    "gen": "bold green",
    "select": "bold cyan",
    "fork": "bold blue",
    "join": "bold blue",
    "switch": "bold yellow",
    "loop": "bold yellow",
    "map": "bold yellow",
    "tool": "bold magenta",
    "break": "bold red",
    "role_begin": "dim",
}
WIDTH = 120
VALUE_CHARACTERS = 70


def draw_terminal(graph: Graph, outcomes: Mapping[str, Outcome], fold: int | None) -> str:
    """The tree as plain text, `WIDTH` columns wide."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=WIDTH, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as captured:
        console.print(tree_of(graph, outcomes, fold), no_wrap=True, overflow="ellipsis", crop=True)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def tree_of(graph: Graph, outcomes: Mapping[str, Outcome], fold: int | None) -> Tree:
    """The tree as a rich renderable, with colours."""
    from rich.tree import Tree

    nodes, calls = _size(graph), sum(map(calls_of, graph))
    root = Tree(_line(graph.name or "program", "bold", f"{_count(nodes, 'node')}, {_count(calls, 'model call')}"))
    _grow(root, graph, outcomes, fold, names_of(graph))
    return root


def _size(graph: Graph) -> int:
    """All nodes, those of sub-graphs included."""
    return len(graph) + sum(_size(inner) for node in graph for inner in subgraphs(node))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


class _Spot(NamedTuple):
    """Where a node's followers are added: `inner`, or `outer` once the open turn has ended."""

    inner: Tree
    outer: Tree


def _grow(root: Tree, graph: Graph, outcomes: Mapping[str, Outcome], fold: int | None, names: Names) -> None:
    """Add a graph below `root`. `spots`: by node; `forks`: the tree of each fork; `branches`: those of its branches."""
    folded = folded_branches(graph, fold)
    spots: dict[str, _Spot] = {}
    forks: dict[str, Tree] = {}
    branches: dict[tuple[str, int], Tree] = {}
    for node in graph:
        if (fork := folded.get(node.id)) is not None:
            if (fork.id, -1) not in branches:
                branches[fork.id, -1] = forks[fork.id].add(_line(summary_of(fork), "dim"))
            continue
        spot = spots.get(node.context or "", _Spot(root, root))
        if node.branch is not None and node.context in forks:
            key = (node.context, node.branch)
            if key not in branches:
                branches[key] = forks[node.context].add(_line(f"[{node.branch}]", "dim"))
            spot = _Spot(branches[key], branches[key])
        if isinstance(node, RoleEnd):
            spots[node.id] = _Spot(spot.outer, spot.outer)
            continue
        here = spot.inner.add(_node_line(node, outcomes, names))
        spots[node.id] = _Spot(here, spot.inner) if isinstance(node, RoleBegin) else spot
        if isinstance(node, Fork):
            forks[node.id] = here
        _grow_inside(here, node, outcomes, fold, names)


def _grow_inside(here: Tree, node: Node, outcomes: Mapping[str, Outcome], fold: int | None, names: Names) -> None:
    taken = ways_taken(node, outcomes) if outcomes else []
    for number, (label, inner) in enumerate(ways(node)):
        note = ("taken" if taken[number] else "not taken") if outcomes else ""
        _grow(
            here.add(_line(label, "bold yellow" if not outcomes or taken[number] else "dim", note)),
            inner,
            outcomes,
            fold,
            names,
        )


def _node_line(node: Node, outcomes: Mapping[str, Outcome], names: Names) -> RichText:
    outcome = outcomes.get(node.id)
    if isinstance(node, RoleBegin):
        return _line(node.role, STYLES["role_begin"])
    if isinstance(node, Text):
        return _line(f"“{title(node, names)}”", "")
    facts = [counts(outcome) or ", ".join(notes(node))]
    if outcome is not None and outcome.text:
        facts.append(f"→ {shorten(outcome.text, VALUE_CHARACTERS)}")
    return _line(title(node, names), STYLES.get(node.kind, "bold"), "  ".join(filter(None, facts)))


def _line(text: str, style: str, note: str = "") -> RichText:
    from rich.text import Text as RichText

    line = RichText(printable(text), style=style)
    return line.append(f"  {printable(note)}", style="not bold dim") if note else line
