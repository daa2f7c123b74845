"""Pictures of a graph: text for a terminal, Mermaid and Graphviz, an SVG, one HTML page, a timeline.

No format needs a network, a browser or a Graphviz binary to be made.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from ...errors import SpecError
from .drawing import Drawing, Format

if TYPE_CHECKING:
    from ..execution import Meter, Outcome
    from ..graph import Graph

__all__ = ["FOLD", "Drawing", "Format", "draw"]

FOLD = 12  # a fork with more branches than this is drawn as its first ones and a count


def draw(
    graph: Graph,
    format: Format = "terminal",  # noqa: A002  (the word users know)
    *,
    outcomes: Mapping[str, Outcome] | None = None,
    errors: Mapping[str, BaseException] | None = None,
    meter: Meter | None = None,
    fold: int | None = FOLD,
    path: str | Path | None = None,
) -> Drawing:
    """The picture as text, shown as a picture in a notebook; also written to `path` if one is given (UTF-8).

    outcomes, errors: what a run of this graph gave, by node id: ways taken are marked, token counts and values shown, what
    failed, was cancelled or lost is marked; the timeline needs them. meter: exact prompt text and token counts of a model,
    for the HTML page. fold: forks with more branches are folded, except for branches that differ from the others (the HTML
    page folds and unfolds by itself); None folds nothing. Mermaid has limits of its own: by default a larger graph is
    folded further until it is below them.

    Raises:
        SpecError: `format` is unknown, or `trace` was asked for without outcomes.
        OSError: `path` cannot be written.
    """
    picture = Drawing(_draw(graph, format, outcomes or {}, errors or {}, meter, fold), format)
    if path is not None:
        Path(path).write_text(picture, encoding="utf-8")
    return picture


def _draw(
    graph: Graph,
    form: Format,
    outcomes: Mapping[str, Outcome],
    errors: Mapping[str, BaseException],
    meter: Meter | None,
    fold: int | None,
) -> str:
    """Each format is loaded when it is first drawn."""
    if form == "trace":
        from .timeline import draw_timeline

        return draw_timeline(graph, outcomes)
    if form not in get_args(Format):
        raise SpecError(f"format {form!r} is unknown", hint=f"one of {', '.join(get_args(Format))}")
    from .status import Account

    account = Account.of(graph, outcomes, errors)
    match form:
        case "terminal":
            from .terminal import draw_terminal

            return draw_terminal(account, fold)
        case "mermaid":
            from .mermaid import draw_mermaid

            return draw_mermaid(account, fold)
        case "dot":
            from .dot import draw_dot

            return draw_dot(account, fold)
        case "svg":
            from .svg import draw_svg

            return draw_svg(account, fold)
        case "html":
            from .html import draw_html

            return draw_html(account, meter, outcomes)
