"""Who owns which pages, and where each sequence stands: the only code that moves either.

    positions   0 .......... a ......... b ........... c ...... computed ............. len(pages) * S
                |== tree's ==|== pending |== the request's own ==|== partial page |== spare ====|
                   locked by    the        computed, not yet        computed up to    allocated for
                   the receipt  tree's     whole pages of the       inside it: it     tokens to come
                   (and by      after the  tree; `adopt` hands      never goes to
                   leases)      step       them over                the tree

    a = tree_pages * S    b = a + pending_pages * S    c = the last page boundary at or before `computed`

* The tree's pages are shared. A sequence holds a lock on their path (its receipt); a lease holds such a lock without a sequence.
  What nobody locks stays in the tree and may be evicted.
* Pending pages stand in the tree before they are filled, so that siblings of the same step can be admitted below them. `commit`
  makes them the tree's; if the step fails they are forgotten, and the sequence still owns the pages.
* A partial page is never shared. Whoever goes on from the middle of it gets a page of its own, and what the first part holds is
  copied there, or written there a second time by the step that computes it.
* The edges of a trie of continuations own the pages from their first position on; they go when nothing below needs them.

A sequence that ends, in whatever way, gives everything back in one place, `Ownership.release`, once:

    waiting <--> compiling
       |  ^
       v  | retract
    prefilling --> decoding        each of them --> end (finished, cancelled, failed)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..cache.keys import TOKEN_BYTES, pack
from ..cache.node import Holding, Receipt, TreeNode
from ..cache.prefix_cache import PrefixCache
from .request import GenerateRequest
from .sequence import Edge, Sequence
from .step_builder import DecodeBatch


class Ownership:
    """Moves pages between the cache and sequences. Owned by the Scheduler.

    borrowed: locks on nodes whose pages the step in flight copies from.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self.cache = cache
        self.borrowed: list[Receipt] = []
        self._page = cache.page_size

    def take_prefix(self, seq: Sequence, limit_tokens: int) -> None:
        """Match and lock the longest cached prefix; `seq` stands at its end."""
        if not seq.shares:
            return
        tree = self.cache.tree
        match = tree.match(seq.namespace, seq.key, limit_tokens, ids=seq.request.prompt_ids)
        seq.receipt = tree.acquire(match.node, seq.request_id)
        seq.pages, seq.tree_pages, seq.computed = match.pages, len(match.pages), match.tokens

    def borrow(self, node: TreeNode, seq: Sequence) -> Receipt:
        """Keep a node that `seq` copies from until the step is committed."""
        receipt = self.cache.tree.acquire(node, seq.request_id)
        self.borrowed.append(receipt)
        return receipt

    def return_one(self, receipt: Receipt) -> None:
        """Nothing will be copied from this node after all."""
        self.borrowed.remove(receipt)
        self.cache.tree.release(receipt)

    def return_borrowed(self) -> None:
        """The step is over: nothing is copied from any more."""
        for receipt in self.borrowed:
            self.cache.tree.release(receipt)
        self.borrowed.clear()

    def grow(self, seq: Sequence, tokens: int) -> bool:
        """Let the page table reach `tokens`. False (nothing changed) if the pages are not to be had."""
        missing = self.cache.pages_for(tokens) - len(seq.pages)
        pages = self.cache.allocate_each((seq.seq_id,) * missing)
        if pages is None:
            return False
        seq.pages += pages
        return True

    def grow_edge(self, seq: Sequence, edge: Edge) -> bool:
        """Give a trie edge its pages, behind those of what it continues. False if they are not to be had."""
        above = edge.parent.table if edge.parent else seq.pages if edge.after_prompt else []
        first = edge.start // self._page
        pages = self.cache.allocate_each((seq.seq_id,) * (self.cache.pages_for(edge.end) - first))
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
        """The step is committed and pending nodes are the tree's: take the rest of what is computed into the tree."""
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
            self.cache.pool.free(edge.own_pages)
            edge.own_pages, edge.table = [], []
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

    def holdings(self, sequences: list[Sequence]) -> list[Holding]:
        """Who holds what, for the integrity check."""
        found = [Holding(s.request_id, s.pages, s.tree_pages, s.receipt) for s in sequences]
        found += [
            Holding(f"{s.request_id} (edge)", edge.own_pages, 0, None)
            for s in sequences
            if s.task
            for edge in s.task.live_edges()
        ]
        return found + [Holding(receipt.owner, (), 0, receipt) for receipt in self.borrowed]


@dataclass(slots=True)
class Counters:
    """Counts since the start."""

    accessed_tokens: int = 0
    hit_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    admitted: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    retracted: int = 0
    preempted: int = 0
    allocation_failures: int = 0


class Lifecycle:
    """The sequences of one scheduler by phase, oldest first. Owned by the Scheduler.

    running: sequences that hold memory: those in prefill and those that decode. changes: grows whenever admission may go
    differently than before. decode_batch: the decoding sequences in row order, while none joins or leaves. closes: sequences that
    the worker may forget (it need not know them all); the next step says so.
    """

    def __init__(self, cache: PrefixCache, ownership: Ownership) -> None:
        self.waiting: dict[int, Sequence] = {}
        self.compiling: dict[int, Sequence] = {}
        self.prefilling: dict[int, Sequence] = {}
        self.decoding: dict[int, Sequence] = {}
        self.running = 0
        self.by_request: dict[str, Sequence] = {}
        self.by_id: dict[int, Sequence] = {}
        self.counters = Counters()
        self.changes = 0
        self.decode_batch: DecodeBatch | None = None
        self.closes: list[int] = []
        self._leases = cache.leases
        self._ownership = ownership
        self._opened: set[int] = set()

    def enter(self, seq: Sequence, *, compiling: bool) -> None:
        """A new request."""
        self.by_request[seq.request_id] = self.by_id[seq.seq_id] = seq
        seq.phase = "compiling" if compiling else "waiting"
        (self.compiling if compiling else self.waiting)[seq.seq_id] = seq
        self.changes += 1

    def compiled(self, seq: Sequence) -> None:
        """Its constraint is ready."""
        if self.compiling.pop(seq.seq_id, None) is not None:
            seq.phase = "waiting"
            self.waiting[seq.seq_id] = seq
            self.changes += 1

    def admit(self, seq: Sequence, now: float) -> None:
        """It holds its prefix and its first pages."""
        del self.waiting[seq.seq_id]
        seq.phase = "prefill"
        self.prefilling[seq.seq_id] = seq
        self.running += 1
        if isinstance(seq.request, GenerateRequest):
            self._opened.add(seq.seq_id)
        if seq.admitted_s is None:
            seq.admitted_s = now
            self.counters.admitted += 1
            self.counters.accessed_tokens += seq.prompt_tokens
            self.counters.hit_tokens += seq.cached_tokens
            if seq.request.lease is not None:
                self._leases.count_down(seq.request.lease)

    def decode(self, seq: Sequence) -> None:
        """Its prompt is computed and its next token sampled."""
        del self.prefilling[seq.seq_id]
        seq.phase = "decode"
        self.decoding[seq.seq_id] = seq
        self.decode_batch = None

    def retract(self, seq: Sequence) -> None:
        """Give up its memory for now; it goes back to the head of the queue and keeps its tokens."""
        self._requeue(seq)
        self.counters.retracted += 1

    def move(self, seq: Sequence, band: int) -> None:
        """It has grown into another band of lengths and shares state with these only: all of it is computed anew, next."""
        self._requeue(seq)
        seq.band, seq.namespace = band, seq.request.namespace.of_band(band)

    def _requeue(self, seq: Sequence) -> None:
        self._leave(seq)
        self._ownership.release(seq, len(seq.tokens))
        seq.key = pack(seq.tokens)
        if seq.task is not None:
            seq.task.restart()
        seq.phase = "waiting"
        self.waiting = {seq.seq_id: seq, **self.waiting}

    def end(self, seq: Sequence, keep_tokens: int) -> None:
        """Release everything, once; computed tokens up to `keep_tokens` stay in the tree."""
        if self.by_id.pop(seq.seq_id, None) is None:
            return
        if self.by_request.get(seq.request_id) is seq:
            del self.by_request[seq.request_id]
        self._leave(seq)
        self._ownership.release(seq, keep_tokens)
        seq.phase = "done"
        if seq.admitted_s is None and seq.request.lease is not None:
            self._leases.count_down(seq.request.lease)

    def close_again(self, seq_ids: Iterable[int]) -> None:
        """The worker failed in the step that was to close these, perhaps before it did."""
        self.closes.extend(seq_ids)

    def _leave(self, seq: Sequence) -> None:
        if self.decoding.pop(seq.seq_id, None) is not None:
            self.decode_batch = None
            self.running -= 1
        elif self.prefilling.pop(seq.seq_id, None) is not None:
            self.running -= 1
        else:
            self.waiting.pop(seq.seq_id, None)
            self.compiling.pop(seq.seq_id, None)
        if seq.seq_id in self._opened:
            self._opened.remove(seq.seq_id)
            self.closes.append(seq.seq_id)
        self.changes += 1
