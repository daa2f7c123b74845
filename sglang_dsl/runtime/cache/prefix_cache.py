"""The cache as the scheduler sees it: the tree's decisions carried out on the pool, and leases.

A lease keeps the path of a fork's parent until the last child was admitted or has ended; how many children come is known from the
graph. What is leased may not be computed yet: the lock then grows with what is inserted along its path. When memory is short a
lease is demoted to a hint: its lock goes, its nodes are evicted last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .keys import TOKEN_BYTES, Namespace
from .node import Match, Receipt, TreeNode
from .pages import POLICIES, EvictionName, PagePool
from .tree import RadixTree


@dataclass(slots=True)
class Lease:
    """One leased path. Owned by its LeaseTable. `receipt` None: demoted; `hinted` is then the node that carries the hint."""

    lease_id: int
    namespace: Namespace
    key: bytes
    children: int
    ids: Sequence[int] = ()  # the prompt that `key` begins with
    receipt: Receipt | None = None
    hinted: TreeNode | None = None
    covered: int = 0

    @property
    def whole(self) -> bool:
        """Whether nothing of the path is left to be locked."""
        return self.receipt is None or self.covered == len(self.key) // TOKEN_BYTES


class LeaseTable:
    """All living leases over one tree. They lock at most `max_pages`; a lease above that is a hint at once.

    incomplete: those whose path is not all in the tree yet. `follow` extends them.
    """

    def __init__(self, tree: RadixTree, max_pages: int) -> None:
        self.max_pages = max_pages
        self.leased_pages = 0
        self.demoted = 0
        self.incomplete: dict[int, Lease] = {}
        self._tree = tree
        self._page_bytes = tree.page_size * TOKEN_BYTES
        self._leases: dict[int, Lease] = {}
        self._next_id = 0  # counts down: ids that callers give are positive

    def __len__(self) -> int:
        return len(self._leases)

    def open(
        self,
        namespace: Namespace,
        key: bytes,
        children: int,
        lease_id: int | None = None,
        *,
        ids: Sequence[int] = (),
    ) -> int:
        """Lease the path of `key` for so many children. Returns the lease's id: the caller's own, if it gave an unused one.

        ids: the prompt that `key` begins with, if it is known.
        """
        if lease_id is None:
            self._next_id -= 1
            lease_id = self._next_id
        whole = len(key) - len(key) % self._page_bytes
        lease = self._leases[lease_id] = Lease(lease_id, namespace, key[:whole], children, ids)
        node = self._match(lease).node
        lease.receipt = self._tree.acquire(node, f"lease {lease_id}")
        self._count(node, 1)
        self._covered(lease, node)
        return lease_id

    def count_down(self, lease_id: int, children: int | None = 1) -> None:
        """So many children were admitted or will not come (None: all). Unknown and ended leases are ignored."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return
        lease.children = 0 if children is None else lease.children - children
        if lease.children <= 0:
            self._end(lease)

    def follow(self) -> None:
        """Nodes were inserted: extend the locks of leases whose path was not complete."""
        for lease in list(self.incomplete.values()):
            at = lease.covered * TOKEN_BYTES
            receipt, next_page = lease.receipt, lease.key[at : at + self._page_bytes]
            if receipt is not None and next_page in receipt.node.children:
                node = self._match(lease).node
                above = receipt.node
                if node is not above:
                    self._count(node, 1)
                    self._count(above, -1)
                    self._tree.move(receipt, node)
                    self._covered(lease, node)

    def demote(self, pages: int) -> bool:
        """Turn leases into hints, those that lock most first, until `pages` more can be evicted. False if none locks any."""
        locking = [lease for lease in self._leases.values() if lease.receipt is not None and lease.covered]
        locking.sort(key=lambda lease: (-lease.covered, lease.lease_id))
        enough = self._tree.evictable_pages + pages
        for lease in locking:
            if self._tree.evictable_pages >= enough:
                break
            self._demote(lease)
        return bool(locking)

    def receipts(self) -> list[Receipt]:
        """Living receipts, for the integrity check."""
        return [lease.receipt for lease in self._leases.values() if lease.receipt is not None]

    def _match(self, lease: Lease) -> Match:
        return self._tree.match(lease.namespace, lease.key, len(lease.key) // TOKEN_BYTES, pending=False, ids=lease.ids)

    def _covered(self, lease: Lease, node: TreeNode) -> None:
        """The lease's lock now ends at `node`."""
        lease.covered = node.end
        if self.leased_pages > self.max_pages:
            self._demote(lease)
        elif lease.whole:
            self.incomplete.pop(lease.lease_id, None)
        else:
            self.incomplete[lease.lease_id] = lease

    def _count(self, node: TreeNode, change: int) -> None:
        """One lease more or less that ends at `node`; a page counts once, however many leases cover it."""
        walk: TreeNode | None = node
        while walk is not None:
            before, walk.leased = walk.leased, walk.leased + change
            if before and walk.leased:
                break
            walk = walk.parent
        self.leased_pages += change * (node.end - (walk.end if walk is not None else 0)) // self._tree.page_size

    def _demote(self, lease: Lease) -> None:
        if lease.receipt is not None:
            lease.hinted = lease.receipt.node
            self._tree.hint(lease.hinted, 1)
            self._unlock(lease)
            self.demoted += 1

    def _end(self, lease: Lease) -> None:
        del self._leases[lease.lease_id]
        if lease.hinted is not None:
            self._tree.hint(lease.hinted, -1)
        self._unlock(lease)

    def _unlock(self, lease: Lease) -> None:
        self.incomplete.pop(lease.lease_id, None)
        if lease.receipt is not None:
            self._count(lease.receipt.node, -1)
            self._tree.release(lease.receipt)
            lease.receipt = None


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

    def allocate_each(self, owners: Sequence[int]) -> list[int] | None:
        """One page per entry, evicting what it takes; None (nothing evicted) if locked pages leave too few."""
        short = len(owners) - self.pool.free_pages
        if short > self.tree.evictable_pages:
            return None
        if short > 0:
            gone = self.tree.evict(short)
            self.evicted_pages += len(gone)
            self.pool.free(gone)
        return self.pool.allocate_each(owners)

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
        self.pool.give(self.tree.commit_pending())

    def flush(self, namespace: Namespace | None = None) -> int:
        """Forget everything no request or lease holds. Returns the pages freed."""
        gone = self.tree.flush(namespace)
        self.pool.free(gone)
        return len(gone)

    def pages_for(self, tokens: int) -> int:
        """Pages that so many tokens need."""
        return -(-tokens // self.page_size)

    def note_use(self) -> None:
        """Remember the present use if it is the highest."""
        self.peak_used_pages = max(self.peak_used_pages, self.pool.num_pages - self.available_pages)
