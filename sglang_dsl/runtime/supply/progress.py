"""How a download shows where it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


class Progress(Protocol):
    """Called on the downloading thread; what it raises ends the download."""

    def notice(self, text: str) -> None:
        """Something to read: terms of a licence, or what is being waited for."""

    def update(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        """`stage` ("download", "unpack") has come so far."""


class Silent:
    """Shows nothing."""

    def notice(self, text: str) -> None:
        """See `Progress`."""

    def update(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        """See `Progress`."""


class BarProgress:
    """One bar of `rich` per stage."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._tasks = {task.description: task.id for task in bar.tasks}

    def notice(self, text: str) -> None:
        """See `Progress`."""
        self._bar.console.print(text, markup=False, highlight=False)

    def update(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        """See `Progress`."""
        if stage not in self._tasks:
            self._tasks[stage] = self._bar.add_task(stage)
        self._bar.update(self._tasks[stage], completed=done_bytes, total=total_bytes)


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Bars on the terminal's standard error, for as long as the block lasts."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:<9}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield BarProgress(bar)


@contextmanager
def loading(name: str) -> Iterator[None]:
    """ "loading NAME ..." with a moving bar on the terminal's standard error, for as long as the block lasts; nothing where
    standard error is no terminal. The bar moves on a thread of its own: nobody knows how long imports take.
    """
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        bar.add_task(f"loading {name} ...", total=None)
        yield
