"""What a context path reads as: its text, its messages, and how a stretch of it is mentioned elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.nodes import Constant, Node, Reference, RoleBegin, RoleEnd, Text
from ..ir.path_text import PathText
from .bindings import Span
from .drafting import Cursor

SILENT = frozenset({"fork", "return", "input", "tool"})  # node kinds that add no text


def text_of(cursor: Cursor) -> str:
    """All text of the path, turn markers included; waits for it. What was read before is not put together again."""
    line, outcome = cursor.line, cursor.recorder.outcome
    after, known, half = (None, "", b"") if cursor.recorder.tracing else line.heard
    tip = line.tip
    said = PathText(known, half)
    for node in cursor.path(after):
        if node.kind not in SILENT:
            found = outcome(node.id)
            said.add(found.text, found.torn)
    text = said.text
    if not cursor.recorder.tracing:
        line.heard = (tip, text, said.half)
    return text


def messages_of(cursor: Cursor) -> list[dict[str, str]]:
    """The turns of the path; a turn that is still open comes last."""
    line, outcome = cursor.line, cursor.recorder.outcome
    nothing: tuple[None, list[dict[str, str]], None] = (None, [], None)
    after, found, half = nothing if cursor.recorder.tracing else line.heard_turns
    tip = line.tip
    outcomes = [(node, outcome(node.id)) for node in cursor.path(after) if node.kind not in SILENT]
    found = [*found[:-1], *map(dict, found[-1:])]  # others may be reading this line, too
    turn = None if half is None else PathText(found[-1]["content"], half)  # the open one
    for node, said in outcomes:
        if isinstance(node, (RoleBegin, RoleEnd)):
            if turn is not None:
                found[-1]["content"] = turn.text
            turn = None
            if isinstance(node, RoleBegin):
                found.append({"role": node.role, "content": ""})
                turn = PathText()
        elif turn is not None:
            turn.add(said.text, said.torn)
    if turn is not None:
        found[-1]["content"] = turn.text
    if not cursor.recorder.tracing:
        line.heard_turns = (tip, found, None if turn is None else turn.half)
    return [*map(dict.copy, found)]


def stretch(nodes: Sequence[Node], name: str) -> Span:
    """The text of some nodes of a path as something to be bound."""
    parts: list[Constant | Reference] = []
    for node in nodes:
        if isinstance(node, Text):
            parts.extend(p if isinstance(p, Reference) else Constant(p.text) for p in node.pieces)
        elif node.kind not in SILENT and not isinstance(node, (RoleBegin, RoleEnd)):
            parts.append(Reference(node.id))
    return Span(parts, name)
