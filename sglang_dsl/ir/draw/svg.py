"""An SVG, laid out in layers by fast-sugiyama. Text is XML-escaped; the file holds no script, link or font to load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple
from xml.sax.saxutils import escape

from ..execution import Outcome
from ..graph import Graph
from .dot import COLORS, PLAIN_COLORS
from .labels import printable, shorten
from .picture import Box, Link, Picture, picture_of

BOX_W, BOX_H = 210, 46
GAP_X, GAP_Y = 26, 44
MARGIN = 24
TITLE_CHARACTERS = 30
STYLE = """
text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:#1c2330}
.n{font-size:10.5px;fill:#667085}
path{fill:none;stroke:#a9b1bf;stroke-width:1.4}
.data{stroke:#1b62c4;stroke-dasharray:2 4}
.possible{stroke-dasharray:6 4}
.taken{stroke:#b26a00;stroke-width:2.6}
.untaken{opacity:.4}
@media(prefers-color-scheme:dark){.page{fill:#12151b}.n,.l{fill:#97a1b3}}
"""


class Place(NamedTuple):
    """The top left corner of a box."""

    x: float
    y: float


def draw_svg(graph: Graph, outcomes: Mapping[str, Outcome], fold: int | None) -> str:
    """The graph as an SVG document."""
    picture = picture_of(graph, outcomes, fold)
    places = lay_out(picture)
    width = max((p.x for p in places.values()), default=0) + BOX_W + MARGIN
    height = max((p.y for p in places.values()), default=0) + BOX_H + MARGIN
    return "\n".join(_lines(picture, places, graph.name, width, height)) + "\n"


def lay_out(picture: Picture) -> dict[str, Place]:
    """Where each box stands: layers of the graph from top to bottom, parts that are not connected side by side."""
    from fast_sugiyama import from_edges

    number = {box.key: i for i, box in enumerate(picture.boxes)}
    edges = [(number[a.source], number[a.target]) for a in picture.links if a.kind in ("context", "join", "way")]
    linked = {end for edge in edges for end in edge}
    places: dict[str, Place] = {}
    left = float(MARGIN)
    for spots, _, part_h, _ in from_edges(edges, vertex_spacing=1, minimum_length=1) if edges else ():
        part = [(picture.boxes[int(i)], x, y) for i, (x, y) in spots if int(i) < len(picture.boxes)]  # rest: bends
        last = max(x for _, x, _ in part)  # its order is from right to left
        for box, x, y in part:
            places[box.key] = Place(left + (last - x) * (BOX_W + GAP_X), MARGIN + (part_h - y) * (BOX_H + GAP_Y))
        left = max(places[box.key].x for box, _, _ in part) + BOX_W + 2 * GAP_X
    for box in picture.boxes:
        if number[box.key] not in linked:
            places[box.key] = Place(left, MARGIN)
            left += BOX_W + GAP_X
    return places


def _lines(picture: Picture, places: Mapping[str, Place], name: str, width: float, height: float) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img">'
    )
    yield f"<title>{_text(name or 'program')}</title><style>{STYLE}</style>"
    yield f'<rect class="page" width="{width:.0f}" height="{height:.0f}" fill="#f6f7f9"/>'
    for link in picture.links:
        yield _link(link, places[link.source], places[link.target])
    for box in picture.boxes:
        yield from _box(box, places[box.key])
    yield "</svg>"


def _text(text: str) -> str:
    return escape(printable(text))


def _link(link: Link, source: Place, target: Place) -> str:
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
    return f'<path d="{path}"{classes}/>{label}'


def _down(source: Place, target: Place) -> tuple[str, Place]:
    """From below one box to above another, and the middle of the way."""
    x1, y1, x2, y2 = source.x + BOX_W / 2, source.y + BOX_H, target.x + BOX_W / 2, target.y
    bend = max((y2 - y1) / 2, 24)
    path = f"M{x1:.1f} {y1:.1f}C{x1:.1f} {y1 + bend:.1f} {x2:.1f} {y2 - bend:.1f} {x2:.1f} {y2:.1f}"
    return path, Place((x1 + x2) / 2, (y1 + y2) / 2)


def _aside(source: Place, target: Place) -> tuple[str, Place]:
    """From the right edge of one box to the right edge of another, bent around what lies between."""
    x1, y1, x2, y2 = source.x + BOX_W, source.y + BOX_H / 2, target.x + BOX_W, target.y + BOX_H / 2
    right = max(x1, x2) + min(24 + abs(y2 - y1) / 8, 90)
    return f"M{x1:.1f} {y1:.1f}C{right:.1f} {y1:.1f} {right:.1f} {y2:.1f} {x2:.1f} {y2:.1f}", Place(
        right, (y1 + y2) / 2
    )


def _box(box: Box, place: Place) -> Iterator[str]:
    fill, line = COLORS.get(box.kind, PLAIN_COLORS)
    faded = ' class="untaken"' if box.taken is False else ""
    note = box.counts or " · ".join(box.notes)
    middle = place.x + BOX_W / 2
    yield f"<g{faded}><title>{_text(' · '.join(filter(None, (box.title, *box.notes, box.counts))))}</title>"
    yield (
        f'<rect x="{place.x:.1f}" y="{place.y:.1f}" width="{BOX_W}" height="{BOX_H}" rx="9" fill="{fill}" stroke="{line}"/>'
    )
    top = place.y + (20 if note else 27)
    yield f'<text x="{middle:.1f}" y="{top:.1f}" text-anchor="middle">{_text(shorten(box.title, TITLE_CHARACTERS))}</text>'
    if note:
        note = _text(shorten(note, TITLE_CHARACTERS + 6))
        yield f'<text class="n" x="{middle:.1f}" y="{place.y + 36:.1f}" text-anchor="middle">{note}</text>'
    yield "</g>"
