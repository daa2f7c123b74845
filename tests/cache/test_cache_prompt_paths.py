"""A prompt that continues another is matched from where that one ended: it finds what a walk from the root finds."""

from __future__ import annotations

import random

import pytest

from sglang_dsl.runtime.cache.keys import TokenIds, pack


def turn(it, ids, *, hold=False):
    """A request with this prompt: found, computed, cached. What it holds, if it is to hold it."""
    client = it.client(*ids.tokens())
    client.cache.tree.release(client.receipt)
    match = it.cache.tree.match(it.namespace, ids.packed(), len(ids), ids=ids)
    client.receipt = it.cache.tree.acquire(match.node, client.name)
    client.pages, client.tree_pages, client.computed = match.pages, len(match.pages), match.tokens
    assert client.compute()
    client.adopt()
    if not hold:
        it.drop(client)
    return client


def found(it, ids, limit=None):
    """What is found from the end of what `ids` continue: the same as from the root."""
    limit = len(ids) if limit is None else limit
    tree, key = it.cache.tree, pack(ids.tokens())
    looked = tree.peek(it.namespace, key, limit, ids=ids)
    assert looked[1] == tree.peek(it.namespace, key, limit)[1]
    match = tree.match(it.namespace, key, limit, ids=ids)
    again = tree.match(it.namespace, key, limit)
    assert (match.tokens, match.pages) == (again.tokens, again.pages)
    assert match.tokens == looked[1]
    it.check()
    return match.tokens


def conversation(it, rng, turns):
    """Ids of a growing prompt with a branch at every turn, so that it passes as many nodes; now and then the branch comes first."""
    size = it.cache.page_size
    ids = TokenIds([1] * size)
    said = [ids]
    for number in range(turns):
        more, aside = [rng.randrange(50) for _ in range(size * 2)], [rng.randrange(50, 99)] * size
        if number % 12 == 11:
            branch = ids.then(aside)
            turn(it, branch)
            ids = ids.then(more)
            turn(it, ids)
        else:
            longer = ids.then(more)
            turn(it, longer)
            turn(it, ids.then(aside))
            ids = longer
        said.append(ids)
    return said


@pytest.mark.parametrize("page_size", [1, 4])
def test_continued_prompt_finds_what_is_there(bench, page_size):
    it = bench(num_pages=400, page_size=page_size)
    said = conversation(it, random.Random(1), 45)
    for ids in said[2:]:
        assert found(it, ids) == len(ids)
        assert found(it, ids.then([200] * page_size)) == len(ids)
        assert found(it, ids, len(ids) - 1) == (len(ids) - 1) // page_size * page_size


def test_continued_prompt_is_not_matched_beyond_its_limit_nor_beyond_where_it_branched_off(bench):
    it = bench(num_pages=400)
    said = conversation(it, random.Random(2), 20)
    for limit in range(0, len(said[-1]), 3):
        assert found(it, said[-1], limit) == limit
    other = said[12].then([300]).then([301])
    assert found(it, other) == len(said[12])
    turn(it, other)
    assert found(it, other.then([302])) == len(other)


def test_continued_prompt_of_another_namespace_finds_nothing(bench):
    it = bench(num_pages=400)
    said = conversation(it, random.Random(3), 20)
    it.namespace = type(it.namespace)(user_key="another")
    assert found(it, said[-1]) == 0


@pytest.mark.parametrize("evicted", [1, 5, 12, 30, 60, 100])
@pytest.mark.parametrize("page_size", [1, 4])
def test_continued_prompt_after_an_eviction_finds_what_is_left(bench, evicted, page_size):
    it = bench(num_pages=400, page_size=page_size)
    said = conversation(it, random.Random(4), 45)
    it.cache.pool.free(it.cache.tree.evict(evicted))
    for ids in reversed(said):
        found(it, ids)
    for ids in said[2:]:
        turn(it, ids)
        assert found(it, ids) == len(ids)


def test_continued_prompt_after_a_flush_finds_what_was_held(bench):
    it = bench(num_pages=400)
    said = conversation(it, random.Random(5), 20)
    held = turn(it, said[9], hold=True)
    it.cache.flush()
    assert found(it, said[-1]) == len(said[9])
    it.drop(held)
    it.cache.flush()
    assert found(it, said[-1]) == 0
    assert it.cache.pool.free_pages == it.cache.pool.num_pages


@pytest.mark.parametrize("seed", range(4))
def test_growing_and_branching_prompts_under_eviction_are_found_as_from_the_root(bench, seed):
    rng = random.Random(seed)
    it = bench(num_pages=150, page_size=rng.choice((1, 2)))
    known = [TokenIds([1] * 4)]
    holds = []
    for step in range(150):
        ids = rng.choice(known[-6:]).then([rng.randrange(3) for _ in range(rng.randrange(1, 7))])
        if len(ids) > 100:
            known = [TokenIds([step] * 4)]
            continue
        known.append(ids)
        if it.cache.available_pages * it.cache.page_size > 110:
            client = turn(it, ids, hold=rng.random() < 0.3)
            if client in it.clients:
                holds.append(client)
        if len(holds) > 3:
            it.drop(holds.pop(0))
        if rng.random() < 0.2:
            it.cache.pool.free(it.cache.tree.evict(rng.randrange(20)))
        found(it, rng.choice(known))
        found(it, ids)
