from __future__ import annotations

import pytest

from sglang_dsl.errors import SpecError

PROMPT = tuple(range(30))


def scored_tokens(it):
    return sum(len(row.token_ids) for plan in it.worker.plans for row in plan.rows)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_score_of_a_trie_computes_each_edge_once_in_one_step(lab, page_size):
    it = lab(num_pages=200, page_size=page_size)
    it.score("s", PROMPT, [(1, 2, 3), (1, 2, 4), (1, 5), (6,), (7, 8)])
    it.run()
    it.expect_cold_outputs()
    assert len(it.worker.plans) == 1
    assert scored_tokens(it) == len(PROMPT) + 3, "1 2, then 7; the last token of each continuation is not computed"
    it.expect_all_released()


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_score_of_a_choice_that_starts_another_is_right_in_both_orders(lab, page_size):
    it = lab(num_pages=200, page_size=page_size)
    it.score("short_first", PROMPT, [(1,), (1, 2), (1, 2, 3)])
    it.score("long_first", PROMPT, [(1, 2, 3), (1, 2), (1,)])
    it.run()
    one, two = it.progress["short_first"][-1].scored, it.progress["long_first"][-1].scored
    assert one[0] == two[0][::-1]
    it.expect_cold_outputs()


def test_score_of_one_token_choices_computes_no_edge(lab):
    it = lab()
    it.score("s", PROMPT, [(1,), (2,), (3,)])
    it.run()
    assert scored_tokens(it) == len(PROMPT)
    it.expect_cold_outputs()


@pytest.mark.parametrize("continuations", [[()], [(), (4,)], [(4,), (4,)], [(4, 5)]])
def test_score_of_degenerate_lists_keeps_their_positions(lab, continuations):
    it = lab()
    it.score("s", PROMPT, continuations)
    it.run()
    assert [len(row) for row in it.progress["s"][-1].scored[0]] == [len(c) for c in continuations]
    it.expect_cold_outputs()
    it.expect_all_released()


def test_score_of_no_continuation_is_refused(lab):
    with pytest.raises(SpecError, match="nothing to score"):
        lab().score("s", PROMPT, [])


@pytest.mark.parametrize("bos", [None, 49])
@pytest.mark.parametrize("prompt", [PROMPT, ()])
def test_score_unconditional_follows_bos_or_leaves_the_first_token_unscored(lab, bos, prompt):
    it = lab(bos=bos)
    it.score("s", prompt, [(1, 2, 3), (1, 2), (4,), ()], unconditional=True)
    it.run()
    free = it.progress["s"][-1].scored[1]
    assert (free[2] == (0.0,)) == (bos is None)
    it.expect_cold_outputs()
    it.expect_all_released()


def test_score_of_nothing_after_nothing_ends_at_once(lab):
    it = lab()
    it.score("s", (), [(), ()])
    it.run()
    assert it.progress["s"][-1].scored == (((), ()), ())
    assert not it.worker.plans


def test_score_of_five_thousand_choices_runs_in_as_few_steps_as_the_budget_allows(lab):
    it = lab(num_pages=3000, max_batch_tokens=1024, check_integrity=False)
    choices = [(i % 50, i // 50 % 50, i // 2500, i % 7) for i in range(5000)]
    it.score("s", PROMPT, choices)
    it.run()
    it.expect_cold_outputs()
    inner = {c[:n] for c in choices for n in (1, 2, 3)}
    assert scored_tokens(it) == len(PROMPT) + len(inner)
    assert len(it.worker.plans) <= -(-scored_tokens(it) // 1024) + 1
    it.expect_all_released()


def test_score_with_more_edges_than_pages_frees_them_as_it_goes(lab):
    it = lab(num_pages=60)
    it.score("s", PROMPT, [(i, j, 1) for i in range(20) for j in range(10)])
    it.run()
    it.expect_cold_outputs()
    it.expect_all_released()


def test_score_longer_than_the_budget_is_cut_into_chunks(lab):
    it = lab(max_batch_tokens=16, max_running=9)
    it.score("s", PROMPT, [tuple(range(40)), (*range(40), 7), (*range(20), 3)])
    it.run()
    assert max(sum(len(r.token_ids) for r in p.rows) for p in it.worker.plans) <= 16
    it.expect_cold_outputs()


@pytest.mark.parametrize("page_size", [1, 4])
def test_score_beside_decoding_requests_disturbs_nobody(lab, page_size):
    it = lab(num_pages=200, page_size=page_size, max_batch_tokens=24, max_running=8, retract_every_steps=3)
    for i in range(6):
        it.generate(f"g{i}", (*PROMPT[: 5 * i], i), 10)
    it.score("s", PROMPT, [(i % 5, i % 7, i % 11) for i in range(40)], unconditional=True)
    it.run()
    it.expect_cold_outputs()
    it.expect_all_released()


def test_score_shares_the_prompt_with_earlier_requests(lab):
    it = lab()
    it.generate("g", PROMPT, 2)
    it.run()
    it.score("s", PROMPT, [(1, 2), (3,)])
    it.run()
    assert it.admitted("s").cached_tokens == len(PROMPT) - 1
    it.expect_cold_outputs()


@pytest.mark.parametrize("order", ["ABA", "BAB"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_prompt_logprobs_are_the_same_with_and_without_a_hit(lab, order, page_size):
    """vllm-project/vllm#3251, sgl-project/sglang#902: every position, whatever was cached before."""
    prompts = {"A": (*PROMPT, 3, 4, 5), "B": (*PROMPT[:20], 9, 8)}
    it = lab(num_pages=200, page_size=page_size, max_batch_tokens=32, max_running=8)
    for turn, name in enumerate(order):
        prompt = prompts[name]
        it.generate(f"r{turn}", prompt, 2, prompt_logprobs=2)
        it.run()
        scores = next(p for p in it.progress[f"r{turn}"] if p.kind == "token").prompt_scores
        cold = lab(num_pages=200)
        cold.generate("c", prompt, 2, prompt_logprobs=2)
        cold.run()
        assert scores == next(p for p in cold.progress["c"] if p.kind == "token").prompt_scores
        assert scores[0] is None
        assert [s.token_id for s in scores[1:]] == list(prompt[1:])
        assert all(len(s.top) == 2 for s in scores[1:])
    it.expect_cold_outputs()
    it.expect_all_released()


@pytest.mark.parametrize("page_size", [1, 4])
def test_score_over_several_steps_follows_its_prompt_to_the_trees_pages(lab, page_size):
    """sgl-project/mini-sglang#142, for the pages an edge took over from its prompt: the duplicate of a cached page is freed and reused."""
    it = lab(num_pages=200, page_size=page_size, max_batch_tokens=8, max_running=4)
    prompt = PROMPT[:20]
    it.generate("cache", prompt, 2)
    it.run()
    it.score("s", prompt, [(i % 3, i % 5, i % 7, 1) for i in range(60)], unconditional=True)
    it.turn()
    it.generate("reuser", tuple(range(49, 30, -1)), 12)
    it.run()
    it.expect_cold_outputs()
    it.expect_all_released()


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("turns", range(1, 7))
def test_score_retracted_in_the_middle_keeps_what_it_knows_and_ends_right(lab, turns, page_size):
    it = lab(num_pages=200, page_size=page_size, max_batch_tokens=16, max_running=4)
    it.score("s", PROMPT, [(i % 3, i % 5, i % 7, i % 2, 1) for i in range(60)], unconditional=True)
    for _ in range(turns):
        it.turn()
    life = it.scheduler._life
    life.retract(life.by_request["s"])
    it.scheduler.check()
    it.generate("other", (1, 2, 3), 3)
    it.run()
    it.expect_cold_outputs()
    it.expect_all_released()


def test_choices_are_computed_in_chunks_like_prompts(lab):
    it = lab(prefill_chunk_tokens=8)
    it.score("s", PROMPT, [tuple(range(40)), (*range(20), 3)])
    it.run()
    assert max(len(row.token_ids) for plan in it.worker.plans for row in plan.rows) <= 8
    it.expect_cold_outputs()
    it.expect_all_released()
