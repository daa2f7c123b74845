"""A run in a notebook: the cell shows its text while it is written, and how it ended."""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Iterable
from contextvars import copy_context
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .result import Result

EVERY_S = 0.1  # how often the cell is written anew
SHOWN_CHARACTERS = 20_000


def show_live(pieces: Iterable[str], ended: Any, name: str, *, wait: bool) -> None:
    """Show the text of a run in the cell that displays it, until the run has ended.

    Args:
        pieces: the text as it is written. ended: gives the run's Result, its failure in its `error`.
        wait: whether the cell waits for the end.
    """
    cell = import_module("IPython.display").display(_shown(name, "", "running"), raw=True, display_id=True)
    if wait:
        _follow(cell, pieces, ended, name)
    else:
        context = copy_context()  # a kernel knows by it which cell the output belongs to
        threading.Thread(target=context.run, args=(_follow, cell, pieces, ended, name), daemon=True).start()


def _follow(cell: Any, pieces: Iterable[str], ended: Any, name: str) -> None:
    text: list[str] = []
    written_s = 0.0
    try:
        for piece in pieces:
            text.append(piece)
            if time.monotonic() - written_s > EVERY_S:
                written_s = time.monotonic()
                cell.update(_shown(name, "".join(text), "running"), raw=True)
    except Exception:  # noqa: BLE001  the run's own failure: its Result has it
        pass
    cell.update(_shown(name, "".join(text), _how(ended())), raw=True)


def _how(result: Result[Any]) -> str:
    if result.error is not None:
        return f"failed: {type(result.error).__name__}: {getattr(result.error, 'what', result.error)}"
    usage = result.usage
    return f"{usage.calls} calls, {usage.generated_tokens:,} tokens generated in {usage.wall_s:.1f} s"


def _shown(name: str, text: str, how: str) -> dict[str, str]:
    shown = text[-SHOWN_CHARACTERS:]
    return {
        "text/html": f"<div><b>{html.escape(name)}</b> <i>{html.escape(how)}</i>"
        f"<pre style='white-space:pre-wrap'>{html.escape(shown)}</pre></div>",
        "text/plain": f"{name}: {how}\n{shown}",
    }
