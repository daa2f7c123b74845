"""Pictures of a graph: text for a terminal, Mermaid and Graphviz, an SVG, one HTML page, a timeline.

No format needs a network, a browser or a Graphviz binary to be made. `draw` returns a `Drawing`: text that a notebook shows as
a picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ...errors import SpecError

if TYPE_CHECKING:
    from ..execution import Meter, Outcome
    from ..graph import Graph

__all__ = ["FOLD", "Drawing", "Format", "draw"]

Format = Literal["terminal", "mermaid", "dot", "svg", "html", "trace"]
FOLD = 12  # a fork with more branches than this is drawn as its first ones and a count
FRAME_HEIGHT = 620  # pixels of the page in a notebook cell


class Drawing(str):
    """What `draw` returns: the text of a picture, in the format `form`. As the last value of a notebook cell it is shown."""

    form: Format

    def __new__(cls, text: str, form: Format) -> Drawing:
        """The picture `text` in the format `form`."""
        made = super().__new__(cls, text)
        made.form = form
        return made

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """What Jupyter asks for. The page stands in a frame of its own, cut off from the notebook."""
        if self.form == "svg":
            return {"image/svg+xml": str(self)}
        if self.form == "html":
            page = escape(self, quote=True)
            style = f"width:100%;height:{FRAME_HEIGHT}px;border:0"
            return {"text/html": f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'}
        return {"text/html": f"<pre style='line-height:1.25'>{escape(self)}</pre>"}

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What IPython prints: text as it reads, of a page only what it is."""
        printer.text(f"<{self.form} picture>" if self.form in ("svg", "html") else str(self).rstrip())


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
        from .status import draw_timeline

        return draw_timeline(graph, outcomes)
    if form not in get_args(Format):
        raise SpecError(f"format {form!r} is unknown", hint=f"one of {', '.join(get_args(Format))}")
    from .status import RunAccount

    account = RunAccount.of(graph, outcomes, errors)
    match form:
        case "terminal":
            from .terminal import draw_terminal

            return draw_terminal(account, fold)
        case "mermaid":
            from .markup import draw_mermaid

            return draw_mermaid(account, fold)
        case "dot":
            from .markup import draw_dot

            return draw_dot(account, fold)
        case "svg":
            from .markup import draw_svg

            return draw_svg(account, fold)
        case "html":
            from .html import draw_html

            return draw_html(account, meter, outcomes)
