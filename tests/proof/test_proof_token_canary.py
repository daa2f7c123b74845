"""Every slot of the pool knows its token, position and predecessor, and is looked at before every forward."""

from __future__ import annotations

import random

import pytest

from sglang_dsl.errors import CancelledError, EngineError
from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.runtime.schedule.request import GenerateRequest, ScoreRequest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

GREEDY = SamplingSpec(temperature=0, max_tokens=6, ignore_eos=True)


class Waiting:
    """A Sink that keeps the end."""

    def __init__(self):
        self.ends = []

    def started(self):
        pass

    def text(self, delta, token_ids):
        pass

    def done(self, result):
        self.ends.append(result)


def paths_of_a_tree(count, seed, longest=30, deepest=110):
    """Prompts of bytes that share beginnings of every length; some are equal."""
    rng = random.Random(seed)
    nodes = [[rng.randrange(97, 123) for _ in range(20)]]
    while len(nodes) < count:
        parent = rng.choice(nodes[-40:])[:deepest]
        nodes.append(parent + [rng.randrange(97, 123) for _ in range(rng.randrange(longest))])
    rng.shuffle(nodes)
    return nodes


def settle(tiny):
    while tiny.engine.turn():
        pass


def submit(tiny, requests):
    sinks = [Waiting() for _ in requests]
    tiny.engine.submit(list(zip(requests, sinks, strict=True)))
    return sinks


def generations(tiny, prompts):
    space = tiny.engine.info.namespace
    return [
        GenerateRequest(request_id=f"g{i}", prompt_ids=p, sampling=GREEDY, namespace=space)
        for i, p in enumerate(prompts)
    ]


@pytest.mark.parametrize("page_size", [1, 16])
def test_canary_on_a_real_model_in_a_storm_finds_nothing_and_answers_are_those_of_runs_alone(open_tiny, page_size):
    """Bitwise: batch-invariant mode, so that a single wrong key or value anywhere would show."""
    prompts = paths_of_a_tree(60, seed=3)
    alone = open_tiny(batch_invariant=True, prefix_cache=False)
    expected = [alone.engine.generate(p, GREEDY).token_ids for p in prompts]

    tiny = open_tiny(
        batch_invariant=True, page_size=page_size, pool_tokens=512, prefill_chunk_tokens=16, max_batch_tokens=64,
        max_running=12, cascade_min_tokens=16, retract_every_steps=3,
    )  # fmt: skip
    space = tiny.engine.info.namespace
    choices = [[97, 98], [97], [97, 98, 99], [120]]
    scores = [
        ScoreRequest(request_id=f"s{i}", prompt_ids=p, continuations=choices, namespace=space)
        for i, p in enumerate(prompts[:10])
    ]
    doomed = [
        GenerateRequest(request_id=f"d{i}", prompt_ids=p, sampling=GREEDY, namespace=space)
        for i, p in enumerate(prompts[10:20])
    ]
    sinks = submit(tiny, [*generations(tiny, prompts), *scores, *doomed])
    for i in range(len(doomed)):
        tiny.engine.turn()
        tiny.engine.cancel([f"d{i}"])
    settle(tiny)
    ends = [sink.ends[0] for sink in sinks]
    assert tiny.canary.found == []
    assert tiny.canary.slots_checked > 20_000
    assert [end.token_ids for end in ends[:60]] == expected
    for end, prompt in zip(ends[60:70], prompts, strict=False):
        assert end.logprobs == alone.engine.score(prompt, choices).logprobs
    assert sum(isinstance(end, CancelledError) for end in ends[70:]) > 3
    snapshot = tiny.engine.snapshot().scheduler
    assert snapshot.retracted > 5
    assert snapshot.evicted_pages > 0
    assert tiny.engine.snapshot().cached_tokens > 0
    assert snapshot.free_pages + snapshot.evictable_pages == snapshot.total_pages


def swap_pages(plan):
    """A row whose table is in another order: right tokens, wrong positions."""
    row = plan.rows[0]
    if len(row.pages) < 3 or row.start < 2:
        return None
    pages = [row.pages[1], row.pages[0], *row.pages[2:]]
    return plan._replace(rows=[row._replace(pages=pages), *plan.rows[1:]])


def foreign_page(plan):
    """A row that was not re-pointed: it reads a page that another sequence filled at the same position."""
    for one, row in enumerate(plan.rows):
        for other in plan.rows:
            at = row.start - 1
            if 0 <= at < len(other.pages) and other.pages[at] != row.pages[at] and other.start > at:
                pages = [*row.pages[:at], other.pages[at], *row.pages[at + 1 :]]
                return plan._replace(rows=[*plan.rows[:one], row._replace(pages=pages), *plan.rows[one + 1 :]])
    return None


def overwritten_page(plan):
    """A page freed too early and given to somebody else: this step's first row writes into what the second reads."""
    if len(plan.rows) < 2 or plan.rows[1].start < 1:
        return None
    row, victim = plan.rows[0], plan.rows[1]
    pages = [*row.pages[:-1], victim.pages[0]]
    return plan._replace(rows=[row._replace(pages=pages), *plan.rows[1:]])


def wrong_token(plan):
    """A decode row that feeds another token than was sampled."""
    row = plan.rows[-1]
    if len(row.token_ids) > 1:
        return None
    return plan._replace(rows=[*plan.rows[:-1], row._replace(token_ids=[row.token_ids[0] ^ 1])])


def stale_length(plan):
    """A row that begins one position too late, as after a wrong committed length."""
    row = plan.rows[-1]
    if len(row.token_ids) > 1:
        return None
    return plan._replace(rows=[*plan.rows[:-1], row._replace(start=row.start + 1, pages=[*row.pages, row.pages[-1]])])


def lost_mirror(plan):
    """A child's first page without its parent's tail."""
    return plan._replace(mirrors=plan.mirrors[1:]) if plan.mirrors else None


def lost_copy(plan):
    """The same, where the parent was cached."""
    return plan._replace(copies=()) if plan.copies else None


def once(fault):
    planted = []

    def plant(plan):
        changed = None if planted else fault(plan)
        if changed is not None:
            planted.append(changed)
        return changed

    return plant


FAULTS = {
    "swapped pages": (swap_pages, 1),
    "foreign page": (foreign_page, 1),
    "page freed too early": (overwritten_page, 1),
    "wrong token": (wrong_token, 1),
    "stale length": (stale_length, 1),
    "lost mirror": (lost_mirror, 16),
    "lost copy": (lost_copy, 16),
}


@pytest.mark.parametrize("name", FAULTS)
def test_canary_finds_a_planted_fault_before_the_model_computes_with_it(open_tiny, name):
    fault, page_size = FAULTS[name]
    tiny = open_tiny(page_size=page_size)
    stem = list(b"the same beginning of twenty bytes and more")
    prompts = [stem, stem + list(b" one"), stem + list(b" two"), list(b"another beginning altogether, as long")]
    tiny.canary.plant = once(fault)
    submit(tiny, generations(tiny, prompts[:1] if name == "lost copy" else prompts))
    settle(tiny)
    later = submit(tiny, [GenerateRequest(request_id=f"l{i}", prompt_ids=p, sampling=GREEDY,
                                          namespace=tiny.engine.info.namespace)
                          for i, p in enumerate(prompts[1:])])  # fmt: skip
    settle(tiny)
    assert tiny.canary.planted == 1
    assert len(tiny.canary.found) == 1
    assert tiny.engine.health().status == "degraded"
    tiny.engine.check()
    again = tiny.engine.generate(prompts[1], GREEDY)
    assert len(again.token_ids) == 6, "the engine goes on"
    assert all(isinstance(s.ends[0], EngineError) or len(s.ends[0].token_ids) == 6 for s in later)


@pytest.fixture(scope="module")
def answers_of_a_tree():
    """400 prompts of a branching tree, and what each says alone on a cold engine."""
    pytest.importorskip("torch")
    from tiny_engine import open_tiny_engine

    prompts = paths_of_a_tree(400, seed=21)
    alone = open_tiny_engine(batch_invariant=True, prefix_cache=False)
    answers = [alone.engine.generate(p, GREEDY).token_ids for p in prompts]
    alone.engine.close()
    return prompts, answers


@pytest.mark.parametrize("policy", ["fcfs", "longest_prefix", "depth_first", "priority"])
@pytest.mark.parametrize("page_size", [1, pytest.param(16, marks=pytest.mark.long)])
def test_tree_of_four_hundred_prompts_in_a_quarter_of_its_memory_says_what_cold_runs_say(
    open_tiny, answers_of_a_tree, policy, page_size
):
    prompts, answers = answers_of_a_tree
    needed = len({tuple(p[:n]) for p in prompts for n in range(1, len(p) + 1)}) + 400 * GREEDY.max_tokens
    tiny = open_tiny(
        batch_invariant=True, page_size=page_size, pool_tokens=needed // 4 // 16 * 16, prefill_chunk_tokens=128,
        max_batch_tokens=256, retract_every_steps=3, policy=policy, check_integrity=False,
    )  # fmt: skip
    sinks = submit(tiny, generations(tiny, prompts))
    settle(tiny)
    assert [sink.ends[0].token_ids for sink in sinks] == answers
    assert tiny.canary.found == []
    snapshot = tiny.engine.snapshot().scheduler
    assert snapshot.retracted > 10
    assert snapshot.evicted_pages > 100
    tiny.engine.check()
    assert snapshot.free_pages + snapshot.evictable_pages == snapshot.total_pages
