"""One run of a body along one path, as the rest of this folder sees it; `path.Path` is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol, Self

from ...errors import Origin
from ...ir.nodes import Node, Reference
from ..recorder import Recorder
from .decisions import Chooser, Decision, Group
from .shapes import Shape


class Follower(Protocol):
    """What is followed over all runs of a body; `follower.Trace` is one."""

    name: str
    path: Any  # the walk under way, or None: a Walk, which a Protocol cannot say of what names it back

    def is_clean(self, option: object) -> bool:
        """Whether no string in it holds a tag or a piece of one."""

    def readable(self, text: str) -> str:
        """A message with names in place of tags."""

    def member(self, reference: Reference, shape: Shape) -> Any:
        """The abstract value that stands for a part of another."""


class Walk(Recorder, Protocol):
    """Owner: the run of the body. Decisions are replayed from a script, then made by a chooser."""

    nodes: list[Node]
    decisions: list[Decision]
    questioned: bool

    @property
    def trace(self) -> Follower:
        """What it belongs to."""

    def function(self, key: str) -> Callable[..., Any] | None:
        """A registered callable."""

    def decide(self, on: Reference, groups: Sequence[Group]) -> int:
        """Which of the groups the value of `on` belongs to on this path."""

    def left(self, on: Reference) -> Group:
        """What the value of `on` can still be."""

    def inside(self, script: Sequence[Decision], choose: Chooser, before: Sequence[Node]) -> Self:
        """A walk of its own for a body inside this one."""

    def check_replay(self) -> None:
        """Stop if this run said something else than the one whose decisions it repeats."""

    def guess(self, reason: str, on: Reference, answers: Sequence[Any], question: object) -> Any:
        """One of the answers, in a run that goes on beyond its Breaks; else it ends here."""

    def stop(self, reason: str, on: Reference | None = None, origin: Origin | None = None) -> NoReturn:
        """End with a Break."""
