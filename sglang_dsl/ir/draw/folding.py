"""What a picture leaves out where a graph is large, and what stands for it.

A wide fork is drawn as a few branches and a count. Only branches that are alike are counted away: each group of branches
with the same nodes, in the same states, is folded by itself, so one that differs from its siblings is always drawn.
Where a picture has to be smaller still, nested programs become one box each, and long lines lose their middle.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

from ..analysis import calls_of
from ..graph import Graph
from ..nodes import Break, Fork, Node, RoleEnd, subgraphs
from .status import PLANNED, Status

SHOWN_BRANCHES = 2  # of each group of like branches in a folded fork


@dataclass(frozen=True, slots=True)
class Summary:
    """What stands for nodes that are not drawn. key: one per summary. fork: of the branches it stands for, or ""."""

    key: str
    text: str
    fork: str = ""


@dataclass(frozen=True, slots=True)
class FoldedFork:
    """A fork as it is drawn when folded: the branches shown, and the groups of like ones that are not. mixed: whether the
    fork has several kinds of branches.
    """

    shown: tuple[int, ...]
    hidden: tuple[tuple[int, ...], ...]
    like: tuple[int, ...]  # per hidden group, a branch that is shown
    mixed: bool

    def text(self, group: int) -> str:
        """What stands for a hidden group."""
        like = f" like [{self.like[group]}]" if self.mixed else ""
        return f"… {len(self.hidden[group]):,} more branches{like}"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to leave out. branches: forks with more are folded (None: none are). scopes: nested programs become one box.
    ends: of a line that is longer than twice this, only so many nodes at each end are drawn.
    """

    branches: int | None = None
    scopes: bool = False
    ends: int | None = None


def hidden_nodes(graph: Graph, plan: Plan, status: Mapping[str, Status]) -> dict[str, Summary]:
    """The nodes that are not drawn, each with what stands for it. Sub-graphs are planned by themselves."""
    hidden = _hidden_by_forks(graph, plan.branches, status)
    if plan.scopes:
        _hide_scopes(graph, hidden)
    if plan.ends is not None:
        _hide_middles(graph, plan.ends, status, hidden)
    return hidden


# --- forks ------------------------------------------------------------------------------------------------------------


def folded_forks(graph: Graph, fold: int | None, status: Mapping[str, Status]) -> dict[str, FoldedFork]:
    """The forks with more than `fold` branches of which some are alike."""
    found: dict[str, FoldedFork] = {}
    for fork, groups in _like_branches(graph, fold, status).items() if fold is not None else ():
        kept = [len(group) if len(group) <= SHOWN_BRANCHES + 1 else SHOWN_BRANCHES for group in groups]
        hidden = [(group[0], tuple(group[count:])) for group, count in zip(groups, kept, strict=True) if group[count:]]
        if hidden:
            shown = sorted(branch for group, count in zip(groups, kept, strict=True) for branch in group[:count])
            like, rest = tuple(like for like, _ in hidden), tuple(rest for _, rest in hidden)
            found[fork] = FoldedFork(tuple(shown), rest, like, mixed=len(groups) > 1)
    return found


def _like_branches(graph: Graph, fold: int, status: Mapping[str, Status]) -> dict[str, list[list[int]]]:
    """Per wide fork its branches, those together that have the same nodes in the same states."""
    spelled: dict[tuple[str, int], list[Hashable]] = {}
    inside: dict[str, tuple[tuple[str, int], ...]] = {}  # the branches of wide forks around a node
    for node in graph:
        around = inside.get(node.context or "", ())
        if node.context is not None and node.branch is not None:
            parent = graph[node.context]
            if isinstance(parent, Fork) and parent.size > fold:
                around = (*around, (parent.id, node.branch))
        if around:
            inside[node.id] = around
            word = _likeness(node, status)
            for branch in around:
                deeper = None if node.context == branch[0] else node.branch
                spelled.setdefault(branch, []).append((word, deeper))
    groups: dict[str, dict[Hashable, list[int]]] = {}
    for (fork, number), words in sorted(spelled.items(), key=lambda item: item[0][1]):
        groups.setdefault(fork, {}).setdefault(tuple(words), []).append(number)
    return {fork: list(alike.values()) for fork, alike in groups.items()}


def _likeness(node: Node, status: Mapping[str, Status]) -> Hashable:
    """What a node has to have in common with its counterparts: its texts and values may differ."""
    inner = tuple(_likeness(each, status) for graph in subgraphs(node) for each in graph)
    names = tuple(str(getattr(node, field, "")) for field in ("name", "role", "tool", "mode", "size"))
    return node.kind, names, status.get(node.id, PLANNED).state, inner


def _hidden_by_forks(graph: Graph, fold: int | None, status: Mapping[str, Status]) -> dict[str, Summary]:
    summaries = {
        (fork, branch): Summary(f"{fork}\0{number}", drawn.text(number), fork)
        for fork, drawn in folded_forks(graph, fold, status).items()
        for number, group in enumerate(drawn.hidden)
        for branch in group
    }
    hidden: dict[str, Summary] = {}
    for node in graph if summaries else ():
        if node.context is not None and node.branch is not None and (node.context, node.branch) in summaries:
            hidden[node.id] = hidden.get(node.context) or summaries[node.context, node.branch]
        elif node.context in hidden:
            hidden[node.id] = hidden[node.context]
    return hidden


# --- nested programs and long lines -----------------------------------------------------------------------------------


def _lines(graph: Graph) -> Iterator[list[Node]]:
    """The graph's own way and that of each branch, each without the branches that leave it."""
    lines: dict[str, list[Node]] = {}
    line_of: dict[str, str] = {}
    for node in graph:
        if node.context is None or node.branch is not None or node.context not in line_of:
            line_of[node.id] = node.id if node.context is not None else ""
        else:
            line_of[node.id] = line_of[node.context]
        lines.setdefault(line_of[node.id], []).append(node)
    yield from lines.values()


def _hide_scopes(graph: Graph, hidden: dict[str, Summary]) -> None:
    for line in _lines(graph):
        run: list[Node] = []
        for node in [*line, None]:
            name = node.scope.split("/")[0] if node is not None else ""
            if run and name != run[0].scope.split("/")[0]:
                _hide(run, f"{run[0].scope.split('/')[0]}: {_size(run)}", hidden)
                run = []
            if node is not None and name and node.id not in hidden:
                run.append(node)
    _hide_what_hangs_on(graph, hidden)


def _hide_middles(graph: Graph, ends: int, status: Mapping[str, Status], hidden: dict[str, Summary]) -> None:
    differing = _forks_that_differ(graph, status)
    for line in _lines(graph):
        visible = [node for node in line if node.id not in hidden]
        if len(visible) <= 2 * ends + 1:
            continue
        run: list[Node] = []
        for node in [*visible[ends : len(visible) - ends], None]:
            if node is None or isinstance(node, Break) or _stands_out(node, status, differing):
                if len(run) > 2:
                    _hide(run, f"… {_size(run)}", hidden)
                run = []
            else:
                run.append(node)
    _hide_what_hangs_on(graph, hidden)


def _stands_out(node: Node, status: Mapping[str, Status], differing: set[str]) -> bool:
    return node.id in differing or status.get(node.id, PLANNED).state in ("failed", "cancelled")


def _forks_that_differ(graph: Graph, status: Mapping[str, Status]) -> set[str]:
    """Forks of which one branch is unlike the others."""
    return {fork for fork, groups in _like_branches(graph, 2, status).items() if len(groups) > 1}


def _hide(run: list[Node], text: str, hidden: dict[str, Summary]) -> None:
    summary = Summary(f"{run[0].id}\0on", text)
    hidden |= {node.id: summary for node in run}


def _hide_what_hangs_on(graph: Graph, hidden: dict[str, Summary]) -> None:
    """Branches of a fork that is not drawn are not drawn either."""
    aside: set[str] = set()
    for node in graph:
        if node.context in hidden and (node.branch is not None or node.context in aside):
            aside.add(node.id)
            hidden.setdefault(node.id, hidden[node.context])


def _size(run: list[Node]) -> str:
    nodes = sum(not isinstance(node, RoleEnd) for node in run)
    calls = sum(map(calls_of, run))
    return f"{nodes:,} more nodes" + (f", {calls:,} calls" if calls else "")
