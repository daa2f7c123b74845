"""A graph as boxes, frames and links, which all flat formats (Mermaid, Graphviz, SVG) draw; and what is left out of large ones.

Sub-graphs become frames. Keys are generated, so no text of the user is ever an identifier. What is left out stands as a count.

A wide fork is drawn as a few branches and a count. Only branches that are alike are counted away: each group of branches
with the same nodes, in the same states, is folded by itself, so one that differs from its siblings is always drawn.
Where a picture has to be smaller still, nested programs become one box each, and long lines lose their middle.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ..analysis import calls_of
from ..graph import Graph, main_line
from ..nodes import Break, Fork, Gen, Join, Map, Node, RoleBegin, RoleEnd, Select, Text, data_of, subgraphs
from .labels import Names, counts, names_of, notes, shorten, title, ways, ways_taken
from .status import PLANNED, RunAccount, Status, unjoined

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
class FoldingPlan:
    """How much to leave out. branches: forks with more are folded (None: none are). scopes: nested programs become one box.
    ends: of a line that is longer than twice this, only so many nodes at each end are drawn.
    """

    branches: int | None = None
    scopes: bool = False
    ends: int | None = None


def hidden_nodes(graph: Graph, plan: FoldingPlan, status: Mapping[str, Status]) -> dict[str, Summary]:
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


LinkKind = Literal["context", "join", "data", "control", "way"]
VALUE_CHARACTERS = 70


@dataclass(frozen=True, slots=True)
class Box:
    """One drawn node. key: generated, `[a-z][0-9]+`. value: what a call, tool or join gave, in short."""

    key: str
    kind: str
    title: str
    notes: tuple[str, ...] = ()
    counts: str = ""
    frame: str = ""
    status: Status = PLANNED
    value: str = ""

    @property
    def rows(self) -> list[str]:
        """What stands on it, line by line."""
        asked = self.counts or " · ".join(self.notes)
        return [self.title, *filter(None, (asked, *self.status.facts, self.value, self.status.note))]


@dataclass(frozen=True, slots=True)
class Frame:
    """A sub-graph: what lies in one arm or body. parent: key of the frame around it, "" for none."""

    key: str
    parent: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """An edge. certain: known when the graph was made; a way that depends on a generated value is only possible."""

    source: str
    target: str
    kind: LinkKind
    label: str = ""
    certain: bool = True
    taken: bool | None = None


@dataclass(slots=True)
class Picture:
    """Boxes, frames and links, each in drawing order. keys: by node id the box that it is drawn as, or as part of."""

    boxes: list[Box] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)


def picture_of(account: RunAccount, plan: FoldingPlan) -> Picture:
    """The picture of a graph and of what a run did with it."""
    return _Painter(account, plan).paint(account.graph, ran=account.ran)


class _Painter:
    """Owner: one `picture_of`."""

    def __init__(self, account: RunAccount, plan: FoldingPlan) -> None:
        self.names: Names = names_of(account.graph)
        self.account = account
        self.outcomes = account.outcomes
        self.status = account.status
        self.plan = plan
        self.picture = Picture()
        self.keys = self.picture.keys
        self.ends: dict[str, list[str]] = {}  # of a node with sub-graphs: the last node on each way through them
        self.linked: set[tuple[str, str, str]] = set()

    def paint(self, graph: Graph, frame: str = "", *, ran: bool) -> Picture:
        """Add a graph. `ran`: whether a run came here."""
        hidden = hidden_nodes(graph, self.plan, self.status)
        openings = _merged_openings(graph)
        merged = set(openings.values())
        aside = unjoined(graph)
        for node in graph:
            if node.id in hidden:
                self._summarise(node, hidden[node.id], frame)
            elif isinstance(node, RoleEnd) and node.context in self.keys and node.branch is None:
                self.keys[node.id] = self.keys[node.context]
            elif node.id not in merged:
                self._box(node, frame, openings.get(node.id), graph, aside)
                self._links(node, graph, frame, aside)
                self._paint_inside(node, frame, ran=ran)
        return self.picture

    def _paint_inside(self, node: Node, frame: str, *, ran: bool) -> None:
        came_by = ways_taken(node, self.outcomes, self.account.errors) if ran else []
        for number, (label, inner) in enumerate(ways(node)):
            key = f"f{len(self.picture.frames)}"
            self.picture.frames.append(Frame(key, frame))
            inside = came_by[number] if ran else False
            first = f"n{len(self.picture.boxes)}"
            self.paint(inner, key, ran=inside)
            tip = next((n.id for n in reversed(list(main_line(inner)))), None)
            if tip is None:
                tip = f"{node.id}\0nothing {number}"
                state = Status("done" if inside else "unreached") if self.status else PLANNED
                self.keys[tip] = self._new_box(Box("", "empty", "nothing", frame=key, status=state))
            taken = inside if self.status else None
            self.picture.links.append(Link(self.keys[node.id], first, "way", label, isinstance(node, Map), taken))
            self.ends.setdefault(node.id, []).extend(self.ends.get(tip, [tip]))
        if isinstance(node, Break):
            key = self._new_box(Box("", "any", "any", frame=frame))
            self.picture.links.append(Link(self.keys[node.id], key, "way", "any", certain=False))

    def _box(self, node: Node, frame: str, opening: str | None, graph: Graph, aside: set[tuple[str, int]]) -> None:
        """Draw a node, together with the RoleBegin `opening` that stands right before it."""
        outcome = self.outcomes.get(node.id)
        turn = graph[opening] if opening is not None else None
        name = f"{turn.role}: {title(node, self.names)}" if isinstance(turn, RoleBegin) else title(node, self.names)
        value = f"→ {shorten(outcome.text, VALUE_CHARACTERS)}" if outcome is not None and outcome.text else ""
        key = self._new_box(
            Box(
                "",
                node.kind,
                name,
                tuple(notes(node)),
                counts(outcome),
                frame,
                self.status.get(node.id, PLANNED),
                "" if isinstance(node, Text | RoleBegin | RoleEnd) else value,
            )
        )
        self.keys[node.id] = key
        if turn is not None:
            self.keys[turn.id] = key
            self._links(turn, graph, frame, aside)

    def _new_box(self, box: Box) -> str:
        key = f"n{len(self.picture.boxes)}"
        self.picture.boxes.append(replace(box, key=key))
        return key

    def _summarise(self, node: Node, summary: Summary, frame: str) -> None:
        """Draw a node that is left out as part of what stands for it."""
        if summary.key not in self.keys:
            self.keys[summary.key] = self._new_box(Box("", "folded", summary.text, frame=frame))
            if node.context is not None:
                for source in self.ends.get(node.context, (node.context,)):
                    self._link(source, summary.key, "context")
        self.keys[node.id] = self.keys[summary.key]

    def _links(self, node: Node, graph: Graph, frame: str, aside: set[tuple[str, int]]) -> None:
        if isinstance(node, Join):  # drawn below the branches it gathers, not beside their fork
            for tip in node.tips:
                for source in self.ends.get(tip, (tip,)):
                    self._link(source, node.id, "join")
            if node.context is not None and (not node.tips or said_meanwhile(graph, node)):
                self._link(node.context, node.id, "context")
            return
        if node.context is not None:
            label = "" if node.branch is None else str(node.branch)
            if node.branch is not None and (node.context, node.branch) in aside:
                label += " (not joined)"
            for source in self.ends.get(node.context, (node.context,)):
                self._link(source, node.id, "context", label)
        for source in data_of(node):
            self._link(source, node.id, "data")
        if frame:
            return  # the way into the frame says what decided
        before = graph[node.context].control if node.context in graph and node.context is not None else ()
        for source in node.control:
            if source not in before:
                self._link(source, node.id, "control")

    def _link(self, source: str, target: str, kind: LinkKind, label: str = "") -> None:
        ends = (self.keys.get(source), self.keys.get(target))
        if ends[0] is None or ends[1] is None or ends[0] == ends[1]:
            return
        if (ends[0], ends[1], kind) in self.linked or (kind == "data" and (ends[0], ends[1], "context") in self.linked):
            return
        self.linked.add((ends[0], ends[1], kind))
        self.picture.links.append(Link(ends[0], ends[1], kind, label))


def said_meanwhile(graph: Graph, join: Join) -> bool:
    """Whether the state that forked said something between the fork and this join, another join of the fork included."""
    above = graph[join.fork].context if join.fork in graph else None
    at = join.context
    first = True
    while at is not None and at != above and at in graph:
        if at == join.fork:
            return not first
        at, first = graph[at].context, False
    return False


def _merged_openings(graph: Graph) -> dict[str, str]:
    """Nodes drawn in one box with the RoleBegin before them: those that alone follow it."""
    followers: dict[str, list[Node]] = {}
    for node in graph:
        if node.context is not None:
            followers.setdefault(node.context, []).append(node)
    return {
        after[0].id: node.id
        for node in graph
        if isinstance(node, RoleBegin)
        and len(after := followers.get(node.id, [])) == 1
        and isinstance(after[0], Text | Gen | Select)
    }
