"""Graphviz text. Identifiers are generated, all text stands in quoted strings.

Source: graphviz.org, "DOT Language" (quoted strings, clusters).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from xml.sax.saxutils import escape

from .folding import Plan
from .labels import missing_of, printable
from .picture import Box, Frame, Link, Picture, picture_of
from .status import STRUCK_OUT, Account

COLORS: Mapping[str, tuple[str, str]] = {  # fill, line
    "gen": ("#e4f5ea", "#12813f"),
    "select": ("#e0f5f8", "#0b7285"),
    "fork": ("#e9ebfb", "#4353c9"),
    "join": ("#e9ebfb", "#4353c9"),
    "switch": ("#fdf0d9", "#b26a00"),
    "loop": ("#fdf0d9", "#b26a00"),
    "map": ("#fdf0d9", "#b26a00"),
    "tool": ("#f4e8fb", "#8431b8"),
    "break": ("#fdeae8", "#c4271b"),
    "input": ("#e3eefc", "#1b62c4"),
    "return": ("#e3eefc", "#1b62c4"),
}
PLAIN_COLORS = ("#ffffff", "#a9b1bf")
FAILED_COLORS = ("#fdeae8", "#c4271b")
STRUCK_COLORS = ("#f4f4f5", "#a1a1aa")


def draw_dot(account: Account, fold: int | None) -> str:
    """The graph in DOT. Possible ways are dashed, taken ones bold, data edges dotted; `class` says how a node fared."""
    return "\n".join(_lines(picture_of(account, Plan(fold)), account.graph.name, missing_of(account.graph))) + "\n"


def colors_of(box: Box) -> tuple[str, str]:
    """Fill and line of a box: red where it failed, grey where it was cancelled or lost, else by its kind."""
    if box.status.state == "failed":
        return FAILED_COLORS
    return STRUCK_COLORS if box.status.state in STRUCK_OUT else COLORS.get(box.kind, PLAIN_COLORS)


def quote(text: str) -> str:
    """Text as a DOT string: nothing in it can end the string or be read as an escape."""
    escaped = printable(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _lines(picture: Picture, name: str, missing: str) -> Iterator[str]:
    yield f"digraph {quote(name)} {{"
    head = f', label={quote(missing)}, labelloc=t, fontcolor="#b3261e"' if missing else ""
    yield f'  graph [rankdir=TB, fontname="Helvetica", compound=true{head}];'
    yield '  node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=11];'
    yield '  edge [color="#8a93a3", fontname="Helvetica", fontsize=10];'
    yield from _frame_lines(picture, "", "  ")
    yield from (f"  {_link_line(link)}" for link in picture.links)
    yield "}"


def _frame_lines(picture: Picture, parent: str, indent: str) -> Iterator[str]:
    boxes: dict[str, list[Box]] = {}
    frames: dict[str, list[Frame]] = {}
    for box in picture.boxes:
        boxes.setdefault(box.frame, []).append(box)
    for frame in picture.frames:
        frames.setdefault(frame.parent, []).append(frame)
    yield from _nested(boxes, frames, parent, indent)


def _nested(boxes: dict[str, list[Box]], frames: dict[str, list[Frame]], key: str, indent: str) -> Iterator[str]:
    for box in boxes.get(key, ()):
        yield indent + _box_line(box)
    for frame in frames.get(key, ()):
        yield f'{indent}subgraph cluster_{frame.key} {{ style=dashed; color="#a9b1bf";'
        yield from _nested(boxes, frames, frame.key, indent + "  ")
        yield f"{indent}}}"


def _box_line(box: Box) -> str:
    fill, line = colors_of(box)
    attributes = [f"label={_label(box)}", f'fillcolor="{fill}"', f'color="{line}"']
    state = box.status.state
    if state != "planned":
        attributes.append(f'class="{state}"')
    if state == "unreached":
        attributes += ['style="rounded,filled,dashed"', 'fontcolor="#8a93a3"']
    if state in STRUCK_OUT:
        attributes.append('fontcolor="#71717a"')
    return f"{box.key} [{', '.join(attributes)}];"


def _label(box: Box) -> str:
    """The rows of a box; the first of them struck out where a run did not take it (only HTML-like labels can)."""
    if box.status.state not in STRUCK_OUT:
        return '"' + "\\n".join(quote(row)[1:-1] for row in box.rows) + '"'
    first, *rest = (escape(printable(row), {'"': "&quot;"}) for row in box.rows)
    return f"<<s>{first or ' '}</s>{''.join(f'<br/>{row}' for row in rest)}>"


def _link_line(link: Link) -> str:
    style = {
        "context": "solid",
        "join": "solid",
        "way": "solid" if link.certain else "dashed",
        "data": "dotted",
        "control": "dotted",
    }
    attributes = [f"style={'bold' if link.taken else style[link.kind]}"]
    if link.label:
        attributes.append(f"label={quote(link.label)}")
    if link.kind in ("data", "control"):
        attributes.append("constraint=false, arrowhead=open")
    return f"{link.source} -> {link.target} [{', '.join(attributes)}];"
