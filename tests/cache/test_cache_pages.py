from __future__ import annotations

from threading import Thread

import pytest

from sglang_dsl.errors import IntegrityError, SpecError
from sglang_dsl.runtime.cache.keys import pack
from sglang_dsl.runtime.cache.pages import PagePool, PageState


def test_allocate_more_than_there_is_returns_none_and_takes_nothing():
    pool = PagePool(4, 1)
    assert pool.allocate_each([1] * 5) is None
    assert pool.free_pages == 4


def test_allocate_of_nothing_returns_no_page():
    pool = PagePool(2, 1)
    assert pool.allocate_each([1] * 0) == []
    assert pool.free_pages == 2


def test_allocated_pages_are_distinct_and_remember_their_owner():
    pool = PagePool(6, 1)
    pages = pool.allocate_each([7] * 4)
    assert len(set(pages)) == 4
    assert {pool.last_owner(page) for page in pages} == {7}
    assert pool.request_pages == 4


def test_free_of_a_page_twice_is_refused_and_names_its_owner():
    pool = PagePool(4, 1)
    pages = pool.allocate_each([3] * 2)
    pool.free(pages)
    with pytest.raises(IntegrityError, match="nobody holds it; last owner: 3"):
        pool.free(pages[:1])
    assert pool.free_pages == 4


def test_free_of_one_page_named_twice_is_refused():
    pool = PagePool(4, 1)
    pages = pool.allocate_each([3] * 1)
    with pytest.raises(IntegrityError, match="twice"):
        pool.free(pages * 2)
    assert pool.free_pages == 3


@pytest.mark.parametrize("page", [-1, 4, 99])
def test_free_of_a_foreign_page_is_refused(page):
    with pytest.raises(IntegrityError):
        PagePool(4, 1).free([page])


def test_give_of_a_page_the_tree_has_is_refused():
    pool = PagePool(4, 1)
    pages = pool.allocate_each([1] * 2)
    pool.give(pages)
    with pytest.raises(IntegrityError, match="not a request's"):
        pool.give(pages)
    assert pool.tree_pages == 2
    assert pool.place(pages[0]) is PageState.TREE


def test_counters_always_add_up_to_the_total():
    pool = PagePool(10, 1)
    pages = pool.allocate_each([1] * 6)
    pool.give(pages[:3])
    pool.free(pages[2:4])
    assert (pool.free_pages, pool.tree_pages, pool.request_pages) == (6, 2, 2)


def test_pool_used_from_a_second_thread_is_refused():
    pool = PagePool(4, 1)
    pool.allocate_each([1] * 1)
    seen = []

    def intrude():
        try:
            pool.allocate_each([2] * 1)
        except IntegrityError as error:
            seen.append(str(error))

    thread = Thread(target=intrude)
    thread.start()
    thread.join()
    assert "belongs to thread" in seen[0]
    assert pool.free_pages == 3


@pytest.mark.parametrize("ids", [[-1], [2**32], ["x"], [1.5]])
def test_pack_of_what_are_no_token_ids_is_refused(ids):
    with pytest.raises(SpecError, match="token ids"):
        pack(ids)


def test_owner_of_a_page_is_who_had_it_last_and_nobody_for_what_is_no_page():
    pool = PagePool(4, 1)
    [page] = pool.allocate_each([7])
    assert pool.last_owner(page) == 7
    pool.free([page])
    assert pool.last_owner(page) == 7
    assert pool.last_owner(-1) == pool.last_owner(4) == -1
