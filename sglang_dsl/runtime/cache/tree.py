"""The radix tree over token ids, one root per namespace. It decides; `prefix_cache.py` executes.

Edges hold whole pages only: a key is packed token ids (`keys.py`), a node's `pages[i]` holds its i-th page of tokens.
Divergence inside a page is no match for that page.

    root -- "policy, tools" (locked 3) -+- "ticket 1" (locked 1)
                                        +- "ticket 2" (locked 1)
                                        +- "ticket 3" (locked 1, pending: its pages are being filled by the step in flight)

Invariants, checked by `integrity.py`: a node's lock is the number of living receipts at or below it; so an unlocked
node has only unlocked descendants and every unlocked page can be evicted. Pending nodes are always locked.

Source: the idea is RadixAttention's (Zheng et al., arXiv 2312.07104, section 3); locks as receipts, pending nodes and leases are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...errors import IntegrityError
from .eviction import EvictionPolicy, EvictionQueue, lru
from .keys import TOKEN_BYTES, common_bytes
from .namespace import Namespace
from .node import Inserted, Match, Node, Overlap, Receipt


class RadixTree:
    """Prefixes of computed tokens. Owned by one `PrefixCache`."""

    def __init__(self, page_size: int, policy: EvictionPolicy = lru) -> None:
        self.page_size = page_size
        self.evictable_pages = 0
        self.roots: dict[Namespace, Node] = {}
        self.receipts: set[Receipt] = set()
        self.pending: list[Node] = []
        self._page_bytes = page_size * TOKEN_BYTES
        self._queue: EvictionQueue[Node] = EvictionQueue(policy)
        self._ticks = 0
        self._serials = 0
        self._nodes = 0

    # Finding

    def match(self, namespace: Namespace, key: bytes, limit_tokens: int, *, pending: bool = True) -> Match:
        """The longest prefix of `key[:limit_tokens]` the tree holds; splits a node where the match ends inside it.

        The whole path becomes most recent, the part of a split node that did not match does not.
        pending: whether nodes of the step being built may be matched.
        """
        node = self._root(namespace)
        end = self._whole_pages(min(len(key), limit_tokens * TOKEN_BYTES))
        now = self._tick()
        at, pages = 0, list[int]()
        while at < end:
            child = self._child(node, key, at, pending=pending)
            if child is None:
                break
            span = len(child.key)
            same = self._whole_pages(common_bytes(child.key, key, at, end))
            node = child if same == span else self._split(child, same)
            node.last_access = now
            pages += node.pages
            at += same
            if same < span:
                break
        return Match(node, at // TOKEN_BYTES, pages)

    def peek(self, namespace: Namespace, key: bytes, limit_tokens: int) -> tuple[Node | None, int]:
        """The deepest node a match would touch and the tokens it would find; changes nothing."""
        node = self.roots.get(namespace)
        end = self._whole_pages(min(len(key), limit_tokens * TOKEN_BYTES))
        at = 0
        while node is not None and at < end:
            child = self._child(node, key, at, pending=True)
            if child is None:
                break
            same = self._whole_pages(common_bytes(child.key, key, at, end))
            node, at = child, at + same
            if same < len(child.key):
                break
        return node, at // TOKEN_BYTES

    def overlap(self, node: Node, key: bytes, limit_tokens: int) -> Overlap | None:
        """Below `node`, the child whose first page begins with most of `key[node.end : limit_tokens]`."""
        start, end = node.end * TOKEN_BYTES, min(len(key), limit_tokens * TOKEN_BYTES)
        best: Overlap | None = None
        for first_page, child in node.children.items() if end > start else ():
            tokens = common_bytes(first_page, key, start, end) // TOKEN_BYTES
            if tokens > (best.tokens if best else 0):
                best = Overlap(child, tokens)
        return best

    # Growing

    def insert(self, node: Node, key: bytes, pages: Sequence[int], *, priority: int = 0) -> Inserted:
        """Put `key` (whole pages) below `node`, on `pages`. Where the tree has a part already, its own pages stay.

        Stops at a pending node: what a step in flight fills cannot be built upon.
        """
        now = self._tick()
        at, existing = 0, list[int]()
        while at < len(key):
            child = node.children.get(key[at : at + self._page_bytes])
            if child is None:
                break
            if child.pending:
                return Inserted(node, existing, 0)
            same = self._whole_pages(common_bytes(child.key, key, at, len(key)))
            node = child if same == len(child.key) else self._split(child, same)
            node.last_access = now
            existing += node.pages
            at += same
        new = list(pages[len(existing) :])
        if new:
            node = self._attach(node, key[at:], new)
            self.evictable_pages += len(new)
            self._consider(node)
        _raise_priority(node, priority)
        return Inserted(node, existing, len(new))

    def insert_pending(
        self, receipt: Receipt, key: bytes, pages: Sequence[int], *, writer: int, priority: int = 0
    ) -> bool:
        """Stand `key` below the receipt's node for siblings of the same step; the receipt moves there.

        False (nothing done) if the tree has the beginning of `key` already.
        """
        above = receipt.node
        if key[: self._page_bytes] in above.children:
            return False
        node = self._attach(above, key, list(pages))
        _raise_priority(node, priority)
        node.pending, node.writer = True, writer
        self.pending.append(node)
        node.lock = 1
        receipt.node = node
        return True

    def commit_pending(self) -> list[int]:
        """The step succeeded: pending nodes become ordinary. Returns their pages, now the tree's."""
        pages = list[int]()
        for node in self.pending:
            node.pending = False
            pages += node.pages
            if node.lock == 0:
                raise IntegrityError(f"pending node of sequence {node.writer} is not locked")
        self.pending.clear()
        return pages

    def drop_pending(self) -> None:
        """The step failed, and its sequences have released their receipts: forget the pending nodes."""
        for node in sorted(self.pending, key=lambda n: -n.end):
            if node.lock or node.children:
                raise IntegrityError(f"pending node of sequence {node.writer} is still used")
            self._unlink(node)
        self.pending.clear()

    # Locking

    def acquire(self, node: Node, owner: str) -> Receipt:
        """Keep the path from `node` to its root from eviction."""
        self._add_lock(node, None)
        receipt = Receipt(node, owner)
        self.receipts.add(receipt)
        return receipt

    def release(self, receipt: Receipt) -> None:
        """Undo an `acquire`.

        Raises:
            IntegrityError: the receipt was released before.
        """
        if not receipt.alive:
            raise IntegrityError(f"the lock of {receipt.owner} is released twice")
        receipt.alive = False
        self.receipts.discard(receipt)
        node: Node | None = receipt.node
        while node is not None:
            node.lock -= 1
            if node.lock == 0:
                self._unlocked(node)
            node = node.parent

    def move(self, receipt: Receipt, node: Node) -> None:
        """Let the receipt hold `node`, which lies at or below its present node, instead."""
        self._add_lock(node, receipt.node)
        receipt.node = node

    # Shrinking

    def evict(self, pages: int) -> list[int]:
        """Remove unlocked leaves until at least `pages` are gone (less than one node more) or none is left."""
        gone = list[int]()
        while len(gone) < pages and (node := self._queue.pop(_is_evictable)) is not None:
            gone += node.pages
            self.evictable_pages -= len(node.pages)
            self._consider(self._unlink(node))
        return gone

    def hint(self, node: Node, change: int) -> None:
        """A use of `node` is coming (+1) or no longer coming (-1)."""
        node.hints = max(0, node.hints + change)
        self._consider(node)

    def flush(self, namespace: Namespace | None = None) -> list[int]:
        """Remove everything unlocked, of one namespace or of all. Returns the pages."""
        gone = list[int]()
        for node in reversed(list(self.walk(namespace))):
            if node.lock == 0 and node.parent is not None:
                gone += node.pages
                self.evictable_pages -= len(node.pages)
                self._consider(self._unlink(node))
        return gone

    # Looking

    def walk(self, namespace: Namespace | None = None) -> Iterator[Node]:
        """All nodes, parents first; roots included."""
        roots = list(self.roots.values())
        if namespace is not None:
            roots = [root for name, root in self.roots.items() if name.of_band(0) == namespace]
        stack = list(roots)
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    # Parts

    def _root(self, namespace: Namespace) -> Node:
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = Node(namespace, None, b"", [], self._next_serial())
        root.last_access = self._ticks
        return root

    def _child(self, node: Node, key: bytes, at: int, *, pending: bool) -> Node | None:
        child = node.children.get(key[at : at + self._page_bytes])
        return None if child is None or (child.pending and not pending) else child

    def _attach(self, parent: Node, key: bytes, pages: list[int]) -> Node:
        node = Node(parent.namespace, parent, key, pages, self._next_serial())
        node.created = node.last_access = self._tick()
        parent.children[key[: self._page_bytes]] = node
        self._nodes += 1
        return node

    def _split(self, node: Node, at: int) -> Node:
        """Cut `node` after `at` bytes. Returns the new upper part; `node` stays the deeper one, receipts and all."""
        above = node.parent
        if above is None:
            raise IntegrityError("a root cannot be split")
        cut = at // self._page_bytes
        upper = Node(node.namespace, above, node.key[:at], node.pages[:cut], self._next_serial())
        upper.lock, upper.created, upper.last_access = node.lock, node.created, node.last_access
        upper.hits, upper.priority, upper.leased = node.hits, node.priority, node.leased
        upper.pending, upper.writer = node.pending, node.writer
        above.children[upper.key[: self._page_bytes]] = upper
        node.parent, node.key, node.pages = upper, node.key[at:], node.pages[cut:]
        upper.children[node.key[: self._page_bytes]] = node
        self._nodes += 1
        if upper.pending:
            self.pending.append(upper)
        return upper

    def _unlink(self, node: Node) -> Node:
        """Take a childless node out. Returns its parent."""
        above = node.parent
        if above is None:
            raise IntegrityError("a root cannot be removed")
        del above.children[node.key[: self._page_bytes]]
        node.parent = None
        self._nodes -= 1
        return above

    def _add_lock(self, node: Node, stop: Node | None) -> None:
        walk: Node | None = node
        while walk is not None and walk is not stop:
            if walk.lock == 0:
                self.evictable_pages -= len(walk.pages)
            walk.lock += 1
            walk = walk.parent

    def _unlocked(self, node: Node) -> None:
        if not node.pending:
            self.evictable_pages += len(node.pages)
        self._consider(node)

    def _consider(self, node: Node) -> None:
        """Queue a node that can be evicted; forget a root that holds nothing."""
        if node.lock or node.children:
            return
        if node.parent is not None:
            self._queue.push(node)
            self._queue.shrink(self._nodes, lambda: (n for n in self.walk() if _is_evictable(n)))
        elif self.roots.get(node.namespace) is node:
            del self.roots[node.namespace]

    def _whole_pages(self, size: int) -> int:
        return size - size % self._page_bytes

    def _tick(self) -> int:
        self._ticks += 1
        return self._ticks

    def _next_serial(self) -> int:
        self._serials += 1
        return self._serials


def _raise_priority(node: Node, priority: int) -> None:
    """What is used by a request of this priority is worth it up to the root."""
    walk: Node | None = node
    while walk is not None and walk.priority < priority:
        walk.priority = priority
        walk = walk.parent


def _is_evictable(node: Node) -> bool:
    return node.parent is not None and not node.lock and not node.children
