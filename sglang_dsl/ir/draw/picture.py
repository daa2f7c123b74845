"""A graph as boxes, frames and links: what all flat formats (Mermaid, DOT, SVG) draw.

Sub-graphs become frames, wide forks are folded to their first branches and a count, keys are generated, so no text of
the user is ever an identifier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..execution import Outcome
from ..graph import Graph, main_line
from ..nodes import Break, Fork, Gen, Join, Map, Node, RoleBegin, RoleEnd, Select, Text, Tool, data_of
from .labels import Names, counts, names_of, notes, title
from .ways import ways, ways_taken

LinkKind = Literal["context", "join", "data", "control", "way"]
SHOWN_BRANCHES = 2  # of a folded fork


@dataclass(frozen=True, slots=True)
class Box:
    """One drawn node. key: generated, `[a-z][0-9]+`. taken: a run came through here (None: there was no run)."""

    key: str
    kind: str
    title: str
    notes: tuple[str, ...] = ()
    counts: str = ""
    frame: str = ""
    taken: bool | None = None


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
    """Boxes, frames and links, each in drawing order."""

    boxes: list[Box] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)


def picture_of(graph: Graph, outcomes: Mapping[str, Outcome], fold: int | None) -> Picture:
    """The picture of a graph."""
    return _Painter(outcomes, fold, names_of(graph)).paint(graph, taken=True if outcomes else None)


class _Painter:
    """Owner: one `picture_of`. `keys`: the box a node id is drawn as (several ids share the box of a folded fork)."""

    def __init__(self, outcomes: Mapping[str, Outcome], fold: int | None, names: Names) -> None:
        self.names = names
        self.outcomes = outcomes
        self.fold = fold
        self.picture = Picture()
        self.keys: dict[str, str] = {}
        self.ends: dict[str, list[str]] = {}  # of a node with sub-graphs: the last node on each way through them
        self.linked: set[tuple[str, str, str]] = set()

    def paint(self, graph: Graph, frame: str = "", taken: bool | None = None) -> Picture:
        """Add a graph. `taken`: whether a run came here."""
        folded = folded_branches(graph, self.fold)
        openings = _merged_openings(graph)
        merged = set(openings.values())
        for node in graph:
            if node.id in folded:
                self._fold(node, folded[node.id], frame)
            elif isinstance(node, RoleEnd) and node.context in self.keys and node.branch is None:
                self.keys[node.id] = self.keys[node.context]
            elif node.id not in merged:
                self._box(node, frame, taken, openings.get(node.id), graph)
                self._links(node, graph, frame)
                self._paint_inside(node, frame, taken)
        return self.picture

    def _paint_inside(self, node: Node, frame: str, taken: bool | None) -> None:
        came_by = ways_taken(node, self.outcomes) if taken is not None else []
        for number, (label, inner) in enumerate(ways(node)):
            key = f"f{len(self.picture.frames)}"
            self.picture.frames.append(Frame(key, frame))
            inside = bool(taken and came_by[number]) if taken is not None else None
            first = f"n{len(self.picture.boxes)}"
            self.paint(inner, key, inside)
            tip = next((n.id for n in reversed(list(main_line(inner)))), None)
            if tip is None:
                tip = f"{node.id}\0nothing {number}"
                self.keys[tip] = self._new_box("empty", "nothing", key, inside)
            self.picture.links.append(Link(self.keys[node.id], first, "way", label, isinstance(node, Map), inside))
            self.ends.setdefault(node.id, []).extend(self.ends.get(tip, [tip]))
        if isinstance(node, Break):
            key = self._new_box("any", "any", frame, taken=None)
            self.picture.links.append(Link(self.keys[node.id], key, "way", "any", certain=False))

    def _box(self, node: Node, frame: str, taken: bool | None, opening: str | None, graph: Graph) -> None:
        """Draw a node, together with the RoleBegin `opening` that stands right before it."""
        outcome = self.outcomes.get(node.id)
        if taken and isinstance(node, Gen | Select | Tool):
            taken = outcome is not None
        turn = graph[opening] if opening is not None else None
        name = f"{turn.role}: {title(node, self.names)}" if isinstance(turn, RoleBegin) else title(node, self.names)
        key = self._new_box(node.kind, name, frame, taken, tuple(notes(node)), counts(outcome))
        self.keys[node.id] = key
        if turn is not None:
            self.keys[turn.id] = key
            self._links(turn, graph, frame)

    def _new_box(
        self, kind: str, text: str, frame: str, taken: bool | None, facts: tuple[str, ...] = (), tokens: str = ""
    ) -> str:
        key = f"n{len(self.picture.boxes)}"
        self.picture.boxes.append(Box(key, kind, text, facts, tokens, frame, taken))
        return key

    def _fold(self, node: Node, fork: Fork, frame: str) -> None:
        """Draw a node of a folded branch as part of its fork's summary box."""
        summary = f"{fork.id}\0folded"
        if summary not in self.keys:
            self.keys[summary] = self._new_box("folded", summary_of(fork), frame, taken=None)
            self._link(fork.id, summary, "context")
        self.keys[node.id] = self.keys[summary]

    def _links(self, node: Node, graph: Graph, frame: str) -> None:
        if isinstance(node, Join):  # drawn below the branches it gathers, not beside their fork
            for tip in node.tips:
                for source in self.ends.get(tip, (tip,)):
                    self._link(source, node.id, "join")
            return
        if node.context is not None:
            label = "" if node.branch is None else str(node.branch)
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


def summary_of(fork: Fork) -> str:
    """What stands for the branches a folded fork does not show."""
    return f"… {fork.size - SHOWN_BRANCHES} more branches"


def folded_branches(graph: Graph, fold: int | None) -> dict[str, Fork]:
    """Nodes that a folded fork hides, with that fork (the outermost one)."""
    hidden: dict[str, Fork] = {}
    if fold is None:
        return hidden
    for node in graph:
        parent = graph[node.context] if node.context is not None and node.context in graph else None
        if parent is None:
            continue
        if parent.id in hidden:
            hidden[node.id] = hidden[parent.id]
        elif isinstance(parent, Fork) and parent.size > fold and (node.branch or 0) >= SHOWN_BRANCHES:
            hidden[node.id] = parent
    return hidden
