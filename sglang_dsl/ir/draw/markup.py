"""Mermaid flowcharts, Graphviz text and SVG: identifiers are generated, and all text is quoted or escaped.

Mermaid refuses a text that is longer, or has more edges, than its defaults allow, and a page that shows one usually cannot
raise them (GitHub cannot). So a larger graph is folded until it is below both limits. The SVG is laid out in layers by
fast-sugiyama; it holds no script, link or font to load.

Source: mermaid.js.org, syntax of flowcharts ("Special characters that break syntax", "Entity codes to escape characters")
and configuration schema (`maxEdges`, `maxTextSize`); graphviz.org, "DOT Language" (quoted strings, clusters).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from .labels import missing_of, printable, shorten
from .picture import Box, FoldingPlan, Frame, Link, Picture, picture_of
from .status import STRUCK_OUT, RunAccount

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


def draw_mermaid(account: RunAccount, fold: int | None) -> str:
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

# --- Graphviz --------------------------------------------------------------------------------------------------------

PLAIN_COLORS = ("#ffffff", "#a9b1bf")
FAILED_COLORS = ("#fdeae8", "#c4271b")
STRUCK_COLORS = ("#f4f4f5", "#a1a1aa")


def draw_dot(account: RunAccount, fold: int | None) -> str:
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
    yield from _dot_frame_lines(*_by_frame(picture), "", "  ")
    yield from (f"  {_dot_link_line(link)}" for link in picture.links)
    yield "}"


def _dot_frame_lines(
    boxes: dict[str, list[Box]], frames: dict[str, list[Frame]], key: str, indent: str
) -> Iterator[str]:
    for box in boxes.get(key, ()):
        yield indent + _dot_box_line(box)
    for frame in frames.get(key, ()):
        yield f'{indent}subgraph cluster_{frame.key} {{ style=dashed; color="#a9b1bf";'
        yield from _dot_frame_lines(boxes, frames, frame.key, indent + "  ")
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


# --- SVG -------------------------------------------------------------------------------------------------------------

BOX_W = 236
TITLE_H, ROW_H, PADDING = 18, 15, 9
GAP_X, GAP_Y = 26, 40
MARGIN = 24
TITLE_CHARACTERS = 34
ROW_CHARACTERS = 42
SVG_STYLE = """
text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:#1c2330}
.n{font-size:10.5px;fill:#667085}
path{fill:none;stroke:#a9b1bf;stroke-width:1.4}
.data{stroke:#1b62c4;stroke-dasharray:2 4}
.possible{stroke-dasharray:6 4}
.taken{stroke:#b26a00;stroke-width:2.6}
.untaken,.unreached{opacity:.45}
.failed text{fill:#8f1a10}
.cancelled .t,.lost .t{text-decoration:line-through}
.cancelled text,.lost text{fill:#71717a}
.v{font-size:10.5px;fill:#12813f}
@media(prefers-color-scheme:dark){.page{fill:#12151b}.n,.l{fill:#97a1b3}}
"""


class BoxPosition(NamedTuple):
    """The top left corner of a box, and its height."""

    x: float
    y: float
    h: float


def draw_svg(account: RunAccount, fold: int | None) -> str:
    """The graph as an SVG document: what each node is, and after a run what it gave and how it fared."""
    picture = picture_of(account, FoldingPlan(fold))
    places = lay_out(picture)
    width = max((p.x for p in places.values()), default=0) + BOX_W + MARGIN
    height = max((p.y + p.h for p in places.values()), default=0) + MARGIN
    return "\n".join(_svg_lines(picture, places, account.graph.name, missing_of(account.graph), width, height)) + "\n"


def height_of(box: Box) -> float:
    """A title, and a line for each row below it."""
    return max(2 * PADDING + TITLE_H + ROW_H * (len(box.rows) - 1) - 4, 38)


def lay_out(picture: Picture) -> dict[str, BoxPosition]:
    """Where each box stands: layers of the graph from top to bottom, parts that are not connected side by side."""
    from fast_sugiyama import from_edges

    number = {box.key: i for i, box in enumerate(picture.boxes)}
    edges = [(number[a.source], number[a.target]) for a in picture.links if a.kind in ("context", "join", "way")]
    linked = {end for edge in edges for end in edge}
    places: dict[str, BoxPosition] = {}
    left = float(MARGIN)
    for spots, _, part_h, _ in from_edges(edges, vertex_spacing=1, minimum_length=1) if edges else ():
        part = [
            (picture.boxes[int(i)], x, part_h - y) for i, (x, y) in spots if int(i) < len(picture.boxes)
        ]  # rest: bends
        last = max(x for _, x, _ in part)  # its order is from right to left
        tops = _tops(part)
        for box, x, layer in part:
            places[box.key] = BoxPosition(left + (last - x) * (BOX_W + GAP_X), tops[layer], height_of(box))
        left = max(places[box.key].x for box, _, _ in part) + BOX_W + 2 * GAP_X
    for box in picture.boxes:
        if number[box.key] not in linked:
            places[box.key] = BoxPosition(left, MARGIN, height_of(box))
            left += BOX_W + GAP_X
    return places


def _tops(part: list[tuple[Box, float, float]]) -> dict[float, float]:
    """Where each layer begins: below the highest box of the layer before it."""
    heights: dict[float, float] = {}
    for box, _, layer in part:
        heights[layer] = max(heights.get(layer, 0), height_of(box))
    tops: dict[float, float] = {}
    top = float(MARGIN)
    for layer in sorted(heights):
        tops[layer] = top
        top += heights[layer] + GAP_Y
    return tops


def _svg_lines(
    picture: Picture, places: Mapping[str, BoxPosition], name: str, missing: str, width: float, height: float
) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img">'
    )
    yield f"<title>{_svg_text(name or 'program')}</title><style>{SVG_STYLE}</style>"
    yield f'<rect class="page" width="{width:.0f}" height="{height:.0f}" fill="#f6f7f9"/>'
    if missing:
        yield f'<text x="8" y="12" font-size="10" fill="#b3261e">{_svg_text(missing)}</text>'
    for link in picture.links:
        yield _svg_link(link, places[link.source], places[link.target])
    for box in picture.boxes:
        yield from _svg_box(box, places[box.key])
    yield "</svg>"


def _svg_text(text: str) -> str:
    return escape(printable(text))


def _svg_link(link: Link, source: BoxPosition, target: BoxPosition) -> str:
    path, middle = _line_aside(source, target) if link.kind in ("data", "control") else _line_down(source, target)
    names = [
        *(["data"] if link.kind in ("data", "control") else []),
        *(["possible"] if not link.certain and not link.taken else []),
        *(["taken"] if link.taken else ["untaken"] if link.taken is False else []),
    ]
    classes = f' class="{" ".join(names)}"' if names else ""
    label = ""
    if link.label:
        label = f'<text class="n l" x="{middle.x + 5:.1f}" y="{middle.y:.1f}">{_svg_text(link.label)}</text>'
    ends = f' data-from="{link.source}" data-to="{link.target}" data-kind="{link.kind}"'
    return f'<path d="{path}"{classes}{ends}/>{label}'


class LabelPosition(NamedTuple):
    """Where a label stands."""

    x: float
    y: float


def _line_down(source: BoxPosition, target: BoxPosition) -> tuple[str, LabelPosition]:
    """From below one box to above another, and the middle of the way."""
    x1, y1, x2, y2 = source.x + BOX_W / 2, source.y + source.h, target.x + BOX_W / 2, target.y
    bend = max((y2 - y1) / 2, 24)
    path = f"M{x1:.1f} {y1:.1f}C{x1:.1f} {y1 + bend:.1f} {x2:.1f} {y2 - bend:.1f} {x2:.1f} {y2:.1f}"
    return path, LabelPosition((x1 + x2) / 2, (y1 + y2) / 2)


def _line_aside(source: BoxPosition, target: BoxPosition) -> tuple[str, LabelPosition]:
    """From the right edge of one box to the right edge of another, bent around what lies between."""
    x1, y1, x2, y2 = source.x + BOX_W, source.y + source.h / 2, target.x + BOX_W, target.y + target.h / 2
    right = max(x1, x2) + min(24 + abs(y2 - y1) / 8, 90)
    path = f"M{x1:.1f} {y1:.1f}C{right:.1f} {y1:.1f} {right:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    return path, LabelPosition(right, (y1 + y2) / 2)


def _svg_box(box: Box, place: BoxPosition) -> Iterator[str]:
    fill, line = colors_of(box)
    middle = place.x + BOX_W / 2
    told = "\n".join(filter(None, (*box.rows, box.status.error)))
    yield f'<g class="{box.status.state}" data-key="{box.key}" data-title={quoteattr(printable(box.title))}>'
    yield f"<title>{escape(''.join(c if c.isprintable() or c == chr(10) else ' ' for c in told))}</title>"
    yield (
        f'<rect x="{place.x:.1f}" y="{place.y:.1f}" width="{BOX_W}" height="{place.h:.0f}" rx="9" '
        f'fill="{fill}" stroke="{line}"/>'
    )
    y = place.y + PADDING + 12 + max(0, (38 - 2 * PADDING - TITLE_H) / 2 if len(box.rows) == 1 else 0)
    yield f'<text class="t" x="{middle:.1f}" y="{y:.1f}" text-anchor="middle">{_svg_text(shorten(box.title, TITLE_CHARACTERS))}</text>'
    for row in box.rows[1:]:
        y += ROW_H
        style = "v" if row == box.value else "n"
        shown = _svg_text(shorten(row, ROW_CHARACTERS))
        yield f'<text class="{style}" x="{middle:.1f}" y="{y:.1f}" text-anchor="middle">{shown}</text>'
    yield "</g>"
