"""The prompt along a context path before anything has run: exact where the text is known, bounded where it is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from ...errors import RoleError
from ...ir.execution import Segment
from ...ir.nodes import Fork, Gen, Node, Plain, Raw, Reference, RoleBegin, RoleEnd, Select, Text
from ..text.bos import with_bos
from ..text.protocol import TextModel, TextPiece, Turns

Encode: TypeAlias = Callable[..., Sequence[int]]  # as `Tokenizer.encode_segment`

SHOWN = "{%s}"  # how a value that does not exist yet is shown


def preview(
    path: Sequence[Node], values: Mapping[str, str], text: TextModel, encode: Encode | None = None
) -> tuple[Segment, ...]:
    """One segment per stretch of text and the node it comes from, the nodes in `path` order.

    A stretch between two seams is encoded as a whole, as a run does it; its ids stand at its last segment's node, so
    that the ids joined are the prompt's. A stretch with unknown parts has no ids: `max_tokens` counts each part alone, a
    value that does not exist yet by the bound of its call.

    Args:
        values: texts of nodes that are known, by id.
        encode: instead of the tokenizer's `encode_segment`: one that remembers, for who asks about many paths.

    Raises:
        RoleError: the template refuses a role.
    """
    draft = _Draft(text, values, encode or text.tokenizer.encode_segment)
    for node in path:
        draft.add(node)
    draft.seam()
    return tuple(draft.segments)


class Previews:
    """Previews of many paths for one text model: what they have in common up to a fork is drafted once."""

    def __init__(self, text: TextModel, encode: Encode) -> None:
        self._text = text
        self._encode = encode
        self._values: dict[str, str] = {}
        self._forks: dict[
            int, tuple[list[Node], _Draft]
        ] = {}  # by the identity of a fork: the path up to it, and its draft

    def of(self, path: Sequence[Node], values: Mapping[str, str]) -> tuple[Segment, ...]:
        """See `preview`."""
        if values != self._values:
            self._values, self._forks = dict(values), {}
        nodes = list(path)
        draft, begun = self._begun(nodes)
        for place in range(begun, len(nodes)):
            draft.add(nodes[place])
            if isinstance(nodes[place], Fork):
                self._forks[id(nodes[place])] = (nodes[: place + 1], draft.copy())
        draft.seam()
        return tuple(draft.segments)

    def _begun(self, nodes: list[Node]) -> tuple[_Draft, int]:
        """The draft of the longest beginning of a path that is known, and how many nodes that are."""
        for place in range(len(nodes) - 1, -1, -1):
            if isinstance(nodes[place], Fork) and (known := self._forks.get(id(nodes[place]))) is not None:
                before, draft = known
                if before == nodes[: place + 1]:
                    return draft.copy(), place + 1
        return _Draft(self._text, self._values, self._encode), 0


class _Draft:
    def copy(self) -> _Draft:
        """The same at a seam, to go on apart."""
        copy = _Draft(self._text, self._values, self._encode)
        copy._bounds, copy._turns, copy.segments = dict(self._bounds), self._turns, list(self.segments)
        return copy

    def __init__(self, text: TextModel, values: Mapping[str, str], encode: Encode) -> None:
        self._text = text
        self._encode = encode
        self._values = values
        self._bounds: dict[str, int] = {}  # of the calls so far
        self._pending: list[Segment] = []
        self._exact = True
        self._turns = Turns()
        self.segments: list[Segment] = []

    def add(self, node: Node) -> None:
        """Append what a node says."""
        match node:
            case Text(pieces=pieces):
                for piece in pieces:
                    self._say(node, piece)
            case RoleBegin(role=role):
                self._put(node, self._text.template.open_turn(self._turns, role), control=True)
                self._turns = self._turns.opened(role)
            case RoleEnd(role=role):
                if self._turns.closed:
                    raise RoleError(f"a {role!r} turn ends, but no turn is open", origin=node.origin)
                self._put(node, self._text.template.close_turn(self._turns), control=True)
                self._turns = self._turns.ended()
            case Gen() | Select():
                self._call(node)
            case Fork():
                self.seam()

    def seam(self) -> None:
        """End a stretch: its ids stand at its last segment, or, with unknown parts, each part is counted alone."""
        if self._exact and self._pending:
            first = not self.segments
            ids = self._encode(tuple(TextPiece(s.text, control=s.control) for s in self._pending), first=first)
            begun = with_bos(ids, self._text.tokenizer) if first else ids
            self._pending[-1] = replace(self._pending[-1], token_ids=tuple(begun))
        elif self._pending:
            self._pending = [s if s.max_tokens else replace(s, max_tokens=self._size(s)) for s in self._pending]
        self.segments += self._pending
        self._pending, self._exact = [], True

    def _say(self, node: Text, piece: Plain | Raw | Reference) -> None:
        match piece:
            case Plain(said):
                self._put(node, said)
            case Raw(said):
                self._put(node, said, control=True)
            case Reference(node_id, ()) if node_id in self._values:
                self._put(node, self._values[node_id])
            case Reference(node_id):
                self._exact = False
                self._put(node, SHOWN % node_id, bound=self._bounds.get(node_id, 0))

    def _put(self, node: Node, said: str, *, control: bool = False, bound: int = 0) -> None:
        if not said:
            return
        self._pending.append(Segment(node_id=node.id, text=said, max_tokens=bound, control=control))
        self._turns = self._turns.said(said)

    def _call(self, node: Gen | Select) -> None:
        self.seam()
        self._bounds[node.id] = self._bound(node)
        known = self._values.get(node.id)
        if known is None:
            shown = SHOWN % (node.name or node.id)
            self.segments.append(Segment(node_id=node.id, text=shown, max_tokens=self._bounds[node.id]))
        else:
            ids = tuple(self._text.tokenizer.encode(known))
            self.segments.append(Segment(node_id=node.id, text=known, token_ids=ids))
        self._turns = self._turns.said(known or "")

    def _bound(self, node: Gen | Select) -> int:
        if isinstance(node, Gen):
            return node.sampling.most_tokens
        return max((self._count(choice) for choice in node.choices if isinstance(choice, str)), default=0)

    def _size(self, segment: Segment) -> int:
        return len(self._encode((TextPiece(segment.text, control=segment.control),)))

    def _count(self, text: str) -> int:
        return len(self._text.tokenizer.encode(text))
