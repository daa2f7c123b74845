from __future__ import annotations

import pytest

from sglang_dsl.runtime.cache.keys import pack


def lease(it, *tokens, children=1):
    return it.cache.leases.open(it.namespace, pack(tokens), children)


def test_lease_of_a_cached_path_keeps_it_until_the_last_child(bench):
    it = bench()
    it.put(1, 2, 3, 4)
    held = lease(it, 1, 2, 3, children=2)
    it.check()
    assert it.cache.tree.evictable_pages == 1, "only what lies below the lease"
    it.cache.leases.count_down(held)
    assert it.cache.tree.evictable_pages == 1
    it.cache.leases.count_down(held)
    assert it.cache.tree.evictable_pages == 4
    assert len(it.cache.leases) == 0
    it.check()


def test_lease_of_a_path_not_yet_computed_grows_with_it(bench):
    it = bench()
    held = lease(it, 1, 2, 3)
    assert it.cache.leases.leased_pages == 0
    for end in (2, 3, 4):
        it.put(*range(1, end + 1))
        it.cache.leases.follow()
        it.check()
    assert it.cache.leases.leased_pages == 3
    assert it.cache.tree.evictable_pages == 1
    it.cache.leases.count_down(held, None)
    it.check()
    assert it.cache.leases.leased_pages == 0
    assert it.cache.tree.evictable_pages == 4


def test_leases_over_one_path_count_its_pages_once(bench):
    it = bench(num_pages=20)
    it.put(*range(12))
    held = [lease(it, *range(12 - i)) for i in range(5)]
    assert it.cache.leases.leased_pages == 12
    assert it.cache.leases.demoted == 0
    it.check()
    for one in held:
        it.cache.leases.count_down(one)
        it.check()
    assert it.cache.leases.leased_pages == 0


def test_lease_above_the_bound_is_a_hint_and_locks_nothing(bench):
    it = bench(num_pages=16)
    it.put(*range(14))
    held = lease(it, *range(14))
    assert it.cache.leases.demoted == 1
    assert it.cache.tree.evictable_pages == 14
    it.check()
    it.cache.leases.count_down(held)
    it.check()


def test_demoted_lease_frees_its_pages_for_others_but_they_go_last(bench):
    it = bench(num_pages=12)
    it.put(1, 2, 3)
    held = lease(it, 1, 2, 3)
    it.put(7, 8, 9)
    assert it.cache.leases.demote(1)
    assert not it.cache.leases.demote(1)
    it.cache.pool.free(it.cache.tree.evict(3))
    assert it.cached(1, 2, 3) == 3
    assert it.cached(7, 8, 9) == 0
    it.cache.pool.free(it.cache.tree.evict(3))
    it.cache.leases.count_down(held)
    it.check()


@pytest.mark.parametrize("children", [1, None])
def test_count_down_of_an_ended_or_unknown_lease_is_ignored(bench, children):
    it = bench()
    it.put(1, 2)
    held = lease(it, 1, 2)
    it.cache.leases.count_down(held)
    it.cache.leases.count_down(held, children)
    it.cache.leases.count_down(12345, children)
    assert it.cache.tree.evictable_pages == 2
    it.check()


def test_lease_inside_a_page_covers_the_whole_pages_before_it(bench):
    it = bench(page_size=4)
    it.put(*range(16))
    lease(it, *range(10))
    assert it.cache.leases.leased_pages == 2
    it.check()


def test_lease_survives_a_split_of_its_node(bench):
    it = bench()
    it.put(1, 2, 3, 4)
    held = lease(it, 1, 2, 3, 4)
    it.put(1, 2, 9)
    it.check()
    assert it.cache.leases.leased_pages == 4
    it.cache.leases.count_down(held)
    it.check()


def test_lease_that_locks_most_is_demoted_first_and_no_more_than_needed(bench):
    it = bench(num_pages=64)
    paths = {"short": (1, 2), "long": (*range(10, 18),), "middle": (*range(20, 24),)}
    for path in paths.values():
        it.put(*path)
    for path in paths.values():
        lease(it, *path)
    assert it.cache.tree.evictable_pages == 0
    assert it.cache.leases.demote(8)
    assert (it.cache.leases.demoted, it.cache.tree.evictable_pages) == (1, 8)
    assert it.cache.leases.leased_pages == 6
    assert it.cache.leases.demote(5)
    assert it.cache.leases.demoted == 3, "one of four pages and one of two"
    it.check()


def test_older_of_two_leases_of_one_length_is_demoted_first(bench):
    it = bench(num_pages=64)
    it.put(1, 2, 3)
    it.put(7, 8, 9)
    for lease_id, path in ((5, (7, 8, 9)), (6, (1, 2, 3))):
        it.cache.leases.open(it.namespace, pack(path), 1, lease_id)
    assert it.cache.leases.demote(1)
    assert it.cache.leases.demoted == 1
    it.cache.pool.free(it.cache.tree.evict(3))
    assert (it.cached(7, 8, 9), it.cached(1, 2, 3)) == (0, 3)
    it.check()


def test_demoted_lease_that_has_ended_protects_nothing_any_more(bench):
    it = bench(num_pages=12)
    it.put(1, 2, 3)
    held = lease(it, 1, 2, 3)
    assert it.cache.leases.demote(1)
    it.cache.leases.count_down(held)
    it.put(7, 8, 9)
    it.cache.pool.free(it.cache.tree.evict(3))
    assert (it.cached(1, 2, 3), it.cached(7, 8, 9)) == (0, 3), "the older goes first"
    it.check()


def test_lease_of_several_children_counts_each(bench):
    it = bench()
    it.put(1, 2)
    held = lease(it, 1, 2, children=3)
    it.cache.leases.count_down(held, 2)
    assert (len(it.cache.leases), it.cache.tree.evictable_pages) == (1, 0)
    it.cache.leases.count_down(held, 2)
    assert (len(it.cache.leases), it.cache.tree.evictable_pages) == (0, 2)


def test_ids_of_leases_are_the_callers_own_or_negative_and_distinct(bench):
    it = bench()
    assert it.cache.leases.open(it.namespace, pack((1, 2)), 1, 7) == 7
    drawn = [lease(it, 1, 2) for _ in range(3)]
    assert len(set(drawn)) == 3
    assert max(drawn) < 0


def test_leases_lock_three_quarters_of_the_pool_at_most_and_no_less(bench):
    it = bench(num_pages=16)
    it.put(*range(12))
    lease(it, *range(12))
    assert (it.cache.leases.leased_pages, it.cache.leases.demoted) == (12, 0)
    it.put(20)
    lease(it, 20)
    assert (it.cache.leases.leased_pages, it.cache.leases.demoted) == (12, 1)
    it.check()


def test_demotion_stops_once_enough_can_be_evicted_and_says_whether_any_lease_locked(bench):
    it = bench(num_pages=64)
    assert not it.cache.leases.demote(1)
    it.put(1, 2, 3)
    lease(it, 1, 2, 3)
    lease(it, 50, 51)  # nothing of it is computed: it locks nothing
    assert it.cache.leases.demote(1)
    assert (it.cache.leases.demoted, it.cache.leases.leased_pages) == (1, 0)
    assert not it.cache.leases.demote(1)


def test_demoted_lease_does_not_lock_again_when_its_path_grows(bench):
    it = bench(num_pages=64)
    it.put(1, 2)
    held = lease(it, 1, 2, 3, 4)
    assert it.cache.leases.demote(1)
    it.put(1, 2, 3, 4)
    it.cache.leases.follow()
    assert it.cache.leases.leased_pages == 0
    assert it.cache.tree.evictable_pages == 4
    it.cache.leases.count_down(held)
    it.check()


def test_lease_grows_by_whole_pages_and_not_beyond_its_path(bench):
    it = bench(num_pages=64, page_size=4)
    lease(it, *range(10))
    it.put(*range(4))
    it.cache.leases.follow()
    assert it.cache.leases.leased_pages == 1
    it.put(*range(40))
    it.cache.leases.follow()
    assert it.cache.leases.leased_pages == 2
    it.put(*range(8), 90, 91, 92, 93)
    it.cache.leases.follow()
    assert it.cache.leases.leased_pages == 2
    it.check()
