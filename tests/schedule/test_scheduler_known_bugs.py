"""Faults of public engines that no other file here is about. Where a fault has its own test elsewhere, that test names it.

Tree and accounting: mini-sglang#142 (row not re-pointed) and mllm#656, sglang#35270 (counts drift) are walked over by the storms of
tests/cache/test_cache_tree.py and test_scheduler_fuzz.py; sglang PR#36848 (lock lost in a split) and #4987 (evict counts) by the
tree's own tests; sglang-omni#1704 (two threads) by the pool's. Not possible here, for want of the feature: overlapped steps
(sglang#14972, #18744), speculation (PR#24175), host tiers (sglang-jax#1618, PR#30053).
"""

from __future__ import annotations

from sglang_dsl.runtime.cache.keys import Namespace, pack
from sglang_dsl.runtime.schedule.step import StepPlan

PROMPT = tuple(range(30))


def live_pages(plan: StepPlan) -> set[int]:
    return {page for row in plan.rows for page in row.pages}


def test_two_equal_prompts_in_one_batch_never_leave_a_live_row_on_a_free_page(lab):
    """sgl-project/mini-sglang#142."""
    it = lab(num_pages=100)
    it.generate("cached", PROMPT, 2)
    it.run()
    for name in ("one", "two"):
        it.generate(name, PROMPT, 8, prompt_logprobs=0)
    steps = 0
    while (plan := it.scheduler.step(it.now)) is not None:
        assert not live_pages(plan) & set(it.scheduler.cache.pool.free_list())
        it.land(plan)
        steps += 1
    assert steps == 8
    it.expect_cold_outputs()
    it.expect_all_released()


def test_pages_of_a_match_are_the_requests_own_list(lab):
    """sgl-project/sglang PR#26177: what a caller appends to must not be the tree's."""
    it = lab()
    it.generate("one", PROMPT, 3)
    it.run()
    tree, key = it.scheduler.cache.tree, pack(PROMPT)
    before = tree.match(Namespace(), key, 30).pages
    it.generate("two", PROMPT, 6)
    it.turn()
    it.turn()
    assert not {id(node.pages) for node in tree.walk()} & {id(row.pages) for row in it.worker.plans[-1].rows}
    it.run()
    assert tree.match(Namespace(), key, 30).pages == before


def test_retraction_of_everybody_and_a_flush_free_every_page(lab):
    """sgl-project/sglang#33783: what was retracted must not stay resident."""
    it = lab()
    for i in range(4):
        it.generate(f"r{i}", (*PROMPT, i), 20)
    it.turn()
    it.turn()
    life = it.scheduler._life
    for seq in list(life.decoding.values()):
        life.retract(seq)
    it.scheduler.check()
    assert it.scheduler.flush() > 0
    assert it.scheduler.snapshot().free_pages == it.scheduler.snapshot().total_pages
    it.run()
    it.expect_cold_outputs()


def test_request_that_ends_with_its_first_token_in_a_mixed_step_leaves_nothing(lab):
    """sgl-project/sglang PR#10871."""
    it = lab(num_pages=200, max_batch_tokens=16, max_running=8)
    it.generate("decoding", PROMPT[:5], 20)
    it.turn()
    for i in range(3):
        it.generate(f"one_token{i}", (*PROMPT, i), 1)
    it.run()
    assert set(it.ended.values()) == {"finished"}
    it.expect_cold_outputs()
    it.expect_all_released()


def test_committed_length_is_counted_and_not_inferred_from_tokens(lab):
    """sgl-project/sglang PR#12224: the last sampled token has no K/V, and no page may be given to the tree for it."""
    it = lab(page_size=4, num_pages=40)
    it.generate("one", PROMPT[:6], 2)
    it.run()
    assert it.scheduler.snapshot().tree_pages == 1, "7 of 8 tokens are computed: one whole page"
    it.expect_all_released()


def test_prompt_longer_than_a_step_runs_alone_and_in_chunks(lab):
    """sgl-project/sglang#9142."""
    it = lab(num_pages=600, max_batch_tokens=64, max_running=8)
    it.generate("long", [i % 50 for i in range(500)], 2)
    it.run()
    assert [len(plan.rows[0].token_ids) for plan in it.worker.plans[:8]] == [64] * 7 + [52]
    it.expect_cold_outputs()


def test_recomputed_tokens_after_retraction_are_no_cache_hits(lab):
    """vllm-project/vllm#25780: hit counters speak of first admissions only."""
    it = lab(retract_every_steps=3)
    it.generate("one", PROMPT, 20)
    it.run()
    snapshot = it.scheduler.snapshot()
    assert (snapshot.accessed_tokens, snapshot.hit_tokens) == (30, 0)
    assert snapshot.retracted > 3
    it.expect_cold_outputs()


def test_matcher_is_reopened_with_what_it_accepted_after_a_retraction(lab):
    """sgl-project/sglang PR#27017: the state of a sequence is rebuilt, neither kept nor fed twice."""
    it = lab(retract_every_steps=4)
    it.generate("one", PROMPT, 12)
    it.run()
    opens = [opened for plan in it.worker.plans for opened in plan.opens]
    closes = [seq for plan in it.worker.plans for seq in plan.closes]
    assert len(opens) > 2
    assert len(closes) == len(opens) - 1, "closed before each reopening"
    assert [list(o.generated) for o in opens] == [it.tokens["one"][: len(o.generated)] for o in opens]
    assert sorted(len(o.generated) for o in opens) == [len(o.generated) for o in opens]
