"""The order of branches is that of the tuples of their indices, however they share what lies around them."""

from __future__ import annotations

import random
from itertools import product

from sglang_dsl.runtime.schedule.request import BranchOrder


def test_branches_are_ordered_like_tuples_of_their_indices():
    rng = random.Random(2)
    known = [(BranchOrder(), ())]
    for _ in range(60):
        above, indices = rng.choice(known)
        index = rng.randrange(3)
        known.append((BranchOrder(above, index), (*indices, index)))
    for (one, mine), (two, others) in product(known, known):
        assert one.indices() == mine
        assert (one < two, one == two, one > two) == (mine < others, mine == others, mine > others)
        assert (one < others, one == others, one > others) == (mine < others, mine == others, mine > others)
        assert (hash(one) == hash(two)) or mine != others
    assert sorted(one for one, _ in known) == [one for one, _ in sorted(known, key=lambda pair: pair[1])]


def test_branches_of_different_objects_with_equal_indices_are_equal():
    one, two = (BranchOrder(BranchOrder(BranchOrder(), 1), 2) for _ in range(2))
    assert one == two
    assert not one < two
    assert one != BranchOrder(BranchOrder(BranchOrder(), 2), 2)
    assert BranchOrder(BranchOrder(), 1) < one
