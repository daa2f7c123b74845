"""A picture as text that a notebook shows as a picture."""

from __future__ import annotations

import html
from typing import Any, Literal

Format = Literal["terminal", "mermaid", "dot", "svg", "html", "trace"]
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
            page = html.escape(self, quote=True)
            style = f"width:100%;height:{FRAME_HEIGHT}px;border:0"
            return {"text/html": f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'}
        return {"text/html": f"<pre style='line-height:1.25'>{html.escape(self)}</pre>"}

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What IPython prints: text as it reads, of a page only what it is."""
        printer.text(f"<{self.form} picture>" if self.form in ("svg", "html") else str(self).rstrip())
