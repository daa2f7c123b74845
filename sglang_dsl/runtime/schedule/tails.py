"""Fork points inside a page: where the slots before a row's first token come from.

A page is never shared across a fork point inside it. The child gets a page of its own, and what its parent has in the first part
of that page is put there too: copied before the forward if it is cached, written twice by the same scatter if it is computed in
this step (also where it ends the prompt of a sibling and is nobody's whole page).
"""

from __future__ import annotations

from typing import NamedTuple

from ..cache.node import Node
from ..cache.tree import RadixTree
from .sequence import Piece, Sequence
from .step_builder import StepBuilder


class Tail(NamedTuple):
    """`tokens` of a page that need not be computed: `piece` computes them in this step, or `node`'s first page has them."""

    tokens: int
    piece: Piece | None
    node: Node | None


def find_tail(seq: Sequence, tree: RadixTree, builder: StepBuilder) -> Tail | None:
    """The longest match inside the page after what `seq` has matched; None if there is none."""
    if tree.page_size == 1 or seq.receipt is None or seq.task is not None or seq.prompt_logprobs is not None:
        return None
    node = seq.receipt.node
    piece, shared = builder.longest_open_page(node, seq.key, seq.match_limit)
    cached = tree.overlap(node, seq.key, seq.match_limit)
    if cached is not None and cached.tokens > shared:
        child = cached.child
        return (
            Tail(cached.tokens, builder.piece_of(child.writer), None)
            if child.pending
            else Tail(cached.tokens, None, child)
        )
    return Tail(shared, piece, None) if piece is not None else None


def fill_tail(tail: Tail, piece: Piece, builder: StepBuilder) -> None:
    """Write down how the slots before `piece` are filled."""
    if tail.piece is not None:
        builder.share_tail(tail.piece, piece, piece.start)
    elif tail.node is not None:
        builder.copy_tail(tail.node.pages[0], piece, tail.tokens)
