from __future__ import annotations

import pytest

from sglang_dsl.runtime.cache.keys import pack


def touch(it, *tokens):
    client = it.client(*tokens)
    for node in client.receipt.node.path():
        node.hits += 1
    it.drop(client)


def survivors(it, *prompts):
    return [prompt for prompt in prompts if it.cached(*prompt) == len(prompt)]


A, B, C = (1, 2), (3, 4), (5, 6)


@pytest.mark.parametrize(
    ("policy", "stays"),
    [("lru", [A, C]), ("lfu", [A, B]), ("slru", [A, B]), ("fifo", [B, C])],
)
def test_eviction_policy_takes_its_own_first_victim(bench, policy, stays):
    it = bench(eviction=policy)
    for prompt in (A, B, C):
        it.put(*prompt)
    for prompt in (B, B, A, A, C):
        touch(it, *prompt)
    it.cache.pool.free(it.cache.tree.evict(1))
    assert survivors(it, A, B, C) == stays
    it.check()


def test_eviction_by_priority_takes_the_lowest_and_keeps_ancestors_of_high_ones(bench):
    it = bench(eviction="priority")
    for prompt, priority in ((A, 5), (B, 0), (C, 3)):
        client = it.client(*prompt)
        assert client.compute()
        client.cache.adopt(client.receipt, pack(prompt), client.pages, priority=priority)
        client.tree_pages = 2
        it.drop(client)
    it.cache.pool.free(it.cache.tree.evict(3))
    assert survivors(it, A, B, C) == [A]
    it.check()


def test_eviction_takes_leaves_before_the_prefix_they_share(bench):
    it = bench()
    it.put(1, 2, 3)
    it.put(1, 2, 4)
    it.cache.pool.free(it.cache.tree.evict(2))
    assert it.cached(1, 2) == 2
    it.check()


def test_eviction_of_many_touched_nodes_keeps_its_queue_small(bench):
    it = bench()
    for prompt in (A, B, C):
        it.put(*prompt)
    for _ in range(2000):
        touch(it, *A)
    assert len(it.cache.tree._queue._heap) < 200
    it.cache.pool.free(it.cache.tree.evict(4))
    assert survivors(it, A, B, C) == [A]


def test_eviction_spares_a_hinted_node_while_there_is_another(bench):
    it = bench()
    it.put(*A)
    it.put(*B)
    node = it.cache.tree.match(it.namespace, pack(A), 2).node
    it.cache.tree.hint(node, 1)
    touch(it, *B)
    it.cache.pool.free(it.cache.tree.evict(1))
    assert survivors(it, A, B) == [A]
    it.cache.tree.hint(node, -1)
    it.put(*B)
    it.cache.pool.free(it.cache.tree.evict(1))
    assert survivors(it, A, B) == [B], "without its hint it is the oldest"


def test_priority_of_a_request_reaches_the_prefix_it_shares(bench):
    it = bench(eviction="priority")
    it.put(1, 2)
    it.put(3, 4)
    client = it.client(1, 2, 3)
    assert client.compute()
    client.tree_pages += client.cache.adopt(client.receipt, pack((3,)), client.pages[2:], priority=9)
    it.drop(client)
    it.cache.pool.free(it.cache.tree.evict(1))
    assert survivors(it, (1, 2, 3), (3, 4)) == [(1, 2, 3)]
    it.cache.pool.free(it.cache.tree.evict(1))
    assert it.cached(1, 2) == 2
    it.check()


def test_uses_of_an_evicted_end_count_for_what_it_ended(bench):
    it = bench(eviction="lfu")
    it.put(1, 2)
    it.put(1, 2, 3)
    it.put(1, 2, 4)
    it.put(8, 9)
    for tokens in ((1, 2, 3), (1, 2, 3), (1, 2, 4)):
        touch(it, *tokens)
    touch(it, 8, 9)
    for _ in range(3):
        if it.cached(1, 2, 3) == 3 or it.cached(1, 2, 4) == 3:
            it.cache.pool.free(it.cache.tree.evict(1))
    assert it.cached(1, 2) == 2
    it.check()


def test_recency_of_an_evicted_end_is_that_of_what_it_ended(bench):
    it = bench()
    it.put(1, 2, 3)
    it.put(1, 2, 4)
    it.put(8, 9)
    for tokens in ((1, 2, 3), (1, 2, 4)):
        touch(it, *tokens)
    it.cache.pool.free(it.cache.tree.evict(2))
    assert (it.cached(8, 9), it.cached(1, 2, 3)) == (0, 3)
    it.check()


@pytest.mark.parametrize(("hits", "protected"), [(1, False), (2, True)])
def test_node_used_twice_is_in_the_protected_segment(bench, hits, protected):
    it = bench(eviction="slru")
    it.put(*A)
    for _ in range(hits):
        touch(it, *A)
    it.put(*B)
    it.cache.pool.free(it.cache.tree.evict(1))
    assert survivors(it, A, B) == [A if protected else B]


def test_evicted_and_used_pages_are_counted(bench):
    it = bench(num_pages=8)
    it.put(*range(6))
    assert (it.cache.evicted_pages, it.cache.peak_used_pages) == (0, 0)
    client = it.client(50, 51, 52)
    assert client.compute()
    it.cache.note_use()
    assert (it.cache.evicted_pages, it.cache.peak_used_pages) == (6, 3), "a leaf goes as a whole"
    it.drop(client)
    it.cache.note_use()
    assert it.cache.peak_used_pages == 3
    it.put(1, 2)
    assert it.cache.flush() == 2
    assert it.cache.allocate_each([1] * 9) is None
    assert it.cache.evicted_pages == 6


def test_of_a_path_that_grew_in_parts_only_the_last_part_goes_at_a_time(bench):
    it = bench()
    for end in (3, 5, 9):
        it.put(*range(1, end + 1))
    assert it.cached(*range(1, 10)) == 9
    for left in (5, 3, 0):
        it.cache.pool.free(it.cache.tree.evict(1))
        assert it.cached(*range(1, 10)) == left
        it.check()


@pytest.mark.parametrize(("at", "lefts"), [(1, (5, 3, 1)), (3, (5, 3)), (4, (5, 4))])
def test_parts_of_a_path_are_the_same_where_it_was_split(bench, at, lefts):
    it = bench()
    for end in (3, 5, 9):
        it.put(*range(1, end + 1))
    it.put(*range(1, at + 1), 77)
    for left in lefts:
        it.cache.pool.free(it.cache.tree.evict(1))
        assert it.cached(*range(1, 10)) == left
        it.check()


def test_uses_of_a_path_count_for_what_continues_it(bench):
    it = bench(eviction="lfu")
    it.put(1, 2)
    for _ in range(3):
        touch(it, 1, 2)
    it.put(1, 2, 3, 4)
    it.put(8, 9)
    touch(it, 8, 9)
    it.cache.pool.free(it.cache.tree.evict(1))
    assert (it.cached(1, 2, 3, 4), it.cached(8, 9)) == (4, 0)
