from __future__ import annotations

import random

import pytest

from sglang_dsl.errors import IntegrityError
from sglang_dsl.runtime.cache.keys import Namespace, common_bytes, pack


def run(*spans):
    """Token ids of half-open ranges, one after the other."""
    return tuple(token for first, end in spans for token in range(first, end))


def test_match_of_cached_tokens_returns_their_pages(bench):
    it = bench()
    pages = it.put(1, 2, 3, 4)
    client = it.client(1, 2, 3, 9)
    assert client.pages == pages[:3]
    it.check()


def test_match_of_a_subsequence_that_is_no_prefix_finds_nothing(bench):
    it = bench()
    it.put(5, 6, 7, 8)
    assert it.cached(6, 7, 8, 9) == 0


@pytest.mark.parametrize(("length", "found"), [(15, 0), (16, 16), (17, 16), (31, 16), (32, 32), (33, 32)])
def test_match_at_every_side_of_a_page_border_is_whole_pages(bench, length, found):
    it = bench(page_size=16)
    it.put(*range(40))
    assert it.cached(*range(length)) == found


def test_match_diverging_inside_a_page_does_not_share_that_page(bench):
    it = bench(page_size=4)
    it.put(*range(12))
    assert it.cached(0, 1, 2, 3, 4, 5, 99, 7, 8) == 4


def test_split_keeps_recency_of_the_shared_prefix_so_its_tail_goes_first(bench):
    it = bench(num_pages=16)
    it.put(1, 2, 3, 4)
    it.put(7, 8, 9)
    it.drop(it.client(1, 2, 5))
    it.cache.pool.free(it.cache.tree.evict(1))
    assert it.cached(1, 2, 3, 4) == 2, "the tail nobody used goes first"
    it.cache.pool.free(it.cache.tree.evict(1))
    assert it.cached(7, 8, 9) == 0, "then the older prompt"
    assert it.cached(1, 2) == 2, "the prefix used last stays"
    it.check()


def test_lock_across_a_split_is_released_on_both_halves(bench):
    it = bench()
    it.put(1, 2, 3, 4)
    holder = it.client(1, 2, 3, 4)
    it.drop(it.client(1, 2, 9))
    it.check()
    assert it.cache.tree.evictable_pages == 0
    it.drop(holder)
    it.check()
    assert it.cache.tree.evictable_pages == 4


def test_release_of_a_lock_twice_is_refused_and_changes_nothing(bench):
    it = bench()
    it.put(1, 2)
    first, second = it.client(1, 2), it.client(1, 2)
    it.drop(first)
    with pytest.raises(IntegrityError, match="released twice"):
        it.cache.tree.release(first.receipt)
    it.check()
    assert second.receipt.alive


def test_evict_under_a_lock_frees_nothing(bench):
    it = bench()
    it.put(1, 2, 3)
    it.client(1, 2, 3)
    assert it.cache.tree.evict(3) == []


@pytest.mark.parametrize("wanted", range(1, 13))
def test_evict_frees_at_least_what_is_asked_and_less_than_a_node_more(bench, wanted):
    it = bench(num_pages=64)
    for first in (0, 10, 20, 30):
        it.put(*range(first, first + 3))
    gone = it.cache.tree.evict(wanted)
    it.cache.pool.free(gone)
    assert wanted <= len(gone) < wanted + 3
    it.check()


def test_evict_of_an_empty_tree_returns_nothing(bench):
    assert bench().cache.tree.evict(5) == []


def test_insert_of_a_duplicate_repoints_the_row_and_frees_its_pages(bench):
    it = bench()
    first, second = it.client(1, 2, 3), it.client(1, 2, 3, 4)
    assert first.compute()
    assert second.compute()
    first.adopt()
    second.adopt()
    assert second.pages[:3] == first.pages
    assert it.cache.pool.free_pages == 64 - 4
    it.check()


def test_insert_shorter_then_longer_then_diverging_accounts_for_every_page(bench):
    it = bench(page_size=4)
    for tokens in (run((0, 8)), run((0, 6)), run((0, 16)), run((0, 9), (50, 60)), run((0, 2), (90, 99))):
        it.put(*tokens)
        it.check()
    pool = it.cache.pool
    assert pool.free_pages + it.cache.tree.evictable_pages == pool.num_pages
    assert it.cached(*run((0, 16))) == 16
    assert it.cached(*run((0, 9), (50, 60))) == 16


def test_namespaces_never_share_nodes_whatever_their_fields_spell(bench):
    it = bench()
    one, two = Namespace(tenant_salt="a", user_key="bc"), Namespace(tenant_salt="ab", user_key="c")
    it.put(1, 2, 3, namespace=one)
    assert it.cached(1, 2, 3, namespace=two) == 0
    assert it.cached(1, 2, 3) == 0
    assert it.cached(1, 2, 3, namespace=one) == 3


def test_namespace_with_new_weights_of_the_same_name_never_matches_old_ones(bench):
    it = bench()
    it.put(1, 2, 3, namespace=Namespace(adapter="x@1", weight_version="1"))
    assert it.cached(1, 2, 3, namespace=Namespace(adapter="x@2", weight_version="1")) == 0
    assert it.cached(1, 2, 3, namespace=Namespace(adapter="x@1", weight_version="2")) == 0


def test_flush_of_one_namespace_leaves_the_others_and_what_is_held(bench):
    it = bench()
    other = Namespace(user_key="other")
    it.put(1, 2, 3)
    it.put(1, 2, 3, namespace=other)
    holder = it.client(1, 2)
    assert it.cache.flush(it.namespace) == 1
    assert it.cached(1, 2, 3, namespace=other) == 3
    it.check()
    it.drop(holder)
    assert it.cache.flush() == 5
    it.check()
    assert it.cache.pool.free_pages == it.cache.pool.num_pages
    assert not it.cache.tree.roots, "empty namespaces are forgotten"


def test_pending_nodes_match_in_their_step_and_not_outside(bench):
    it = bench()
    writer = it.client(1, 2, 3)
    assert writer.compute()
    assert it.cache.tree.insert_pending(writer.receipt, pack(writer.tokens), writer.pages, writer=1)
    key = pack((1, 2, 9))
    assert it.cache.tree.match(it.namespace, key, 3).tokens == 2
    assert it.cache.tree.match(it.namespace, key, 3, pending=False).tokens == 0
    it.cache.commit_pending()
    writer.tree_pages = 3
    it.check()
    assert it.cache.tree.match(it.namespace, key, 3, pending=False).tokens == 2


def test_pending_nodes_dropped_after_a_failed_step_leave_nothing(bench):
    it = bench()
    writer = it.client(1, 2, 3)
    assert writer.compute()
    assert it.cache.tree.insert_pending(writer.receipt, pack(writer.tokens), writer.pages, writer=1)
    child = it.client(1, 2, 9)
    assert child.cached_tokens == 2
    it.drop(child)
    it.drop(writer)
    it.cache.tree.drop_pending()
    it.check()
    assert it.cached(1, 2, 3) == 0
    assert it.cache.pool.free_pages == 64


def test_insert_below_a_pending_node_is_left_to_the_request(bench):
    it = bench()
    writer, rival = it.client(1, 2, 3), it.client(1, 2, 3, 4)
    assert writer.compute()
    assert rival.compute()
    assert it.cache.tree.insert_pending(writer.receipt, pack(writer.tokens), writer.pages, writer=1)
    rival.adopt()
    assert rival.tree_pages == 0
    it.cache.commit_pending()
    writer.tree_pages = 3
    it.check()


def test_peek_changes_neither_nodes_nor_recency(bench):
    it = bench()
    it.put(1, 2, 3)
    before = [(node.serial, node.last_access, node.key) for node in it.cache.tree.walk()]
    assert it.cached(1, 2) == 2
    assert [(node.serial, node.last_access, node.key) for node in it.cache.tree.walk()] == before


@pytest.mark.parametrize("seed", range(20))
def test_common_bytes_of_random_keys_equals_a_loop(seed):
    rng = random.Random(seed)
    left = bytes(rng.randrange(2) for _ in range(rng.randrange(40)))
    right = bytes(rng.randrange(2) for _ in range(50))
    start = rng.randrange(5)
    end = rng.randrange(start, 50)
    expected = 0
    for a, b in zip(left, right[start:end], strict=False):
        if a != b:
            break
        expected += 1
    assert common_bytes(left, right, start, end) == expected


class TreeStorm:
    """Random clients over a small alphabet, beside a model: what was matched must have been cached before."""

    def __init__(self, bench, seed, page_size):
        self.rng = random.Random(seed)
        self.it = bench(num_pages=self.rng.choice((24, 48)), page_size=page_size, eviction=self.rng.choice(EVICTIONS))
        self.size = page_size
        self.ever: set[tuple[int, ...]] = set()

    def tokens(self):
        length = self.rng.randrange(1, 6 * self.size + 3)
        block = [self.rng.randrange(2) for _ in range(1 + length // self.size)]
        tokens = [block[i // self.size] for i in range(length)]
        if self.rng.random() < 0.3:
            tokens[self.rng.randrange(length)] = 7
        return tuple(tokens)

    def arrive(self):
        tokens = self.tokens()
        if len(self.it.clients) > 8:
            self.leave()
        client = self.it.client(*tokens)
        assert client.cached_tokens % self.size == 0
        for end in range(self.size, client.cached_tokens + 1, self.size):
            assert tokens[:end] in self.ever, "matched what nobody computed"
        assert client.cached_tokens <= len(tokens)
        if not client.compute():
            self.it.drop(client)

    def adopt(self):
        if self.it.clients:
            client = self.rng.choice(self.it.clients)
            client.adopt()
            assert client.tree_pages == client.computed // self.size
            self.ever.update(client.tokens[:end] for end in range(self.size, client.computed + 1, self.size))

    def leave(self):
        if self.it.clients:
            self.it.drop(self.rng.choice(self.it.clients))

    def evict(self):
        wanted = self.rng.randrange(1, 5)
        before = self.it.cache.tree.evictable_pages
        gone = self.it.cache.tree.evict(wanted)
        self.it.cache.pool.free(gone)
        assert len(gone) >= min(wanted, before)

    def flush(self):
        if self.rng.random() < 0.05:
            self.it.cache.flush()

    def blow(self, operations):
        for _ in range(operations):
            self.rng.choice((self.arrive, self.arrive, self.adopt, self.adopt, self.leave, self.evict, self.flush))()
            self.it.check()
        while self.it.clients:
            self.leave()
        self.it.check()
        pool = self.it.cache.pool
        assert pool.free_pages + self.it.cache.tree.evictable_pages == pool.num_pages


EVICTIONS = ("lru", "lfu", "slru", "fifo", "priority")


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("seed", range(5))
def test_tree_in_a_storm_of_operations_keeps_every_invariant(bench, page_size, seed):
    TreeStorm(bench, seed, page_size).blow(400)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_tree_after_ten_thousand_operations_keeps_every_invariant(bench, page_size):
    TreeStorm(bench, 99, page_size).blow(10_000)
