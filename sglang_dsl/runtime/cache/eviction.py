"""Which unlocked leaf of the tree goes first: the policies, and the queue that finds the first one.

A policy is a key: smaller goes earlier. Keys of one node only grow while it waits (recency, hits and priority do), so
the heap may hold outdated, too small keys: an entry is trusted only if its key is still the node's.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeAlias

from .node import TreeNode

EvictionName: TypeAlias = Literal["lru", "lfu", "slru", "fifo", "priority"]
Key: TypeAlias = tuple[int, ...]

PROTECTED_HITS = 2  # segmented LRU: a node hit this often is in the protected segment
HEAP_SLACK = 64


EvictionPolicy: TypeAlias = Callable[[TreeNode], Key]


def lru(node: TreeNode) -> Key:
    """Least recently used first."""
    return (node.last_access,)


def lfu(node: TreeNode) -> Key:
    """Least often used first; among equals, least recently."""
    return (node.hits, node.last_access)


def slru(node: TreeNode) -> Key:
    """Nodes hit less than twice first, each segment by recency."""
    return (int(node.hits >= PROTECTED_HITS), node.last_access)


def fifo(node: TreeNode) -> Key:
    """Oldest first, used or not."""
    return (node.created,)


def priority(node: TreeNode) -> Key:
    """Lowest request priority first; among equals, least recently used."""
    return (node.priority, node.last_access)


POLICIES: Mapping[EvictionName, EvictionPolicy] = {
    "lru": lru,
    "lfu": lfu,
    "slru": slru,
    "fifo": fifo,
    "priority": priority,
}


class EvictionQueue:
    """Evictable leaves, the first to go on top. A known next use (`hints`) outranks every policy."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._heap: list[tuple[Key, TreeNode]] = []

    def push(self, node: TreeNode, leaves: int, alive: Callable[[], Iterable[TreeNode]]) -> None:
        """Consider `node`: it became an evictable leaf, or its key may have become smaller.

        leaves: how many there may be. alive: those there are; from these the queue is rebuilt once outdated entries outnumber them.
        """
        heapq.heappush(self._heap, (self._key(node), node))
        if len(self._heap) > 4 * leaves + HEAP_SLACK:
            self._heap = [(self._key(node), node) for node in alive()]
            heapq.heapify(self._heap)

    def pop(self, is_evictable: Callable[[TreeNode], bool]) -> TreeNode | None:
        """Take out the first node; None if there is none."""
        while self._heap:
            key, node = heapq.heappop(self._heap)
            if not is_evictable(node):
                continue
            current = self._key(node)
            if key == current:
                return node
            heapq.heappush(self._heap, (current, node))
        return None

    def _key(self, node: TreeNode) -> Key:
        return (int(node.hints > 0), *self._policy(node), node.serial)
