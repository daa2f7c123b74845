"""What is computed once: parents and children of one step, forks, repeats, and what they keep in memory."""

from __future__ import annotations

import pytest

PREAMBLE = tuple(i % 50 for i in range(300))


def suffix(branch):
    return (branch, branch + 1, branch % 3)


def test_parent_and_children_of_one_step_share_one_forward(lab):
    it = lab(num_pages=1000, cascade_min_tokens=256)
    for branch in range(40):
        it.generate(f"b{branch}", PREAMBLE + suffix(branch), 4)
    plan = it.turn()
    assert sum(len(row.token_ids) for row in plan.rows) <= 300 + 40 * 3
    assert len(plan.samples) == 40
    group = plan.levels[0][0]
    assert (group.start, group.end) == (0, 300)
    assert group.end_row - group.first_row == 39, "all but the row that computes the preamble"
    it.run()
    it.expect_cold_outputs()
    it.expect_all_released()


def test_forty_way_fork_keeps_the_preamble_once(lab):
    it = lab(num_pages=1000)
    for branch in range(40):
        it.generate(f"b{branch}", PREAMBLE + suffix(branch), 8)
    it.run()
    private = 40 * (3 + 8)
    assert it.scheduler.snapshot().peak_used_pages <= 300 + private
    it.expect_all_released()


def test_children_of_a_prompt_longer_than_the_budget_wait_for_it(lab):
    it = lab(num_pages=1000, max_batch_tokens=64, max_running=50)
    for branch in range(10):
        it.generate(f"b{branch}", PREAMBLE + suffix(branch), 3)
    it.run()
    assert it.scheduler.snapshot().computed_tokens <= 300 + 10 * 3
    it.expect_cold_outputs()


def test_children_wait_for_a_prefix_in_chunks_although_the_budget_has_room(lab):
    it = lab(num_pages=1000, prefill_chunk_tokens=64, max_batch_tokens=1024)
    for branch in range(6):
        it.generate(f"b{branch}", PREAMBLE + suffix(branch), 3)
    it.generate("stranger", PREAMBLE[::-1][:20], 3)
    assert len(it.turn().rows) == 2, "the leader's first chunk, and who shares nothing with it"
    it.run()
    assert it.scheduler.snapshot().computed_tokens == 300 + 6 * 3 + 20
    it.expect_cold_outputs()


def test_nested_forks_of_one_step_share_at_every_depth(lab):
    it = lab(num_pages=1000, cascade_min_tokens=20)
    for left in range(3):
        for right in range(3):
            middle = tuple((left * 7 + i) % 50 for i in range(30))
            it.generate(f"{left}{right}", PREAMBLE[:100] + middle + (right, 9), 3)
    plan = it.turn()
    assert sum(len(row.token_ids) for row in plan.rows) == 100 + 3 * 30 + 9 * 2
    assert len(plan.levels) == 2
    it.run()
    it.expect_cold_outputs()


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_children_with_an_empty_suffix_sample_from_one_row(lab, page_size):
    it = lab(num_pages=400 // page_size * 4, page_size=page_size)
    prompt = PREAMBLE[:37]
    for branch in range(6):
        it.generate(f"b{branch}", prompt, 4)
    plan = it.turn()
    assert len(plan.rows) == 1
    assert len(plan.samples) == 6
    assert {point.row for point in plan.samples} == {0}
    it.run()
    it.expect_cold_outputs()
    it.expect_all_released()


@pytest.mark.parametrize("page_size", [1, 16])
def test_children_with_an_empty_suffix_of_a_cached_parent_recompute_it_once(lab, page_size):
    it = lab(num_pages=800 // page_size, page_size=page_size)
    prompt = PREAMBLE[:48]
    it.generate("parent", prompt, 2)
    it.run()
    before = it.scheduler.snapshot().computed_tokens
    for branch in range(5):
        it.generate(f"b{branch}", prompt, 3)
    plan = it.turn()
    assert len(plan.rows) == 1
    assert it.scheduler.snapshot().computed_tokens - before == 1
    assert [it.admitted(f"b{branch}").computed_tokens for branch in range(5)] == [1, 0, 0, 0, 0]
    it.run()
    it.expect_cold_outputs()


@pytest.mark.parametrize("page_size", [4, 16])
def test_fork_inside_a_page_mirrors_the_parents_tail_into_each_child(lab, page_size):
    it = lab(num_pages=200, page_size=page_size)
    fork_at = 2 * page_size + 3
    long_tail = tuple(range(40))
    it.generate("leader", PREAMBLE[:fork_at] + long_tail, 3)
    it.generate("child", (*PREAMBLE[:fork_at], 49, 48), 3)
    plan = it.turn()
    assert len(plan.mirrors) == 3
    assert it.admitted("child").cached_tokens == fork_at
    it.run()
    it.expect_cold_outputs()
    it.expect_all_released()


@pytest.mark.parametrize("page_size", [4, 16])
def test_fork_inside_a_cached_page_copies_it(lab, page_size):
    it = lab(num_pages=200, page_size=page_size)
    fork_at = 2 * page_size + 3
    it.generate("leader", PREAMBLE[:fork_at] + tuple(range(40)), 3)
    it.run()
    it.generate("child", (*PREAMBLE[:fork_at], 49, 48), 3)
    plan = it.turn()
    assert [copy.tokens for copy in plan.copies] == [3]
    assert it.admitted("child").cached_tokens == fork_at
    it.run()
    it.expect_cold_outputs()
    it.expect_all_released()


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_fork_chain_inside_one_page_reads_what_each_ancestor_wrote(lab, page_size):
    it = lab(num_pages=300, page_size=page_size)
    stem = PREAMBLE[: 3 * page_size]
    for depth in range(1, 6):
        it.generate(f"d{depth}", stem + tuple(range(depth)) + (40 + depth,) * (page_size + 2), 3)
    it.run()
    it.expect_cold_outputs()
    it.expect_all_released()


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("delta", [-1, 0, 1])
@pytest.mark.parametrize("pages", [1, 2, 3])
def test_prompt_cached_in_full_recomputes_at_least_one_token(lab, page_size, delta, pages):
    """sgl-project/sglang#22819, vllm-project/vllm PR#11186: prefix lengths at every side of a page border, each sent three times."""
    length = max(1, pages * page_size + delta)
    it = lab(num_pages=400, page_size=page_size)
    for turn in range(3):
        it.generate(f"t{turn}", PREAMBLE[:length], 4)
        it.run()
        progress = it.admitted(f"t{turn}")
        assert progress.cached_tokens <= length - 1
        assert progress.cached_tokens + progress.computed_tokens == progress.prompt_tokens == length
    it.generate("shorter", PREAMBLE[: max(1, length - 1)], 2)
    it.run()
    it.expect_cold_outputs()
    it.expect_all_released()


def test_next_turn_of_a_conversation_finds_all_but_the_last_token(lab):
    """sgl-project/sglang#24590: nothing is counted as computed that was not."""
    it = lab(num_pages=400)
    it.generate("one", PREAMBLE[:20], 5)
    it.run()
    history = PREAMBLE[:20] + tuple(it.tokens["one"])
    it.generate("two", (*history, 7, 7), 3)
    it.run()
    assert it.admitted("two").cached_tokens == len(history) - 1
    it.expect_cold_outputs()


def test_kept_tokens_alone_are_cached_after_a_stop(lab, namespace):
    it = lab(num_pages=100)
    it.generate("one", PREAMBLE[:10], 50)
    for _ in range(6):
        it.turn()
    assert len(it.tokens["one"]) == 6
    it.scheduler.finish("one", 2)
    it.ended["one"] = "stopped"
    it.scheduler.check()
    assert it.scheduler.snapshot().tree_pages == 12
    it.expect_all_released()


def test_request_without_cache_shares_nothing_and_leaves_nothing(lab):
    """sgl-project/sglang#36855: a request barred from the tree, longer than a chunk, completes and returns all its pages."""
    it = lab(num_pages=200, max_batch_tokens=16, max_running=8)
    it.generate("plain", PREAMBLE[:60], 3)
    it.run()
    it.generate("barred", PREAMBLE[:60], 3, no_cache=True)
    it.run()
    assert it.admitted("barred").cached_tokens == 0
    assert it.scheduler.snapshot().tree_pages == 60 + 2
    it.expect_cold_outputs()
    it.expect_all_released()


def test_prefix_cache_off_computes_everything_and_still_agrees(lab):
    it = lab(num_pages=400, prefix_cache=False)
    for branch in range(5):
        it.generate(f"b{branch}", PREAMBLE[:50], 4)
    it.run()
    assert it.scheduler.snapshot().computed_tokens == 250
    assert it.scheduler.snapshot().free_pages == 400
    it.expect_cold_outputs()


def test_namespaces_of_two_users_never_meet_in_a_step(lab, namespace):
    it = lab(num_pages=400)
    for user in ("a", "b"):
        for branch in range(2):
            it.generate(f"{user}{branch}", PREAMBLE[:50], 3, namespace=namespace(user))
    plan = it.turn()
    assert len(plan.rows) == 2
    assert sum(len(row.token_ids) for row in plan.rows) == 100
    it.run()
    it.expect_cold_outputs()


def test_lease_keeps_the_parent_until_its_last_child_was_admitted(lab, namespace):
    it = lab(num_pages=80, max_running=1)
    ns = namespace("")
    lease = it.scheduler.lease(PREAMBLE[:40], ns, 2)
    it.generate("first", (*PREAMBLE[:40], 1), 2, lease=lease)
    it.run()
    it.generate("stranger", tuple(49 - t for t in PREAMBLE[:38]), 3)
    it.run()
    it.generate("second", (*PREAMBLE[:40], 2), 2, lease=lease)
    it.run()
    assert it.admitted("second").cached_tokens == 40, "the stranger evicted something else"
    assert it.scheduler.snapshot().leases == 0
    it.expect_all_released()


def test_lease_cannot_wedge_the_pool(lab, namespace):
    it = lab(num_pages=64)
    it.generate("parent", PREAMBLE[:40], 2)
    it.run()
    it.scheduler.lease(PREAMBLE[:40], namespace(""), 3)
    it.generate("big", tuple(49 - t for t in PREAMBLE[:50]), 14)
    it.run()
    assert it.ended["big"] == "finished"
    assert it.scheduler.snapshot().demoted_leases == 1


@pytest.mark.parametrize("how", ["admitted", "cancelled", "refused", "expired"])
def test_lease_is_counted_down_however_its_child_ends(lab, namespace, how):
    it = lab(num_pages=64, max_running=1)
    lease = it.scheduler.lease(PREAMBLE[:10], namespace(""), 1)
    if how == "refused":
        with pytest.raises(Exception, match="need 100 pages"):
            it.generate("child", PREAMBLE[:10], 91, lease=lease)
    else:
        it.generate("child", PREAMBLE[:10], 2, lease=lease, deadline_s=5.0 if how == "expired" else None)
    if how == "cancelled":
        it.cancel("child")
    if how == "expired":
        it.now = 6.0
        it.take(it.scheduler.expired(it.now))
    it.run()
    assert it.scheduler.snapshot().leases == 0
    it.expect_all_released()


@pytest.mark.parametrize("page_size", [4, 16])
def test_fork_inside_a_siblings_last_open_page_computes_it_once(lab, page_size):
    it = lab(num_pages=200, page_size=page_size)
    stem = PREAMBLE[: 2 * page_size + 3]
    for branch in range(5):
        it.generate(f"b{branch}", (*stem, 40 + branch), 4)
    plan = it.turn()
    assert sum(len(row.token_ids) for row in plan.rows) == len(stem) + 5
    assert len(plan.mirrors) == 4 * 3
    it.run()
    it.expect_cold_outputs()
    it.expect_all_released()


@pytest.mark.parametrize(("user", "waits"), [("a", True), ("b", False)])
def test_only_a_sibling_of_its_own_namespace_is_waited_for(lab, namespace, user, waits):
    """A prefix that another namespace computes can never be shared: waiting for it would gain nothing."""
    it = lab(num_pages=800, max_batch_tokens=64, prefill_chunk_tokens=32)
    it.generate("first", PREAMBLE[:96], 2, namespace=namespace("a"))
    it.generate("second", (*PREAMBLE[:90], 1), 2, namespace=namespace(user))
    plan = it.turn()
    assert len(plan.opens) == (1 if waits else 2)
    it.run()
    assert it.admitted("second").cached_tokens == (64 if waits else 0)
    it.expect_cold_outputs()
    it.expect_all_released()
