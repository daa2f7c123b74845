"""A graph as boxes, frames and links: what all flat formats (Mermaid, DOT, SVG) draw.

Sub-graphs become frames, what is left out stands as a count (`folding.py`), keys are generated, so no text of the user is
ever an identifier.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from ..graph import Graph, main_line
from ..nodes import Break, Gen, Join, Map, Node, RoleBegin, RoleEnd, Select, Text, data_of
from .folding import Plan, Summary, hidden_nodes
from .labels import Names, counts, names_of, notes, shorten, title
from .status import PLANNED, Account, Status, unjoined
from .ways import ways, ways_taken

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


def picture_of(account: Account, plan: Plan) -> Picture:
    """The picture of a graph and of what a run did with it."""
    return _Painter(account, plan).paint(account.graph, ran=account.ran)


class _Painter:
    """Owner: one `picture_of`."""

    def __init__(self, account: Account, plan: Plan) -> None:
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
