"""The with-forms: a turn, and text that gets a name."""

from __future__ import annotations

from types import TracebackType

from ..errors import DslError
from .drafting import Cursor
from .expressions import TurnBegin, TurnEnd
from .sites import Site
from .transcript import stretch


class OpenTurn:
    """The with-form of a turn. The turn is closed also where the block raises, so that the program can go on."""

    __slots__ = ("_cursor", "_role", "_site")

    def __init__(self, cursor: Cursor, role: str, site: Site) -> None:
        self._cursor = cursor
        self._role = role
        self._site = site

    def __enter__(self) -> None:
        self._cursor.say(TurnBegin(self._role), self._site)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = Site(f"{self._site.label}.end", self._site.origin)
        if error is None:
            self._cursor.say(TurnEnd(self._role), end)
            return
        try:
            self._cursor.say(TurnEnd(self._role), end)
        except DslError:
            return  # the state has failed already; the block's own error is the one to see


class NamedSpan:
    """The with-form that names the text appended inside."""

    __slots__ = ("_cursor", "_name", "_start")

    def __init__(self, cursor: Cursor, name: str) -> None:
        self._cursor = cursor
        self._name = name
        self._start: str | None = None

    def __enter__(self) -> None:
        self._start = self._cursor.line.tip

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._cursor.rebind(self._name, stretch(self._cursor.path(after=self._start), self._name))
