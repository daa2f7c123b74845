"""An SVG, laid out in layers by fast-sugiyama. Text is XML-escaped; the file holds no script, link or font to load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from .labels import missing_of, printable, shorten
from .markup import colors_of
from .picture import Box, FoldingPlan, Link, Picture, picture_of
from .status import Account

BOX_W = 236
TITLE_H, ROW_H, PADDING = 18, 15, 9
GAP_X, GAP_Y = 26, 40
MARGIN = 24
TITLE_CHARACTERS = 34
ROW_CHARACTERS = 42
STYLE = """
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


def draw_svg(account: Account, fold: int | None) -> str:
    """The graph as an SVG document: what each node is, and after a run what it gave and how it fared."""
    picture = picture_of(account, FoldingPlan(fold))
    places = lay_out(picture)
    width = max((p.x for p in places.values()), default=0) + BOX_W + MARGIN
    height = max((p.y + p.h for p in places.values()), default=0) + MARGIN
    return "\n".join(_lines(picture, places, account.graph.name, missing_of(account.graph), width, height)) + "\n"


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


def _lines(
    picture: Picture, places: Mapping[str, BoxPosition], name: str, missing: str, width: float, height: float
) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img">'
    )
    yield f"<title>{_text(name or 'program')}</title><style>{STYLE}</style>"
    yield f'<rect class="page" width="{width:.0f}" height="{height:.0f}" fill="#f6f7f9"/>'
    if missing:
        yield f'<text x="8" y="12" font-size="10" fill="#b3261e">{_text(missing)}</text>'
    for link in picture.links:
        yield _link(link, places[link.source], places[link.target])
    for box in picture.boxes:
        yield from _box(box, places[box.key])
    yield "</svg>"


def _text(text: str) -> str:
    return escape(printable(text))


def _link(link: Link, source: BoxPosition, target: BoxPosition) -> str:
    path, middle = _aside(source, target) if link.kind in ("data", "control") else _down(source, target)
    names = [
        *(["data"] if link.kind in ("data", "control") else []),
        *(["possible"] if not link.certain and not link.taken else []),
        *(["taken"] if link.taken else ["untaken"] if link.taken is False else []),
    ]
    classes = f' class="{" ".join(names)}"' if names else ""
    label = ""
    if link.label:
        label = f'<text class="n l" x="{middle.x + 5:.1f}" y="{middle.y:.1f}">{_text(link.label)}</text>'
    ends = f' data-from="{link.source}" data-to="{link.target}" data-kind="{link.kind}"'
    return f'<path d="{path}"{classes}{ends}/>{label}'


class LabelPosition(NamedTuple):
    """Where a label stands."""

    x: float
    y: float


def _down(source: BoxPosition, target: BoxPosition) -> tuple[str, LabelPosition]:
    """From below one box to above another, and the middle of the way."""
    x1, y1, x2, y2 = source.x + BOX_W / 2, source.y + source.h, target.x + BOX_W / 2, target.y
    bend = max((y2 - y1) / 2, 24)
    path = f"M{x1:.1f} {y1:.1f}C{x1:.1f} {y1 + bend:.1f} {x2:.1f} {y2 - bend:.1f} {x2:.1f} {y2:.1f}"
    return path, LabelPosition((x1 + x2) / 2, (y1 + y2) / 2)


def _aside(source: BoxPosition, target: BoxPosition) -> tuple[str, LabelPosition]:
    """From the right edge of one box to the right edge of another, bent around what lies between."""
    x1, y1, x2, y2 = source.x + BOX_W, source.y + source.h / 2, target.x + BOX_W, target.y + target.h / 2
    right = max(x1, x2) + min(24 + abs(y2 - y1) / 8, 90)
    path = f"M{x1:.1f} {y1:.1f}C{right:.1f} {y1:.1f} {right:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    return path, LabelPosition(right, (y1 + y2) / 2)


def _box(box: Box, place: BoxPosition) -> Iterator[str]:
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
    yield f'<text class="t" x="{middle:.1f}" y="{y:.1f}" text-anchor="middle">{_text(shorten(box.title, TITLE_CHARACTERS))}</text>'
    for row in box.rows[1:]:
        y += ROW_H
        style = "v" if row == box.value else "n"
        shown = _text(shorten(row, ROW_CHARACTERS))
        yield f'<text class="{style}" x="{middle:.1f}" y="{y:.1f}" text-anchor="middle">{shown}</text>'
    yield "</g>"
