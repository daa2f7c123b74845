"""Taking, growing, publishing and releasing a sequence's pages: the only code that moves them."""

from __future__ import annotations

from ..cache.integrity import Holding
from ..cache.keys import TOKEN_BYTES, pack
from ..cache.node import Node, Receipt
from ..cache.prefix_cache import PrefixCache
from .scoring import Edge
from .sequence import Sequence


class Ownership:
    """Moves pages between the cache and sequences. `shared`: whether there is prefix caching at all."""

    def __init__(self, cache: PrefixCache, *, shared: bool) -> None:
        self.cache = cache
        self._shared = shared
        self._page = cache.page_size
        self._borrowed: list[Receipt] = []  # nodes whose pages the step being built copies from

    def shares(self, seq: Sequence) -> bool:
        """Whether this sequence takes part in prefix sharing."""
        return self._shared and seq.cacheable

    def take_prefix(self, seq: Sequence, limit_tokens: int) -> None:
        """Match and lock the longest cached prefix; `seq` stands at its end."""
        if not self.shares(seq):
            return
        match, seq.receipt = self.cache.hold(
            seq.namespace, seq.key, limit_tokens, seq.request_id, seq.request.prompt_ids
        )
        seq.pages, seq.tree_pages, seq.computed = match.pages, len(match.pages), match.tokens

    def borrow(self, node: Node, seq: Sequence) -> Receipt:
        """Keep a node that `seq` copies from until the step has landed."""
        receipt = self.cache.tree.acquire(node, seq.request_id)
        self._borrowed.append(receipt)
        return receipt

    def return_one(self, receipt: Receipt) -> None:
        """Nothing will be copied from this node after all."""
        self._borrowed.remove(receipt)
        self.cache.tree.release(receipt)

    def return_borrowed(self) -> None:
        """The step has landed: nothing is copied from any more."""
        for receipt in self._borrowed:
            self.cache.tree.release(receipt)
        self._borrowed.clear()

    def grow(self, seq: Sequence, tokens: int) -> bool:
        """Let the page table reach `tokens`. False (nothing changed) if the pages are not to be had."""
        pages = self.cache.allocate(max(0, self.cache.pages_for(tokens) - len(seq.pages)), seq.seq_id)
        if pages is None:
            return False
        seq.pages += pages
        return True

    def grow_edge(self, seq: Sequence, edge: Edge) -> bool:
        """Give a trie edge its pages, behind those of what it continues. False if they are not to be had."""
        above = edge.parent.table if edge.parent else seq.pages if edge.after_prompt else []
        first = edge.start // self._page
        pages = self.cache.allocate(self.cache.pages_for(edge.end) - first, seq.seq_id)
        if pages is None:
            return False
        edge.own_pages = pages
        edge.table = above[:first] + pages
        return True

    def publish(self, seq: Sequence, end: int) -> None:
        """Stand what the step will compute up to `end` in the tree, for siblings of the same step."""
        whole = end // self._page
        if seq.receipt is None or whole <= seq.tree_pages:
            return
        span = self._page * TOKEN_BYTES
        key, pages = seq.key[seq.tree_pages * span : whole * span], seq.pages[seq.tree_pages : whole]
        priority = seq.request.priority
        if self.cache.tree.insert_pending(seq.receipt, key, pages, writer=seq.seq_id, priority=priority):
            seq.pending_pages = len(pages)

    def settle(self, seq: Sequence) -> None:
        """The step has landed and pending nodes are the tree's: take the rest of what is computed into the tree."""
        seq.tree_pages += seq.pending_pages
        seq.pending_pages = 0
        self.adopt(seq, seq.computed)

    def adopt(self, seq: Sequence, tokens: int) -> None:
        """Hand computed pages up to `tokens` to the tree; duplicates are freed and the row re-pointed to the tree's."""
        whole = tokens // self._page
        if seq.receipt is None or whole <= seq.tree_pages:
            return
        key = pack(seq.tokens[seq.tree_pages * self._page : whole * self._page])
        own = seq.pages[seq.tree_pages : whole]
        taken = self.cache.adopt(seq.receipt, key, own, priority=seq.request.priority)
        seq.pages[seq.tree_pages : whole] = own
        for edge in seq.task.live_edges() if seq.task else ():
            if edge.after_prompt:
                edge.table[seq.tree_pages : whole] = own
        seq.tree_pages += taken

    def release(self, seq: Sequence, keep_tokens: int) -> None:
        """Everything `seq` holds goes, once: computed tokens up to `keep_tokens` to the tree, all else to the free list."""
        if not seq.pending_pages:
            self.adopt(seq, min(seq.computed, keep_tokens))
        for edge in seq.task.live_edges() if seq.task else ():
            self.free_edge(edge)
        self.cache.pool.free(seq.pages[seq.tree_pages :])
        if seq.receipt is not None:
            self.cache.tree.release(seq.receipt)
        seq.reset()

    def sole_pages(self, seq: Sequence) -> int:
        """Pages that would be free or evictable without `seq`: its own, and the tree's that nobody else holds."""
        sole = len(seq.pages) - seq.tree_pages
        node = seq.receipt.node if seq.receipt else None
        while node is not None and node.lock == 1:
            sole += len(node.pages)
            node = node.parent
        return sole

    def free_edge(self, edge: Edge) -> None:
        """An edge's own pages go."""
        self.cache.pool.free(edge.own_pages)
        edge.own_pages, edge.table = [], []

    def holdings(self, sequences: list[Sequence]) -> list[Holding]:
        """Who holds what, for the integrity check."""
        found = [Holding(s.request_id, s.pages, s.tree_pages, s.receipt) for s in sequences]
        found += [
            Holding(f"{s.request_id} (edge)", edge.own_pages, 0, None)
            for s in sequences
            if s.task
            for edge in s.task.live_edges()
        ]
        return found + [Holding(receipt.owner, (), 0, receipt) for receipt in self._borrowed]
