from __future__ import annotations

import pytest

from sglang_dsl.errors import IntegrityError
from sglang_dsl.runtime.cache.keys import pack


def test_check_of_a_leak_names_pages_and_their_last_owner(bench):
    it = bench(num_pages=4)
    page = it.cache.pool.allocate_each([42] * 1)[0]
    with pytest.raises(IntegrityError, match=rf"1 pages are leaked; page -> last owner: \{{{page}: 42\}}"):
        it.check()


def test_check_of_a_page_in_two_places_names_both(bench):
    it = bench()
    one, two = it.client(1, 2), it.client(3, 4)
    assert one.compute()
    assert two.compute()
    two.pages[0] = one.pages[0]
    with pytest.raises(IntegrityError, match="two places: c0 and c1"):
        it.check()


def test_check_of_a_row_that_was_not_repointed_fails(bench):
    it = bench()
    it.put(1, 2)
    client = it.client(1, 2)
    client.pages[1] = client.pages[0]
    with pytest.raises(IntegrityError, match="not those of its path"):
        it.check()


def test_check_of_a_lost_lock_names_its_owner(bench):
    it = bench()
    it.put(1, 2)
    it.clients.remove(it.client(1, 2))
    with pytest.raises(IntegrityError, match="locks nobody holds"):
        it.check()


def test_check_of_a_wrong_lock_count_fails(bench):
    it = bench()
    it.put(1, 2)
    client = it.client(1, 2)
    client.receipt.node.lock += 1
    client.receipt.node.parent.lock += 1
    with pytest.raises(IntegrityError, match="receipts say otherwise"):
        it.check()


def test_check_of_wrong_evictable_count_fails(bench):
    it = bench()
    it.put(1, 2)
    it.cache.tree.evictable_pages -= 1
    with pytest.raises(IntegrityError, match="evictable"):
        it.check()


def test_check_of_tree_pages_used_without_a_lock_fails(bench):
    it = bench()
    it.put(1, 2)
    client = it.client(1, 2)
    it.cache.tree.release(client.receipt)
    client.receipt = None
    with pytest.raises(IntegrityError, match="without a lock"):
        it.check()


def test_check_of_a_page_that_is_held_and_free_at_once_fails(bench):
    it = bench()
    client = it.client(1, 2, 3)
    assert client.compute()
    it.check()
    it.cache.pool.free(client.pages[-1:])
    with pytest.raises(IntegrityError):
        it.check()


def test_check_of_a_pending_node_that_nobody_holds_or_knows_fails(bench):
    it = bench()
    client = it.client(1, 2, 3)
    assert client.compute()
    assert it.cache.tree.insert_pending(client.receipt, pack((1, 2)), client.pages[:2], writer=1)
    node = client.receipt.node
    it.check()
    it.cache.tree.pending.clear()
    with pytest.raises(IntegrityError, match="pending node"):
        it.check()
    it.cache.tree.pending.append(node)
    it.check()
    node.lock = 0
    with pytest.raises(IntegrityError, match="pending node"):
        it.check()


def test_check_of_a_locked_node_below_an_unlocked_one_fails(bench):
    it = bench()
    it.put(1, 2)
    it.put(1, 2, 3)
    it.put(1, 2, 4)
    it.client(1, 2, 3)
    it.check()
    it.cache.tree.match(it.namespace, pack((1, 2)), 2).node.lock = 0
    with pytest.raises(IntegrityError, match="outlives its parent"):
        it.check()


def test_pending_node_that_is_still_held_cannot_be_dropped(bench):
    it = bench()
    client = it.client(1, 2, 3)
    assert client.compute()
    assert it.cache.tree.insert_pending(client.receipt, pack((1, 2)), client.pages[:2], writer=1)
    with pytest.raises(IntegrityError, match="still used"):
        it.cache.tree.drop_pending()


def test_check_of_leased_pages_counted_wrong_fails(bench):
    it = bench()
    it.put(1, 2)
    it.cache.leases.open(it.namespace, pack((1, 2)), 1)
    it.check()
    it.cache.leases.leased_pages += 1
    with pytest.raises(IntegrityError, match="counted as leased"):
        it.check()
