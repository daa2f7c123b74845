"""A tree for the terminal, made with rich: what follows stands below, what branches is indented.

Where the indentation cannot say where a value comes from, numbers do: `#3` at its source, `⇠ #3` where it goes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ..analysis import calls_of
from ..graph import Graph
from ..nodes import Fork, Join, Node, RoleBegin, RoleEnd, Text, subgraphs
from ..semantics import every_node
from .labels import Names, counts, missing_of, names_of, notes, printable, title, ways, ways_taken
from .picture import FoldingPlan, Picture, hidden_nodes, picture_of, said_meanwhile
from .status import PLANNED, STRUCK_OUT, RunAccount, unjoined

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


def draw_terminal(account: RunAccount, fold: int | None) -> str:
    """The tree as plain text, `WIDTH` columns wide; where something failed wider, so that its error can be read."""
    from rich.console import Console

    console = Console(
        file=io.StringIO(),
        width=WIDTH * (4 if account.errors else 1),
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        legacy_windows=False,
    )
    with console.capture() as captured:
        console.print(tree_of(account, fold), no_wrap=True, overflow="ellipsis", crop=True)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def tree_of(account: RunAccount, fold: int | None) -> Tree:
    """The tree as a rich renderable, with colours."""
    from rich.tree import Tree

    graph = account.graph
    nodes, calls = _size(graph), sum(map(calls_of, graph))
    missing = missing_of(graph)
    least = "at least " if missing else ""
    head = _line(graph.name or "program", "bold", f"{_count(nodes, 'node')}, {least}{_count(calls, 'model call')}")
    if missing:
        head.append(f"  {missing}", style="not bold red")
    root = Tree(head)
    _Grower(account, FoldingPlan(fold)).grow(root, graph, ran=account.ran)
    return root


def _size(graph: Graph) -> int:
    """All nodes, those of sub-graphs included."""
    return sum(1 for _ in every_node(graph))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


class _Spot(NamedTuple):
    """Where a node's followers are added: `inner`, or `outer` once the open turn has ended."""

    inner: Tree
    outer: Tree


class _Grower:
    """Owner: one `tree_of`. `numbers`: of the boxes whose values go somewhere; `sources`: by box, the boxes it mentions."""

    def __init__(self, account: RunAccount, plan: FoldingPlan) -> None:
        self.account = account
        self.plan = plan
        self.names: Names = names_of(account.graph)
        picture: Picture = picture_of(account, plan)
        self.boxes = {box.key: box for box in picture.boxes}
        self.keys = picture.keys
        self.sources: dict[str, list[str]] = {}
        self.numbers: dict[str, int] = {}
        self.mentioned = {link.source for link in picture.links if link.kind in ("data", "control")}
        for link in picture.links:
            if link.kind in ("data", "control"):
                self.sources.setdefault(link.target, []).append(link.source)
        for fork, join in _parted(account.graph):
            self.mentioned.add(self.keys[fork])
            self.sources.setdefault(self.keys[join], []).append(self.keys[fork])

    def grow(self, root: Tree, graph: Graph, *, ran: bool) -> None:
        """Add a graph below `root`. `spots`: by node; `forks`: the tree of each fork; `branches`: those of its branches."""
        hidden = hidden_nodes(graph, self.plan, self.account.status)
        aside = unjoined(graph)
        spots: dict[str, _Spot] = {}
        forks: dict[str, Tree] = {}
        branches: dict[tuple[str, int], Tree] = {}
        summaries: set[str] = set()
        for node in graph:
            if (summary := hidden.get(node.id)) is not None:
                if summary.key not in summaries:
                    summaries.add(summary.key)
                    forks[summary.fork].add(_line(summary.text, "dim"))
                continue
            spot = spots.get(node.context or "", _Spot(root, root))
            if node.branch is not None and node.context in forks:
                key = (node.context, node.branch)
                if key not in branches:
                    note = "not joined" if key in aside else ""
                    branches[key] = forks[node.context].add(_line(f"[{node.branch}]", "dim", note))
                spot = _Spot(branches[key], branches[key])
            if isinstance(node, RoleEnd):
                spots[node.id] = _Spot(spot.outer, spot.outer)
                continue
            here = spot.inner.add(self._node_line(node))
            spots[node.id] = _Spot(here, spot.inner) if isinstance(node, RoleBegin) else spot
            if isinstance(node, Fork):
                forks[node.id] = here
            self._grow_inside(here, node, ran=ran)

    def _grow_inside(self, here: Tree, node: Node, *, ran: bool) -> None:
        came_by = ways_taken(node, self.account.outcomes, self.account.errors) if ran else []
        for number, (label, inner) in enumerate(ways(node)):
            inside = ran and came_by[number]
            note = ("taken" if inside else "not taken") if self.account.ran else ""
            style = "bold yellow" if inside or not self.account.ran else "dim"
            self.grow(here.add(_line(label, style, note)), inner, ran=inside)

    def _node_line(self, node: Node) -> RichText:
        outcome = self.account.outcomes.get(node.id)
        status = self.account.status.get(node.id, PLANNED)
        box = self.boxes[self.keys[node.id]]
        if isinstance(node, RoleBegin):
            return _line(node.role, STYLES["role_begin"])
        if isinstance(node, Text):
            style, name, facts = "", f"“{title(node, self.names)}”", []
        else:
            style, name, facts = STYLES.get(node.kind, "bold"), title(node, self.names), [counts(outcome)]
        if not any(facts) and not isinstance(node, Text):
            facts = [", ".join(notes(node))]
        style = {"failed": "bold red", "unreached": "dim"}.get(status.state, style)
        if status.state in STRUCK_OUT:
            style = "dim strike"
        value = box.value if not isinstance(node, Text) else ""
        return _line(
            name, style, "  ".join(filter(None, (*facts, *status.facts, value, status.note, self._sources(node))))
        )

    def _sources(self, node: Node) -> str:
        """The number of a value that goes somewhere, and those of the values that come from somewhere."""
        key = self.keys[node.id]
        own = f"#{self._number(key)}" if key in self.mentioned else ""
        sources = self.sources.get(key, [])
        mentioned = ", ".join(f"#{self._number(source)}" for source in sources)
        return "  ".join(filter(None, (own, f"⇠ {mentioned}" if mentioned else "")))

    def _number(self, key: str) -> int:
        return self.numbers.setdefault(key, len(self.numbers) + 1)


def _parted(graph: Graph) -> Iterator[tuple[str, str]]:
    """(fork, join) where the join does not stand right below its fork, so that the tree does not say which it gathers."""
    for node in graph:
        before = graph[node.context] if node.context is not None and node.context in graph else None
        beside = isinstance(node, Join) and isinstance(before, Join) and before.fork == node.fork
        if isinstance(node, Join) and not beside and said_meanwhile(graph, node):
            yield node.fork, node.id
        for inner in subgraphs(node):
            yield from _parted(inner)


def _line(text: str, style: str, note: str = "") -> RichText:
    from rich.text import Text as RichText

    line = RichText(printable(text), style=style)
    return line.append(f"  {printable(note)}", style="not bold dim") if note else line
