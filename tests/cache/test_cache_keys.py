"""Token ids that continue each other: what they are equals a plain list, whatever they share."""

from __future__ import annotations

import random

import pytest

from sglang_dsl.errors import SpecError
from sglang_dsl.runtime.cache.keys import COPIED_BRANCHINGS, AlikeIds, TokenIds, pack


def same(ids, plain):
    """Everything that can be asked of `ids`."""
    assert len(ids) == len(plain)
    assert list(ids) == ids.tokens() == plain
    assert ids.packed() == pack(plain)
    assert ids == tuple(plain)
    assert ids == plain
    assert ids == TokenIds(plain)
    assert ids != [*plain, 1]
    assert ids != TokenIds([*plain[:-1], 999])
    assert ids.highest == max(plain, default=-1)
    assert AlikeIds(ids) == AlikeIds(plain)
    assert hash(AlikeIds(ids)) == hash(AlikeIds(tuple(plain)))
    assert [ids[i] for i in range(-len(plain), len(plain))] == plain * 2
    assert ids[1:-1] == plain[1:-1]
    assert ids[-3:] == plain[-3:]


def test_ids_continued_and_branched_at_random_are_what_a_list_is():
    rng = random.Random(4)
    known = [(TokenIds(), [])]
    for _ in range(300):
        ids, plain = rng.choice(known[-12:])
        more = [rng.randrange(200) for _ in range(rng.randrange(4))]
        known.append((ids.then(more), plain + more))
    for ids, plain in known[::3] + known[-40:]:
        same(ids, plain)


def test_ids_that_branched_off_more_often_than_is_followed_are_copied():
    ids, plain = TokenIds([1]), [1]
    for i in range(2 * COPIED_BRANCHINGS + 3):
        ids.then([500 + i])  # somebody else has continued it
        ids, plain = ids.then([i, i + 1]), [*plain, i, i + 1]
        same(ids, plain)


def test_ids_continued_by_nothing_are_the_same_object_and_those_continued_share():
    ids = TokenIds([1, 2])
    assert ids.then(()) is ids
    longer = ids.then([3])
    assert longer.store is ids.store
    assert ids.then([4]).store is not ids.store
    same(ids, [1, 2])
    same(longer, [1, 2, 3])


@pytest.mark.parametrize("index", [-4, 3, 10])
def test_index_out_of_range_is_an_error(index):
    with pytest.raises(IndexError):
        TokenIds([1, 2, 3])[index]


def test_ids_of_other_kinds_are_not_equal():
    ids = TokenIds([1, 2])
    assert ids != "12"
    assert ids != {1, 2}
    assert AlikeIds(ids) != (1, 2)
    assert AlikeIds(ids) != AlikeIds((1, 3))
    assert AlikeIds((1, 3)) != AlikeIds((3, 1))


@pytest.mark.parametrize("wrong", [[-1], [2**32], ["a"], [None]])
def test_ids_that_are_none_are_refused_and_leave_nothing(wrong):
    ids = TokenIds([1])
    with pytest.raises(SpecError, match="whole numbers"):
        ids.then(wrong)
    same(ids, [1])
    same(ids.then([2]), [1, 2])
