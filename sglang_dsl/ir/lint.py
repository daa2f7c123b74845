"""The prefix linter: text that calls could share, and do not because something different stands before it.

A prefix is shared up to the first token that differs. Constant text behind a value, or behind words that differ from
branch to branch, is computed again for every call; moved in front of them it is computed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import Origin
from .execution import Meter
from .graph import Graph
from .nodes import Constant, Fork, Input, ListOf, Map, ModelCall, Node, Piece, Plain, Reference, Text, subgraphs

WORTH_TOKENS = 16  # less than this is not worth a word
EXCERPT = 40


@dataclass(frozen=True, slots=True)
class PrefixFinding:
    """One chance to share. gain_tokens: more tokens shared, by each of `calls` calls (None: by every run or item)."""

    node_id: str
    what: str
    gain_tokens: int
    calls: int | None = None
    origin: Origin | None = None

    def __str__(self) -> str:
        times = f" × {self.calls} calls" if self.calls is not None else " for each"
        where = f" ({self.origin.file}:{self.origin.line})" if self.origin is not None else ""
        return f"{self.what}: +{self.gain_tokens:,} shared tokens{times}{where}"


def lint(graph: Graph, meter: Meter) -> list[PrefixFinding]:
    """Every finding, largest gain first."""
    return sorted(_findings(graph, meter), key=lambda f: -f.gain_tokens * (f.calls or 1))


def _findings(graph: Graph, meter: Meter, item: str = "") -> Iterator[PrefixFinding]:
    """`item`: the input that a map fills, where the graph is its body."""
    yield from _branches(graph, meter)
    yield from _inputs(graph, meter, item)
    for node in graph:
        if isinstance(node, Map):
            yield from _items(node, meter)
        for inner in subgraphs(node):
            yield from _findings(inner, meter, node.item if isinstance(node, Map) else "")


def _branches(graph: Graph, meter: Meter) -> Iterator[PrefixFinding]:
    """Text that is the same at the end of every branch's first prompt, behind text that is not."""
    openings = _openings(graph)
    for fork_id, texts in openings.items():
        fork = graph[fork_id]
        if not isinstance(fork, Fork) or len(texts) != fork.size or fork.size < 2:
            continue
        heads = [_joined(pieces) for pieces in texts.values()]
        shared = _common_end(heads)
        differing = [head[: len(head) - len(shared)] for head in heads]
        if len(set(differing)) < 2 or not all(differing):
            continue
        if (gain := meter.count(shared)) >= WORTH_TOKENS:
            what = f"put “{_excerpt(shared)}” before the fork, ahead of {_name_of(texts[0], differing[0])}"
            yield PrefixFinding(fork_id, what, gain, fork.size, _first_origin(graph, fork_id))


def _common_end(texts: Sequence[str]) -> str:
    """The longest text with which all of them end."""
    reversed_texts = sorted(text[::-1] for text in texts)
    first, last = reversed_texts[0], reversed_texts[-1]
    length = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:length][::-1]


def _openings(graph: Graph) -> dict[str, dict[int, list[Piece]]]:
    """For each fork and branch the pieces up to the branch's first call."""
    openings: dict[str, dict[int, list[Piece]]] = {}
    place: dict[str, tuple[str, int]] = {}  # nodes still in front of their branch's first call
    for node in graph:
        if node.context is None:
            continue
        if node.branch is not None:
            place[node.id] = (node.context, node.branch)
            openings.setdefault(node.context, {}).setdefault(node.branch, [])
        elif node.context in place:
            place[node.id] = place[node.context]
        if node.id not in place:
            continue
        if isinstance(node, Text):
            fork_id, branch = place[node.id]
            openings[fork_id][branch].extend(node.pieces)
        elif isinstance(node, ModelCall | Fork):
            del place[node.id]
    return openings


def _inputs(graph: Graph, meter: Meter, item: str) -> Iterator[PrefixFinding]:
    """Constant text behind an Input: each run with another value computes it again."""
    inputs = {node.id: node.name for node in graph if isinstance(node, Input) and node.id != item}
    for node, name, gain, text in _behind_values(_main_texts(graph), inputs, meter):
        what = f"move {{{name}}} behind “{_excerpt(text)}”"
        yield PrefixFinding(node.id, what, gain, None, node.origin)


def _items(node: Map, meter: Meter) -> Iterator[PrefixFinding]:
    """Constant text behind a map's item: each item computes it again."""
    item = next((n for n in node.body if n.id == node.item), None)
    if not isinstance(item, Input):
        return
    count = None
    match node.items:
        case ListOf(items=items) | Constant(value=list() as items):
            count = len(items)
    for text_node, name, gain, text in _behind_values(_main_texts(node.body), {item.id: item.name}, meter):
        what = f"move {{{name}}} behind “{_excerpt(text)}”"
        yield PrefixFinding(text_node.id, what, gain, count, text_node.origin)


def _main_texts(graph: Graph) -> list[Text]:
    """The text nodes in front of a graph's first call or fork."""
    texts: list[Text] = []
    for node in graph:
        if isinstance(node, ModelCall | Fork) or subgraphs(node):
            break
        if isinstance(node, Text):
            texts.append(node)
    return texts


def _behind_values(texts: Sequence[Text], names: dict[str, str], meter: Meter) -> Iterator[tuple[Node, str, int, str]]:
    """The first value among `names`, and how much constant text stands behind it."""
    behind: list[str] = []
    found: tuple[Node, str] | None = None
    for node in texts:
        for piece in node.pieces:
            if found is None and isinstance(piece, Reference) and piece.node_id in names:
                found = (node, names[piece.node_id])
            elif found is not None and isinstance(piece, Plain):
                behind.append(piece.text)
    gain = sum(meter.count(text) for text in behind)
    if found is not None and gain >= WORTH_TOKENS:
        yield (*found, gain, max(behind, key=len))


def _joined(pieces: Sequence[Piece]) -> str:
    """Pieces as one text; a value is a character of its own that no text holds, followed by what it is."""
    return "".join(p.text if not isinstance(p, Reference) else f"\ufdd0{p.node_id}\ufdd0" for p in pieces)


def _name_of(pieces: Sequence[Piece], differing: str) -> str:
    """What differs between the branches, as the user knows it."""
    first = next((p for p in pieces if isinstance(p, Reference)), None)
    return f"{{{first.node_id}}}" if first is not None else f"“{_excerpt(differing)}”"


def _excerpt(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= EXCERPT else f"{line[:EXCERPT].rstrip()}…"


def _first_origin(graph: Graph, fork_id: str) -> Origin | None:
    return next((n.origin for n in graph if n.context == fork_id and n.branch == 0), graph[fork_id].origin)
