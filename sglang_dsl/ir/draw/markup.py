"""Mermaid flowcharts: identifiers are generated, all text stands in quoted labels with entity codes.

Mermaid refuses a text that is longer, or has more edges, than its defaults allow, and a page that shows one usually cannot
raise them (GitHub cannot). So a larger graph is folded until it is below both limits.

Source: mermaid.js.org, syntax of flowcharts ("Special characters that break syntax", "Entity codes to escape characters")
and configuration schema (`maxEdges`, `maxTextSize`).

Graphviz text. Identifiers are generated, all text stands in quoted strings.

Source: graphviz.org, "DOT Language" (quoted strings, clusters).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from xml.sax.saxutils import escape

from .labels import missing_of, printable
from .picture import Box, FoldingPlan, Frame, Link, Picture, picture_of
from .status import STRUCK_OUT, Account

MAX_EDGES = 500
MAX_CHARACTERS = 50_000
SMALL_FORK = 3
ENDS = (240, 120, 60, 30, 12, 6)  # nodes at each end of a line, in the order in which they are tried

SAFE_PUNCTUATION = " .,:-_/!?'=+*@~^"
SHAPES: Mapping[str, tuple[str, str]] = {
    "input": ("[/", "/]"),
    "gen": ("([", "])"),
    "select": ("{{", "}}"),
    "fork": ("[[", "]]"),
    "join": ("[[", "]]"),
    "switch": ("{", "}"),
    "loop": ("{", "}"),
    "map": ("{", "}"),
    "tool": ("[(", ")]"),
    "break": (">", "]"),
}
ARROWS: Mapping[str, str] = {"context": "-->", "join": "-->", "data": "-.->", "control": "-.->", "way": "-.->"}
STYLES: Mapping[str, str] = {
    "gen": "fill:#e6f4ea,stroke:#1a7f37,color:#0b3d1a",
    "select": "fill:#e6f4ea,stroke:#1a7f37,color:#0b3d1a",
    "fork": "fill:#e8eefc,stroke:#3b5bdb,color:#172554",
    "join": "fill:#e8eefc,stroke:#3b5bdb,color:#172554",
    "switch": "fill:#fff4e0,stroke:#b7791f,color:#4a2f05",
    "loop": "fill:#fff4e0,stroke:#b7791f,color:#4a2f05",
    "map": "fill:#fff4e0,stroke:#b7791f,color:#4a2f05",
    "tool": "fill:#f3e8ff,stroke:#7e22ce,color:#3b0764",
    "break": "fill:#fde8e8,stroke:#c81e1e,color:#5f1212",
    "folded": "fill:#f4f4f5,stroke:#a1a1aa,color:#3f3f46,stroke-dasharray:4 3",
}


FAILED = "fill:#fde8e8,stroke:#c81e1e,stroke-width:2px,color:#7f1d1d"
STRUCK = "fill:#f4f4f5,stroke:#a1a1aa,color:#71717a,text-decoration:line-through"


def draw_mermaid(account: Account, fold: int | None) -> str:
    """The graph as a Mermaid flowchart, top down. Possible ways are dotted; taken ones are thick.

    A text over Mermaid's limits, where `fold` is None or nothing more can be folded, begins with a comment that says so,
    and a warning says it, too.
    """
    picture = Picture()
    text = ""
    for plan in _plans(fold):
        picture = picture_of(account, plan)
        text = "\n".join(_lines(picture)) + "\n"
        if len(picture.links) <= MAX_EDGES and len(text) <= MAX_CHARACTERS:
            return text
    note = (
        f"{len(picture.links)} edges and {len(text)} characters: Mermaid's limits are {MAX_EDGES} and {MAX_CHARACTERS}. "
        "Raise maxEdges and maxTextSize where the page calls mermaid.initialize, or draw it as html or svg"
        + (", or leave fold at its default" if fold is None else "")
    )
    warnings.warn(note, stacklevel=4)
    return f"%% {note}\n{text}"


def _plans(fold: int | None) -> Iterator[FoldingPlan]:
    """What to leave out, ever more of it."""
    yield FoldingPlan(fold)
    if fold is None:
        return
    small = min(fold, SMALL_FORK)
    yield FoldingPlan(small)
    yield FoldingPlan(small, scopes=True)
    for ends in ENDS:
        yield FoldingPlan(small, scopes=True, ends=ends)


def escape_mermaid(text: str) -> str:
    """Text for a quoted label: everything Mermaid or HTML could read as syntax becomes an entity code."""
    shown = "".join(c if c.isalnum() or c in SAFE_PUNCTUATION else _entity(c) for c in " ".join(text.split()))
    return shown or " "


def _entity(character: str) -> str:
    return f"#{ord(character)};" if character.isprintable() else " "


def _lines(picture: Picture) -> Iterator[str]:
    yield "flowchart TD"
    boxes, frames = _by_frame(picture)
    yield from _frame_lines(boxes, frames, "", "  ")
    yield from (f"  {_link_line(link)}" for link in picture.links)
    used = sorted({box.kind for box in picture.boxes} & STYLES.keys())
    yield from (f"  classDef {kind}Node {STYLES[kind]}" for kind in used)
    yield from (f"  style {frame.key} fill:none,stroke:#a9b1bf,stroke-dasharray:4 3" for frame in picture.frames)
    states = {box.status.state for box in picture.boxes}
    if "unreached" in states:
        yield "  classDef unreached opacity:0.45"
    if "failed" in states:
        yield f"  classDef failed {FAILED}"
    yield from (f"  classDef {state} {STRUCK}" for state in sorted(states & STRUCK_OUT))
    yield from _class_lines(picture)


def _by_frame(picture: Picture) -> tuple[dict[str, list[Box]], dict[str, list[Frame]]]:
    boxes: dict[str, list[Box]] = {}
    frames: dict[str, list[Frame]] = {}
    for box in picture.boxes:
        boxes.setdefault(box.frame, []).append(box)
    for inner in picture.frames:
        frames.setdefault(inner.parent, []).append(inner)
    return boxes, frames


def _frame_lines(boxes: dict[str, list[Box]], frames: dict[str, list[Frame]], key: str, indent: str) -> Iterator[str]:
    """The boxes of a frame, then the frames inside it."""
    for box in boxes.get(key, ()):
        yield indent + _box_line(box)
    for inner in frames.get(key, ()):
        yield f'{indent}subgraph {inner.key}[" "]'
        yield from _frame_lines(boxes, frames, inner.key, indent + "  ")
        yield f"{indent}end"


def _box_line(box: Box) -> str:
    opening, closing = SHAPES.get(box.kind, ("[", "]"))
    return f'{box.key}{opening}"{"<br/>".join(map(escape_mermaid, box.rows))}"{closing}'


def _link_line(link: Link) -> str:
    arrow = "==>" if link.taken else ARROWS[link.kind]
    label = f'|"{escape_mermaid(link.label)}"|' if link.label else ""
    return f"{link.source} {arrow}{label} {link.target}"


def _class_lines(picture: Picture) -> Iterator[str]:
    members: dict[str, list[str]] = {}
    for box in picture.boxes:
        if box.kind in STYLES:
            members.setdefault(f"{box.kind}Node", []).append(box.key)
        if box.status.state not in ("planned", "done"):
            members.setdefault(box.status.state, []).append(box.key)
    for name, keys in members.items():
        yield f"  class {','.join(keys)} {name}"


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
    return (
        "\n".join(_dot_lines(picture_of(account, FoldingPlan(fold)), account.graph.name, missing_of(account.graph)))
        + "\n"
    )


def colors_of(box: Box) -> tuple[str, str]:
    """Fill and line of a box: red where it failed, grey where it was cancelled or lost, else by its kind."""
    if box.status.state == "failed":
        return FAILED_COLORS
    return STRUCK_COLORS if box.status.state in STRUCK_OUT else COLORS.get(box.kind, PLAIN_COLORS)


def quote(text: str) -> str:
    """Text as a DOT string: nothing in it can end the string or be read as an escape."""
    escaped = printable(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _dot_lines(picture: Picture, name: str, missing: str) -> Iterator[str]:
    yield f"digraph {quote(name)} {{"
    head = f', label={quote(missing)}, labelloc=t, fontcolor="#b3261e"' if missing else ""
    yield f'  graph [rankdir=TB, fontname="Helvetica", compound=true{head}];'
    yield '  node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=11];'
    yield '  edge [color="#8a93a3", fontname="Helvetica", fontsize=10];'
    yield from _dot_frame_lines(picture, "", "  ")
    yield from (f"  {_dot_link_line(link)}" for link in picture.links)
    yield "}"


def _dot_frame_lines(picture: Picture, parent: str, indent: str) -> Iterator[str]:
    boxes: dict[str, list[Box]] = {}
    frames: dict[str, list[Frame]] = {}
    for box in picture.boxes:
        boxes.setdefault(box.frame, []).append(box)
    for frame in picture.frames:
        frames.setdefault(frame.parent, []).append(frame)
    yield from _nested(boxes, frames, parent, indent)


def _nested(boxes: dict[str, list[Box]], frames: dict[str, list[Frame]], key: str, indent: str) -> Iterator[str]:
    for box in boxes.get(key, ()):
        yield indent + _dot_box_line(box)
    for frame in frames.get(key, ()):
        yield f'{indent}subgraph cluster_{frame.key} {{ style=dashed; color="#a9b1bf";'
        yield from _nested(boxes, frames, frame.key, indent + "  ")
        yield f"{indent}}}"


def _dot_box_line(box: Box) -> str:
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


def _dot_link_line(link: Link) -> str:
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
