"""The pool of pages as integers: which are free, which belong to a request, which to the tree; and eviction, that is which unlocked leaf
of the tree gives its pages back first: policies behind one protocol, and the queue that finds the first one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from threading import get_ident
from typing import Literal, TypeAlias

from ...errors import IntegrityError
from .node import TreeNode


class PageState(IntEnum):
    """Who holds a page."""

    FREE = 0
    REQUEST = 1
    TREE = 2


class PagePool:
    """A fixed number of pages of `page_size` tokens each. Every page is in exactly one PageState.

    free_pages: those that nobody holds. tree_pages: those that the tree holds.
    Owned by one thread. Shortage is a return value (None); misuse raises IntegrityError and changes nothing.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.free_pages = num_pages
        self.tree_pages = 0
        self._free = list(range(num_pages - 1, -1, -1))
        self._place = bytearray(num_pages)
        self._owner = [-1] * num_pages
        self._thread: int | None = None

    @property
    def request_pages(self) -> int:
        """Pages held by requests, over-allocation included."""
        return self.num_pages - self.free_pages - self.tree_pages

    def allocate_each(self, owners: Sequence[int]) -> list[int] | None:
        """One page for each entry of `owners`, or None (and nothing taken) if there are fewer."""
        self._check(())
        keep = self.free_pages - len(owners)
        if keep < 0:
            return None
        self.free_pages = keep
        taken = self._free[keep:]
        del self._free[keep:]
        for page, owner in zip(taken, owners, strict=True):
            self._place[page] = PageState.REQUEST
            self._owner[page] = owner
        return taken

    def free(self, pages: Sequence[int]) -> None:
        """Take pages back from requests or the tree.

        Raises:
            IntegrityError: a page is unknown, free already, or named twice.
        """
        self._check(pages)
        for page in pages:
            if not 0 <= page < self.num_pages or self._place[page] == PageState.FREE:
                raise IntegrityError(f"page {page} is freed, but nobody holds it; last owner: {self.last_owner(page)}")
        for page in pages:
            self.tree_pages -= self._place[page] == PageState.TREE
            self._place[page] = PageState.FREE
        self._free.extend(pages)
        self.free_pages = len(self._free)

    def give(self, pages: Sequence[int]) -> None:
        """Hand pages of a request over to the tree.

        Raises:
            IntegrityError: a page is not a request's.
        """
        self._check(pages)
        for page in pages:
            if self._place[page] != PageState.REQUEST:
                raise IntegrityError(
                    f"page {page} is given to the tree, but is {self.place(page).name}, not a request's"
                )
        for page in pages:
            self._place[page] = PageState.TREE
        self.tree_pages += len(pages)

    def place(self, page: int) -> PageState:
        """Who holds the page."""
        return PageState(self._place[page])

    def is_at(self, page: int, place: PageState) -> bool:
        """Whether the page is there."""
        return self._place[page] == place

    def last_owner(self, page: int) -> int:
        """The sequence that last allocated the page; -1 if none ever did."""
        return self._owner[page] if 0 <= page < self.num_pages else -1

    def free_list(self) -> tuple[int, ...]:
        """The free pages, for the integrity check."""
        return tuple(self._free)

    def _check(self, pages: Sequence[int]) -> None:
        """Raise IntegrityError where another thread than the pool's own asks, or a page is named twice."""
        thread = get_ident()
        if self._thread is None:
            self._thread = thread
        elif self._thread != thread:
            raise IntegrityError(f"the pool belongs to thread {self._thread}, but thread {thread} uses it")
        if len(pages) > 1 and len(set(pages)) != len(pages):
            raise IntegrityError(f"a page is named twice in {list(pages)}")


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
