"""What a context path reads as: its text, its messages, and how a stretch of it is mentioned elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.nodes import Constant, Node, Reference, RoleBegin, RoleEnd, Text
from .bindings import Span
from .drafting import Cursor

SILENT = frozenset({"fork", "return", "input", "tool"})  # node kinds that add no text


def text_of(cursor: Cursor) -> str:
    """All text of the path, turn markers included; waits for it. What was read before is not put together again."""
    line, outcome = cursor.line, cursor.recorder.outcome
    after, known = (None, "") if cursor.recorder.tracing else line.heard
    tip = line.tip
    text = known + "".join(outcome(node.id).text for node in cursor.path(after) if node.kind not in SILENT)
    if not cursor.recorder.tracing:
        line.heard = (tip, text)
    return text


def messages_of(cursor: Cursor) -> list[dict[str, str]]:
    """The turns of the path; a turn that is still open comes last."""
    line, outcome = cursor.line, cursor.recorder.outcome
    after, found, opened = (None, list[dict[str, str]](), False) if cursor.recorder.tracing else line.heard_turns
    tip = line.tip
    texts = [(node, outcome(node.id).text) for node in cursor.path(after) if node.kind not in SILENT]
    found = [*found[:-1], *map(dict, found[-1:])]  # others may be reading this line, too
    said: list[str] = []  # since the last marker
    for node, text in texts:
        if isinstance(node, (RoleBegin, RoleEnd)):
            if said:
                found[-1]["content"] += "".join(said)
                said = []
            opened = isinstance(node, RoleBegin)
            if isinstance(node, RoleBegin):
                found.append({"role": node.role, "content": ""})
        elif opened:
            said.append(text)
    if said:
        found[-1]["content"] += "".join(said)
    if not cursor.recorder.tracing:
        line.heard_turns = (tip, found, opened)
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
