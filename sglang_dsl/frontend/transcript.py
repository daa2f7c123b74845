"""What a context path reads as: its text, its messages, and how a stretch of it is mentioned elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.nodes import Constant, Node, Reference, RoleBegin, RoleEnd, Text
from .bindings import Span
from .drafting import Cursor

SILENT = frozenset({"fork", "return", "input", "tool"})  # node kinds that add no text


def text_of(cursor: Cursor) -> str:
    """All text of the path, turn markers included; waits for it."""
    outcome = cursor.recorder.outcome
    return "".join(outcome(node.id).text for node in cursor.path() if node.kind not in SILENT)


def messages_of(cursor: Cursor) -> list[dict[str, str]]:
    """The turns of the path; a turn that is still open comes last."""
    found: list[dict[str, str]] = []
    opened = False
    for node in cursor.path():
        if isinstance(node, RoleBegin):
            found.append({"role": node.role, "content": ""})
            opened = True
        elif isinstance(node, RoleEnd):
            opened = False
        elif opened and node.kind not in SILENT:
            found[-1]["content"] += cursor.recorder.outcome(node.id).text
    return found


def stretch(nodes: Sequence[Node], name: str) -> Span:
    """The text of some nodes of a path as something to be bound."""
    parts: list[Constant | Reference] = []
    for node in nodes:
        if isinstance(node, Text):
            parts.extend(p if isinstance(p, Reference) else Constant(p.text) for p in node.pieces)
        elif node.kind not in SILENT and not isinstance(node, (RoleBegin, RoleEnd)):
            parts.append(Reference(node.id))
    return Span(parts, name)
