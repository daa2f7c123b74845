"""The prompt along a context path before anything has run: exact where the text is known, bounded where it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...ir.execution import Segment
from ...ir.nodes import Fork, Gen, Node, Plain, Raw, Reference, RoleBegin, RoleEnd, Select, Text
from ..text.bos import with_bos
from ..text.protocol import TextModel, TextPiece, Turn

SHOWN = "{%s}"  # how a value that does not exist yet is shown


def preview(path: Sequence[Node], values: Mapping[str, str], text: TextModel) -> tuple[Segment, ...]:
    """One segment per stretch of text and the node it comes from, the nodes in `path` order.

    A stretch between two seams is encoded as a whole, as a run does it; its ids stand at its last segment's node, so
    that the ids joined are the prompt's. A stretch with unknown parts has no ids, and `max_tokens` counts its words alone.

    Args:
        values: texts of nodes that are known, by id.

    Raises:
        RoleError: the template refuses a role.
    """
    draft = _Draft(text, values)
    for node in path:
        draft.add(node)
    draft.seam()
    return tuple(draft.segments)


@dataclass(slots=True)
class _Draft:
    text: TextModel
    values: Mapping[str, str]
    segments: list[Segment] = field(default_factory=list)
    pending: list[TextPiece] = field(default_factory=list)
    exact: bool = True
    turns: list[Turn] = field(default_factory=list)

    def add(self, node: Node) -> None:
        match node:
            case Text(pieces=pieces):
                for piece in pieces:
                    self._say(node, piece)
            case RoleBegin(role=role):
                marker = self.text.template.open_turn(self.turns, role)
                self.turns.append(Turn(role, "", closed=False))
                self._put(node, TextPiece(marker, control=True))
            case RoleEnd():
                self._put(node, TextPiece(self.text.template.close_turn(self.turns), control=True))
                self.turns[-1] = replace(self.turns[-1], closed=True)
            case Gen() | Select():
                self._called(node)
            case Fork():
                self.seam()

    def seam(self) -> None:
        """Encode what is pending, if all of it is known."""
        if self.pending and self.exact:
            ids = self.text.tokenizer.encode_segment(self.pending)
            first = not any(segment.token_ids or segment.max_tokens for segment in self.segments[: -len(self.pending)])
            begun = with_bos(ids, self.text.tokenizer) if first else ids
            self.segments[-1] = replace(self.segments[-1], token_ids=tuple(begun))
        self.pending, self.exact = [], True

    def _say(self, node: Text, piece: Plain | Raw | Reference) -> None:
        match piece:
            case Plain(said):
                self._put(node, TextPiece(said))
            case Raw(said):
                self._put(node, TextPiece(said, control=True))
            case Reference(node_id, ()) if node_id in self.values:
                self._put(node, TextPiece(self.values[node_id]))
            case Reference(node_id):
                self.exact = False
                self._put(node, TextPiece(SHOWN % node_id))

    def _put(self, node: Node, piece: TextPiece) -> None:
        if not piece.text:
            return
        self.pending.append(piece)
        bound = 0 if self.exact else len(self.text.tokenizer.encode(piece.text))
        self.segments.append(Segment(node_id=node.id, text=piece.text, max_tokens=bound, control=piece.control))
        if self.turns and not self.turns[-1].closed and not piece.control:
            self.turns[-1] = replace(self.turns[-1], content=self.turns[-1].content + piece.text)

    def _called(self, node: Gen | Select) -> None:
        self.seam()
        known = self.values.get(node.id)
        shown = SHOWN % (node.name or node.id) if known is None else known
        ids = () if known is None else tuple(self.text.tokenizer.encode(known))
        bound = self._bound(node) if known is None else 0
        self.segments.append(Segment(node_id=node.id, text=shown, token_ids=ids, max_tokens=bound))

    def _bound(self, node: Gen | Select) -> int:
        if isinstance(node, Gen):
            return node.sampling.max_tokens
        return max((len(self.text.tokenizer.encode(c)) for c in node.choices if isinstance(c, str)), default=0)
