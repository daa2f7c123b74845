"""The identity every page obeys: free + evictable + locked + request-owned = total, and no page in two places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ...errors import IntegrityError
from .keys import TOKEN_BYTES
from .node import Holding, Receipt, TreeNode
from .pages import PagePool, PageState
from .prefix_cache import PrefixCache
from .tree import RadixTree


def check(cache: PrefixCache, holdings: Iterable[Holding] = ()) -> None:
    """Raise IntegrityError, with pages and owners, unless every invariant holds. Costs one walk of tree and pool."""
    holdings = list(holdings)
    place = _Places(cache.pool)
    _check_free(cache.pool, place)
    _check_tree(cache, place)
    for holding in holdings:
        _check_holding(holding, cache, place)
    _check_leases(cache)
    _check_receipts(cache.tree, [h.receipt for h in holdings if h.receipt] + cache.leases.receipts())
    place.report_leaks()


class _Places:
    """Where each page was found so far."""

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self.found: dict[int, str] = {}

    def put(self, pages: Iterable[int], where: str, place: PageState) -> None:
        for page in pages:
            if page in self.found:
                raise IntegrityError(f"page {page} is in two places: {self.found[page]} and {where}")
            if not self.pool.is_at(page, place):
                raise IntegrityError(f"page {page} of {where} is marked {self.pool.place(page).name}, not {place.name}")
            self.found[page] = where

    def report_leaks(self) -> None:
        lost = [page for page in range(self.pool.num_pages) if page not in self.found]
        if lost:
            owners = {page: self.pool.last_owner(page) for page in lost}
            raise IntegrityError(f"{len(lost)} pages are leaked; page -> last owner: {owners}")


def _check_free(pool: PagePool, place: _Places) -> None:
    free = pool.free_list()
    place.put(free, "the free list", PageState.FREE)
    if len(free) != pool.free_pages:
        raise IntegrityError(f"the pool counts {pool.free_pages} free pages, the free list has {len(free)}")


def _check_tree(cache: PrefixCache, place: _Places) -> None:
    tree, evictable, owned = cache.tree, 0, 0
    for node in tree.walk():
        _check_node(node, tree)
        if not node.pending:
            place.put(node.pages, f"tree node {node.serial}", PageState.TREE)
            owned += len(node.pages)
            evictable += len(node.pages) if node.lock == 0 else 0
    if evictable != tree.evictable_pages:
        raise IntegrityError(f"the tree counts {tree.evictable_pages} evictable pages, the walk finds {evictable}")
    if owned != cache.pool.tree_pages:
        raise IntegrityError(f"the pool counts {cache.pool.tree_pages} pages of the tree, the walk finds {owned}")


def _check_node(node: TreeNode, tree: RadixTree) -> None:
    page_bytes = tree.page_size * TOKEN_BYTES
    if len(node.key) != len(node.pages) * page_bytes:
        raise IntegrityError(f"node {node.serial} has {len(node.key)} key bytes for {len(node.pages)} pages")
    if node.pending and (node.lock == 0 or node not in tree.pending):
        raise IntegrityError(f"pending node {node.serial} is not locked or not registered")
    for first, child in node.children.items():
        if child.parent is not node or child.key[:page_bytes] != first or not child.pages:
            raise IntegrityError(f"node {child.serial} hangs wrongly below node {node.serial}")
        if (child.lock and not node.lock) or (node.pending and not child.pending):
            raise IntegrityError(f"node {child.serial} (lock {child.lock}) outlives its parent (lock {node.lock})")


def _check_holding(holding: Holding, cache: PrefixCache, place: _Places) -> None:
    place.put(holding.pages[holding.tree_pages :], holding.owner, PageState.REQUEST)
    if holding.receipt is None:
        if holding.tree_pages:
            raise IntegrityError(f"{holding.owner} uses pages of the tree without a lock")
        return
    if not holding.receipt.alive:
        raise IntegrityError(f"{holding.owner} holds a dead receipt")
    path = [page for node in holding.receipt.node.path() for page in node.pages]
    if list(holding.pages[: holding.tree_pages]) != path[: holding.tree_pages] or holding.tree_pages > len(path):
        raise IntegrityError(f"{holding.owner} points at pages that are not those of its path in the tree")


def _check_leases(cache: PrefixCache) -> None:
    leased = {id(node): node for receipt in cache.leases.receipts() for node in receipt.node.path()}
    pages = sum(len(node.pages) for node in leased.values())
    if pages != cache.leases.leased_pages:
        raise IntegrityError(f"{cache.leases.leased_pages} pages are counted as leased, the leases cover {pages}")


def _check_receipts(tree: RadixTree, known: list[Receipt]) -> None:
    lost = tree.receipts.difference(known)
    if lost:
        raise IntegrityError(f"locks nobody holds: {sorted(r.owner for r in lost)}")
    locks = Counter(id(receipt.node) for receipt in tree.receipts)
    for node in tree.walk():
        if locks.pop(id(node), 0) + sum(child.lock > 0 for child in node.children.values()) != node.lock:
            raise IntegrityError(f"node {node.serial} has lock {node.lock}, its receipts say otherwise")
    if locks:
        raise IntegrityError("a receipt holds a node that is not in the tree")
