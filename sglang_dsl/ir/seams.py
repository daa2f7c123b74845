"""Seams of a graph where encoding both sides together would give other tokens: before a choice, and where a branch begins.

What a call will write is not known, so the seams around generated text are left out. A turn's marker never merges.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence

from ..errors import ChoiceBlankWarning
from .execution import Meter
from .graph import Graph
from .nodes import Fork, Gen, Node, Plain, Select, Text, subgraphs

_warned: dict[
    str, dict[str | tuple[str, type[Warning], int], int]
] = {}  # by file: the registry that `warnings` asks for
LOOKED_AT = 64  # characters on each side: merges reach no further than a word


def seams(graph: Graph, meter: Meter) -> Iterator[str]:
    """A sentence per differing seam, sub-graphs included; seams of equal text are named once."""
    seen: set[tuple[str, str]] = set()
    for where, before, after in _seams(graph):
        pair = (before[-LOOKED_AT:], after[:LOOKED_AT])
        if pair not in seen and (found := meter.seam(*pair)):
            yield f"{where} is read as {found}"
        seen.add(pair)


def blank_finding(before: str, choices: Sequence[str]) -> str:
    """What is wrong with the blank between a text and the choices of a call that follows it, "" if nothing is.

    One rule for all tokenizers: a blank in front of a choice belongs to the choice, since tokens are words with the blank
    before them. Two blanks, none between two words, or one that is a token of its own are what models have hardly seen.
    """
    begin = [choice[:1] for choice in choices if choice]
    if before.endswith(" ") and " " in begin:
        return "the text before ends with a blank and the choices begin with one: leave out the one in the text"
    if before.endswith(" ") and before[-2:-1].strip() and any(first.strip() for first in begin):
        return "the text before ends with a blank: leave it out there, and begin each choice with it"
    if before and (before[-1].isalnum() or before[-1] in ".,:;?!") and any(first.isalnum() for first in begin):
        return "no blank stands between the text before and the choices: begin each choice with one"
    return ""


def warn_of_blanks(graph: Graph, call: Gen | Select) -> None:
    """A ChoiceBlankWarning, once for its line, where a call's choices begin with a blank too many or too few."""
    choices = choices_of(call)
    if choices and call.origin is not None and (wrong := blank_finding(_end(graph, call.context), choices)):
        lines = _warned.setdefault(call.origin.file, {})
        warnings.warn_explicit(wrong, ChoiceBlankWarning, call.origin.file, call.origin.line, registry=lines)


def choices_of(call: Gen | Select) -> tuple[str, ...]:
    """The texts among which a call chooses, as far as they are known."""
    if isinstance(call, Select):
        return tuple(choice for choice in call.choices if isinstance(choice, str))
    chooses = call.constraint is not None and call.constraint.kind == "choices"
    return tuple(json.loads(call.constraint.text)) if chooses and call.constraint is not None else ()


def blanks(graph: Graph) -> Iterator[str]:
    """A sentence per call whose choices begin with a blank too many or too few, sub-graphs included."""
    for node in graph:
        if isinstance(node, (Gen, Select)) and (wrong := blank_finding(_end(graph, node.context), choices_of(node))):
            yield f"{node.name or node.id}: {wrong}"
        for inner in subgraphs(node):
            yield from blanks(inner)


def _seams(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """(what stands after the seam, text before, text after)."""
    for node in graph:
        before = _end(graph, node.context)
        if before and isinstance(node, Select):
            for choice in node.choices:
                if isinstance(choice, str):
                    yield f"{node.name or node.id}: choice {choice!r}", before, choice
        elif before and node.branch is not None and (begins := _beginning(node)):
            yield f"the branch that begins with {begins[:LOOKED_AT]!r}", before, begins
        for inner in subgraphs(node):
            yield from _seams(inner)


def _end(graph: Graph, node_id: str | None) -> str:
    """The plain text that a context ends with, "" if it ends otherwise."""
    node = _node(graph, node_id)
    while isinstance(node, Fork):
        node = _node(graph, node.context)
    last = node.pieces[-1] if isinstance(node, Text) else None
    return last.text if isinstance(last, Plain) else ""


def _node(graph: Graph, node_id: str | None) -> Node | None:
    """None at the root, and where a sub-graph continues the graph around it."""
    return graph[node_id] if node_id is not None and node_id in graph else None


def _beginning(node: Node) -> str:
    first = node.pieces[0] if isinstance(node, Text) else None
    return first.text if isinstance(first, Plain) else ""
