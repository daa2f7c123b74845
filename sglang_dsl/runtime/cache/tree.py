"""The radix tree over token ids, one root per namespace. It decides; `prefix_cache.py` executes.

Edges hold whole pages only: a key is packed token ids (`keys.py`), a node's `pages[i]` holds its i-th page of tokens.
Divergence inside a page is no match for that page.

    root -- "policy, tools" (locked 3) -+- "ticket 1" (locked 1)
                                        +- "ticket 2" (locked 1)
                                        +- "ticket 3" (locked 1, pending: its pages are being filled by the step in flight)

Invariants, checked by `integrity.py`: a node's lock is the number of living receipts that end there and of its locked
children; so an unlocked node has only unlocked descendants and every unlocked page can be evicted. Pending nodes are always locked.

Time per request must not grow with what came before it. A path without branches is one node: where a request has continued one,
the two are merged (the deeper one stays, receipts and all). Locking a path whose upper part is locked ends there. And a prompt that
continues another is matched from where that one ended (`PromptPath`), however many branches hang on the way.

Source: the idea is RadixAttention's (Zheng et al., arXiv 2312.07104, section 3); locks as receipts, pending nodes and leases are ours.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import count
from weakref import WeakKeyDictionary

from ...errors import IntegrityError
from .keys import TOKEN_BYTES, Namespace, TokenIds, TokenStore, common_bytes
from .node import Inserted, Match, Overlap, Receipt, TreeNode
from .pages import EvictionPolicy, EvictionQueue, lru

REMEMBERED_BRANCHINGS = 32  # so many branchings up, a remembered path of the prompt is looked for
REMEMBERED_NODES = 8  # the path of a prompt is remembered if its match passed so many nodes


_NO_PATHS: dict[Namespace, PromptPath] = {}


class RadixTree:
    """Prefixes of computed tokens. Owned by one `PrefixCache`."""

    def __init__(self, page_size: int, policy: EvictionPolicy = lru) -> None:
        self.page_size = page_size
        self.evictable_pages = 0
        self.roots: dict[Namespace, TreeNode] = {}
        self.receipts: set[Receipt] = set()
        self.pending: list[TreeNode] = []
        self._page_bytes = page_size * TOKEN_BYTES
        self._queue: EvictionQueue = EvictionQueue(policy)
        self._paths: WeakKeyDictionary[TokenStore, dict[Namespace, PromptPath]] = WeakKeyDictionary()
        self._clock = count(1)  # the time that `last_access` and `created` are given in
        self._serials = count(1)
        self._nodes = 0

    # Finding

    def match(
        self,
        namespace: Namespace,
        key: bytes,
        limit_tokens: int,
        *,
        pending: bool = True,
        ids: Sequence[int] = (),
    ) -> Match:
        """The longest prefix of `key[:limit_tokens]` the tree holds; splits a node where the match ends inside it.

        The whole path becomes most recent, the part of a split node that did not match does not.
        pending: whether nodes of the step being built may be matched. ids: the prompt that `key` begins with, if it is known.
        """
        node, pages = self._start(namespace, ids, limit_tokens, pending=pending)
        end = min(len(key), limit_tokens * TOKEN_BYTES)
        end -= end % self._page_bytes
        node.last_access = now = next(self._clock)
        at, passed = node.end * TOKEN_BYTES, 0
        while at < end:
            child = self._child(node, key, at, pending=pending)
            if child is None:
                break
            span = len(child.key)
            same = common_bytes(child.key, key, at, end)
            same -= same % self._page_bytes
            node = child if same == span else self._split(child, same)
            node.last_access = now
            pages += node.pages
            at += same
            passed += 1
            if same < span:
                break
        if passed >= REMEMBERED_NODES and isinstance(ids, TokenIds):
            self._paths.setdefault(ids.store, {}).setdefault(namespace, PromptPath()).note(node, pages, self.page_size)
        return Match(node, at // TOKEN_BYTES, pages)

    def peek(
        self, namespace: Namespace, key: bytes, limit_tokens: int, *, ids: Sequence[int] = ()
    ) -> tuple[TreeNode | None, int]:
        """The deepest node a match would touch and the tokens it would find; changes nothing."""
        if namespace not in self.roots:
            return None, 0
        node: TreeNode = self._start(namespace, ids, limit_tokens, pending=True, peek=True)[0]
        end = min(len(key), limit_tokens * TOKEN_BYTES)
        end -= end % self._page_bytes
        at = node.end * TOKEN_BYTES
        while at < end:
            child = self._child(node, key, at, pending=True)
            if child is None:
                break
            same = common_bytes(child.key, key, at, end)
            same -= same % self._page_bytes
            node, at = child, at + same
            if same < len(child.key):
                break
        return node, at // TOKEN_BYTES

    def _start(
        self, namespace: Namespace, ids: Sequence[int], limit_tokens: int, *, pending: bool, peek: bool = False
    ) -> tuple[TreeNode, list[int]]:
        """Where a match may begin, and the pages up to there: the end of a prompt that this one continues, or the root."""
        for _ in range(REMEMBERED_BRANCHINGS):
            if not isinstance(ids, TokenIds):
                break
            limit_tokens = min(limit_tokens, len(ids))
            if (path := self._paths.get(ids.store, _NO_PATHS).get(namespace)) is not None:
                node = path.before(limit_tokens, self.page_size, pending=pending)
                if node is not None:
                    return node, [] if peek else path.pages[: node.end // self.page_size]
            ids = ids.store.above or ()
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = TreeNode(namespace, None, b"", [], next(self._serials), end=0)
        return root, []

    def overlap(self, node: TreeNode, key: bytes, limit_tokens: int) -> Overlap | None:
        """Below `node`, the child whose first page begins with most of `key[node.end : limit_tokens]`."""
        start, end = node.end * TOKEN_BYTES, min(len(key), limit_tokens * TOKEN_BYTES)
        best: Overlap | None = None
        for first_page, child in node.children.items() if end > start else ():
            tokens = common_bytes(first_page, key, start, end) // TOKEN_BYTES
            if tokens > (best.tokens if best else 0):
                best = Overlap(child, tokens)
        return best

    # Growing

    def insert(self, node: TreeNode, key: bytes, pages: Sequence[int], *, priority: int = 0) -> Inserted:
        """Put `key` (whole pages) below `node`, on `pages`. Where the tree has a part already, its own pages stay.

        Stops at a pending node: what a step in flight fills cannot be built upon.
        """
        now = next(self._clock)
        at, existing = 0, list[int]()
        while at < len(key):
            child = node.children.get(key[at : at + self._page_bytes])
            if child is None:
                break
            if child.pending:
                return Inserted(node, existing, 0)
            same = common_bytes(child.key, key, at, len(key))
            same -= same % self._page_bytes
            node = child if same == len(child.key) else self._split(child, same)
            node.last_access = now
            existing += node.pages
            at += same
        new = list(pages[len(existing) :])
        if new:
            node = self._attach(node, key[at:], new)
            self.evictable_pages += len(new)
            self._consider(node)
        if node.priority < priority:
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
        if node.priority < priority:
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
        for node in self.pending:
            self._merge(node)
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

    def acquire(self, node: TreeNode, owner: str) -> Receipt:
        """Keep the path from `node` to its root from eviction."""
        self._lock(node)
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
        self._unlock(receipt.node)
        self._merge(receipt.node)

    def move(self, receipt: Receipt, node: TreeNode) -> None:
        """Let the receipt hold `node`, which lies at or below its present node, instead."""
        above = receipt.node
        if node is not above:
            self._lock(node)
            self._unlock(above)
            receipt.node = node
            self._merge(node)

    # Shrinking

    def evict(self, pages: int) -> list[int]:
        """Remove unlocked leaves until at least `pages` are gone (less than one node more) or none is left. Of a node that was
        merged only its last part goes.
        """
        gone = list[int]()
        while len(gone) < pages and (node := self._queue.pop(_is_evictable)) is not None:
            if node.parts:
                gone += self._cut(node, node.parts.pop())
                continue
            gone += node.pages
            self.evictable_pages -= len(node.pages)
            self._consider(self._unlink(node))
        return gone

    def hint(self, node: TreeNode, change: int) -> None:
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

    def walk(self, namespace: Namespace | None = None) -> Iterator[TreeNode]:
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

    def _child(self, node: TreeNode, key: bytes, at: int, *, pending: bool) -> TreeNode | None:
        child = node.children.get(key[at : at + self._page_bytes])
        return None if child is None or (child.pending and not pending) else child

    def _attach(self, parent: TreeNode, key: bytes, pages: list[int]) -> TreeNode:
        end = parent.end + len(pages) * self.page_size
        node = TreeNode(parent.namespace, parent, key, pages, next(self._serials), end)
        node.created = node.last_access = next(self._clock)
        parent.children[key[: self._page_bytes]] = node
        self._nodes += 1
        return node

    def _split(self, node: TreeNode, at: int) -> TreeNode:
        """Cut `node` after `at` bytes. Returns the new upper part; `node` stays the deeper one, receipts and all."""
        above = node.parent
        if above is None:
            raise IntegrityError("a root cannot be split")
        cut = at // self._page_bytes
        end = above.end + cut * self.page_size
        upper = TreeNode(node.namespace, above, node.key[:at], node.pages[:cut], next(self._serials), end)
        upper.lock, upper.leased = int(node.lock > 0), int(node.leased > 0)
        upper.created, upper.last_access, upper.priority = node.created, node.last_access, node.priority
        upper.pending, upper.writer = node.pending, node.writer
        above.children[bytes(upper.key[: self._page_bytes])] = upper
        upper.parts = [part for part in node.parts if part < cut]
        node.parts = [part - cut for part in node.parts if part > cut]
        node.parent, node.key, node.pages = upper, node.key[at:], node.pages[cut:]
        upper.children[bytes(node.key[: self._page_bytes])] = node
        self._nodes += 1
        if upper.pending:
            self.pending.append(upper)
        return upper

    def _unlink(self, node: TreeNode) -> TreeNode:
        """Take a childless node out. Returns its parent."""
        above = node.parent
        if above is None:
            raise IntegrityError("a root cannot be removed")
        del above.children[bytes(node.key[: self._page_bytes])]
        above.hits += node.hits
        above.last_access = max(above.last_access, node.last_access)
        node.parent = None
        self._nodes -= 1
        return above

    def _cut(self, node: TreeNode, keep: int) -> list[int]:
        """Take the end of a leaf away: it keeps so many pages. Returns the others."""
        gone = node.pages[keep:]
        del node.pages[keep:]
        node.key = node.key[: keep * self._page_bytes]
        node.end -= len(gone) * self.page_size
        self.evictable_pages -= len(gone)
        self._consider(node)
        return gone

    def _merge(self, node: TreeNode) -> None:
        """Make a node one with its parent where nothing branches off or ends between them, and it is the more recent one."""
        above = node.parent
        while above is not None and above.parent is not None and len(above.children) == 1:
            ends = above.lock != bool(node.lock) or above.leased != bool(node.leased) or above.hints
            differ = above.priority != node.priority or node.last_access < above.last_access
            if ends or differ or above.pending or node.pending:
                return
            above.key = above.key if isinstance(above.key, bytearray) else bytearray(above.key)
            joint = len(above.pages)
            above.key += node.key
            above.pages += node.pages
            above.parts.append(joint)
            above.parts += [joint + part for part in node.parts]
            node.key, node.pages, node.parts = above.key, above.pages, above.parts
            node.hits += above.hits
            node.parent, above.parent = above.parent, None
            node.parent.children[bytes(node.key[: self._page_bytes])] = node
            self._nodes -= 1
            above = node.parent
            self._consider(node)

    def _lock(self, node: TreeNode) -> None:
        """One lock more; a node that had none locks its parent, too."""
        walk: TreeNode | None = node
        pending = 0
        while walk is not None:
            walk.lock += 1
            if walk.lock > 1:
                break
            if walk.pending:
                pending += len(walk.pages)
            walk = walk.parent
        self.evictable_pages -= (node.end - (walk.end if walk is not None else 0)) // self.page_size - pending

    def _unlock(self, node: TreeNode) -> None:
        """One lock less; a node that has none any more unlocks its parent, too."""
        walk: TreeNode | None = node
        pending = 0
        while walk is not None:
            walk.lock -= 1
            if walk.lock:
                break
            if walk.pending:
                pending += len(walk.pages)
            walk = walk.parent
        self.evictable_pages += (node.end - (walk.end if walk is not None else 0)) // self.page_size - pending
        if not node.lock:
            self._consider(node)

    def _consider(self, node: TreeNode) -> None:
        """Queue a node that can be evicted; forget a root that holds nothing."""
        if node.lock or node.children:
            return
        if node.parent is not None:
            self._queue.push(node, self._nodes, lambda: (n for n in self.walk() if _is_evictable(n)))
        elif self.roots.get(node.namespace) is node:
            del self.roots[node.namespace]


class PromptPath:
    """The nodes along one growing prompt, deeper and deeper, and the pages up to the last. Owner: the tree.

    A node that left the tree, or lost its end, is found out when it is looked at: the pages above a living node stay the same.
    """

    __slots__ = ("_ends", "_nodes", "pages")

    def __init__(self) -> None:
        self._nodes: list[TreeNode] = []
        self._ends: list[int] = []
        self.pages: list[int] = []

    def before(self, limit_tokens: int, page_size: int, *, pending: bool) -> TreeNode | None:
        """The deepest living node that ends at or before `limit_tokens`."""
        self._forget_dead(page_size)
        index = bisect_right(self._ends, limit_tokens) - 1
        while index >= 0:
            node = self._nodes[index]
            if node.parent is not None and (pending or not node.pending):
                return node
            index -= 1
        return None

    def note(self, node: TreeNode, pages: list[int], page_size: int) -> None:
        """A match has come to `node` over these pages."""
        self._forget_dead(page_size)
        if not self._ends or node.end > self._ends[-1]:
            self._nodes.append(node)
            self._ends.append(node.end)
            self.pages += pages[len(self.pages) :]

    def _forget_dead(self, page_size: int) -> None:
        while self._nodes:
            last = self._nodes[-1]
            if last.parent is not None and last.end == self._ends[-1]:
                return
            self._nodes.pop()
            self._ends.pop()
            del self.pages[self._ends[-1] // page_size if self._ends else 0 :]


def _raise_priority(node: TreeNode, priority: int) -> None:
    """What is used by a request of this priority is worth it up to the root."""
    walk: TreeNode | None = node
    while walk is not None and walk.priority < priority:
        walk.priority = priority
        walk = walk.parent


def _is_evictable(node: TreeNode) -> bool:
    return node.parent is not None and not node.lock and not node.children
