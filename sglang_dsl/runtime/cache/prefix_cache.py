"""The cache as the scheduler sees it: the tree's decisions carried out on the pool."""

from __future__ import annotations

from collections.abc import Sequence

from .eviction import POLICIES, EvictionName
from .leases import LeaseTable
from .namespace import Namespace
from .node import Match, Receipt
from .pages import PagePool
from .tree import RadixTree

LEASED_SHARE = 0.75  # of the pool, at most, is locked by leases; the rest keeps running requests alive


class PrefixCache:
    """Pool, tree and leases of one engine. Owned by its thread."""

    def __init__(self, num_pages: int, page_size: int, eviction: EvictionName = "lru") -> None:
        self.pool = PagePool(num_pages, page_size)
        self.tree = RadixTree(page_size, POLICIES[eviction])
        self.leases = LeaseTable(self.tree, int(num_pages * LEASED_SHARE))
        self.evicted_pages = 0
        self.peak_used_pages = 0  # most pages held by requests or locks at a time
        self.page_size = page_size

    @property
    def available_pages(self) -> int:
        """Pages an allocation could get: free, or evictable."""
        return self.pool.free_pages + self.tree.evictable_pages

    def allocate(self, count: int, owner: int) -> list[int] | None:
        """`count` pages, evicting what it takes; None if locked pages leave too few."""
        return self.allocate_each((owner,) * count)

    def allocate_each(self, owners: Sequence[int]) -> list[int] | None:
        """One page per entry, evicting what it takes; None (nothing evicted) if locked pages leave too few."""
        short = len(owners) - self.pool.free_pages
        if short > self.tree.evictable_pages:
            return None
        if short > 0:
            self._evict(short)
        return self.pool.allocate_each(owners)

    def hold(
        self, namespace: Namespace, key: bytes, limit_tokens: int, owner: str, ids: Sequence[int] = ()
    ) -> tuple[Match, Receipt]:
        """Match and lock in one go, so that nothing evicts the match in between. ids: the prompt that `key` begins with."""
        match = self.tree.match(namespace, key, limit_tokens, ids=ids)
        return match, self.tree.acquire(match.node, owner)

    def adopt(self, receipt: Receipt, key: bytes, pages: list[int], *, priority: int = 0) -> int:
        """Insert computed tokens below `receipt.node`; the receipt moves to where they end.

        `key` holds whole pages, `pages` are theirs. Where the tree had a part already, `pages` is re-pointed in place to
        the tree's and the duplicates are freed. Returns how many of `pages` are now the tree's.
        """
        inserted = self.tree.insert(receipt.node, key, pages, priority=priority)
        shared = len(inserted.existing)
        self.tree.move(receipt, inserted.node)
        self.pool.give(pages[shared : shared + inserted.taken])
        self.pool.free(pages[:shared])
        pages[:shared] = inserted.existing
        return shared + inserted.taken

    def commit_pending(self) -> None:
        """The step in flight succeeded: its pending nodes and their pages become the tree's."""
        if self.tree.pending:
            self.pool.give(self.tree.commit_pending())

    def flush(self, namespace: Namespace | None = None) -> int:
        """Forget everything no request or lease holds. Returns the pages freed."""
        gone = self.tree.flush(namespace)
        self.pool.free(gone)
        return len(gone)

    def note_use(self) -> None:
        """Remember the present use if it is the highest."""
        self.peak_used_pages = max(self.peak_used_pages, self.pool.num_pages - self.available_pages)

    def pages_for(self, tokens: int) -> int:
        """Pages that so many tokens need."""
        return -(-tokens // self.page_size)

    def _evict(self, pages: int) -> None:
        gone = self.tree.evict(pages)
        self.evicted_pages += len(gone)
        self.pool.free(gone)
