"""The code of a page of docs: its blocks run in order in one module, and what they print is compared with the page.

```python blocks run. A ```text block right after one is what it prints, where "..." stands for anything. Other blocks (```py
for other people's code, ```sh) are for reading.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Snippet:
    code: str
    prints: str | None
    line: int


def snippets(page: Path) -> Iterator[Snippet]:
    text = page.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        if found[1] == "python":
            yield Snippet(found[2], found[3], text[: found.start()].count("\n") + 1)


def run_page(name: str, folder: Path) -> int:
    """Run a page's snippets; returns how many. Tracebacks and error messages show the page's own lines."""
    page = DOCS / name
    module = ModuleType(f"page_{page.stem}")
    module.__dict__["folder"] = folder
    sys.modules[module.__name__] = module  # pydantic and dataclasses look their annotations up there
    count = 0
    try:
        for snippet in snippets(page):
            printed = io.StringIO()
            padded = "\n" * snippet.line + snippet.code
            with contextlib.redirect_stdout(printed):
                exec(compile(padded, str(page), "exec"), module.__dict__)
            compare(page, snippet, printed.getvalue())
            count += 1
    finally:
        del sys.modules[module.__name__]
    return count


def compare(page: Path, snippet: Snippet, printed: str) -> None:
    wanted = snippet.prints or ""
    if not doctest.OutputChecker().check_output(wanted, printed, doctest.ELLIPSIS):
        raise AssertionError(f"{page.name}:{snippet.line} prints\n{printed}\nbut the page says\n{wanted}")
