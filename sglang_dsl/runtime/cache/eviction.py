"""Which unlocked leaf goes first: policies behind one protocol, and the queue that finds the first one.

A policy is a key: smaller goes earlier. Keys of one node only grow while it waits (recency, hits and priority do), so
the heap may hold outdated, too small keys: an entry is trusted only if its key is still the node's.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

EvictionName: TypeAlias = Literal["lru", "lfu", "slru", "fifo", "priority"]
Key: TypeAlias = tuple[int, ...]

PROTECTED_HITS = 2  # segmented LRU: a node hit this often is in the protected segment
HEAP_SLACK = 64


class Candidate(Protocol):
    """What a policy may look at. Times are the tree's own counter, not seconds."""

    serial: int
    last_access: int
    created: int
    hits: int
    priority: int
    hints: int


EvictionPolicy: TypeAlias = Callable[[Candidate], Key]
C = TypeVar("C", bound=Candidate)


def lru(node: Candidate) -> Key:
    """Least recently used first."""
    return (node.last_access,)


def lfu(node: Candidate) -> Key:
    """Least often used first; among equals, least recently."""
    return (node.hits, node.last_access)


def slru(node: Candidate) -> Key:
    """Nodes hit less than twice first, each segment by recency."""
    return (int(node.hits >= PROTECTED_HITS), node.last_access)


def fifo(node: Candidate) -> Key:
    """Oldest first, used or not."""
    return (node.created,)


def priority(node: Candidate) -> Key:
    """Lowest request priority first; among equals, least recently used."""
    return (node.priority, node.last_access)


POLICIES: Mapping[EvictionName, EvictionPolicy] = {
    "lru": lru,
    "lfu": lfu,
    "slru": slru,
    "fifo": fifo,
    "priority": priority,
}


class EvictionQueue(Generic[C]):
    """Evictable leaves, the first to go on top. A known next use (`hints`) outranks every policy."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._heap: list[tuple[Key, C]] = []

    def push(self, node: C, leaves: int, alive: Callable[[], Iterable[C]]) -> None:
        """Consider `node`: it became an evictable leaf, or its key may have become smaller.

        leaves: how many there may be. alive: those there are; from these the queue is rebuilt once outdated entries outnumber them.
        """
        heapq.heappush(self._heap, (self._key(node), node))
        if len(self._heap) > 4 * leaves + HEAP_SLACK:
            self._heap = [(self._key(node), node) for node in alive()]
            heapq.heapify(self._heap)

    def pop(self, is_evictable: Callable[[C], bool]) -> C | None:
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

    def _key(self, node: C) -> Key:
        return (int(node.hints > 0), *self._policy(node), node.serial)
