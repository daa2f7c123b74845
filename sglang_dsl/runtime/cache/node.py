"""What the radix tree is made of, and what it answers with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .keys import Namespace


@dataclass(slots=True, eq=False, repr=False)
class TreeNode:
    """A span of tokens below its parent. Only the tree changes it.

    lock: receipts that end here, and children that are locked. leased: likewise of leases.
    """

    namespace: Namespace
    parent: TreeNode | None
    key: bytes | bytearray
    pages: list[int]
    serial: int
    end: int  # tokens from the root to here
    parts: list[int] = field(default_factory=list)  # where, in pages, it was merged: its last part is evicted first
    children: dict[bytes, TreeNode] = field(default_factory=dict)
    lock: int = 0
    leased: int = 0  # kept by the LeaseTable
    created: int = 0
    last_access: int = 0  # itself, or a child that is gone: that of a node without children is exact
    hits: int = 0  # requests that ended here, or below in a child that is gone
    priority: int = 0
    hints: int = 0  # known coming uses that hold no lock (demoted leases)
    pending: bool = False
    writer: int = -1  # sequence whose step in flight fills a pending node

    def __lt__(self, other: TreeNode) -> bool:
        return self.serial < other.serial

    def path(self) -> list[TreeNode]:
        """From the root to this node."""
        found = [self]
        while (node := found[-1].parent) is not None:
            found.append(node)
        return found[::-1]


@dataclass(slots=True, eq=False)
class Receipt:
    """Proof of a lock on the path from a node to its root. Releasing replays it on the same node, once.

    A split keeps the node at its deeper end, so receipts stay true across splits.
    """

    node: TreeNode
    owner: str
    alive: bool = True


class Match(NamedTuple):
    """The longest usable prefix: `tokens` of it, on `pages`, ending exactly at `node`."""

    node: TreeNode
    tokens: int
    pages: list[int]


class Overlap(NamedTuple):
    """The best match inside the page after a node: the first `tokens` slots of `child`'s first page hold the same tokens."""

    child: TreeNode
    tokens: int


class Inserted(NamedTuple):
    """Where an insertion ended and the pages the tree had already, for the first part of the inserted span.

    `taken`: how many of the offered pages (after those the tree had) the tree has now taken.
    """

    node: TreeNode
    existing: list[int]
    taken: int


class Holding(NamedTuple):
    """What a sequence believes it holds: `pages[:tree_pages]` are the tree's, the rest its own."""

    owner: str
    pages: Sequence[int]
    tree_pages: int
    receipt: Receipt | None
