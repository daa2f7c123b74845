"""Decisions: where a body asked something of a value that has few possibilities."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from ...errors import Origin
from ...ir.nodes import Json, Reference

Chooser: TypeAlias = "Callable[[Decision], int]"
Group: TypeAlias = tuple[Json, ...] | None  # values with one answer; None: all that no other group names

OCCURRENCE = re.compile(r"#\d+")


def _without_repeats(node_id: str) -> str:
    """The id as it would be had no program of its scope called itself, directly or through others."""
    *programs, label = node_id.split("/")
    kept: list[str] = []
    for program in programs:
        if program in kept:
            del kept[kept.index(program) + 1 :]
        else:
            kept.append(program)
    if len(kept) < len(programs):
        label = label.partition("[")[0]  # without the branches: each depth has its own
    return "/".join([*kept, label])


class Stop(BaseException):
    """Ends a run of the body at its Break. No `Exception`, so that the body's own handlers let it through."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One answer that a run of the body went on with.

    on: the value asked of, as JSON. groups: its possibilities by answer. taken: the index of the group followed. at: nodes that
    the body had appended before. narrowed: earlier answers have ruled out some values.
    """

    on: Reference
    groups: tuple[Group, ...]
    taken: int
    at: int
    origin: Origin
    narrowed: bool = False

    @property
    def values(self) -> Group:
        """The values followed."""
        return self.groups[self.taken]

    @property
    def place(self) -> tuple[str, int, int, str]:
        """The question without the round of a loop, or of a recursion, that it was asked in."""
        asked = _without_repeats(OCCURRENCE.sub("", self.on.node_id))
        return (self.origin.file, self.origin.line, self.origin.column, asked)

    @property
    def recursive(self) -> bool:
        """Whether it was asked in a program that runs inside itself."""
        return _without_repeats(self.on.node_id) != self.on.node_id

    def instead(self, taken: int) -> Decision:
        """The same question with another answer."""
        return replace(self, taken=taken)

    def same_question(self, other: Decision) -> bool:
        """Whether `other` asks the same at the same point."""
        return (self.on, self.groups, self.at) == (other.on, other.groups, other.at)


def way_out(reason: str, language: str) -> str:
    """What to write instead of what a trace stopped at, in the language of the program."""
    if "a trace asks no model" in reason:
        return (
            "append to this state what the other program says"
            if language == "sglang"
            else "call it on this state: other(s, ...)"
        )
    if language == "sglang":
        return (
            "ask a select, or a gen with choices= or dtype=bool; @sglang_dsl.program has tools and s.map for the rest"
        )
    if reason.startswith("iteration of") and "an item of a map" not in reason:
        return "s.map(items, body) for each of a list; or put the question into a tool"
    return "ask a select, a bool or a Literal; or put the question into a tool (s.call)"
