"""Too little memory: admission, reservation, retraction and recovery, preemption, limits."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from sglang_dsl.errors import CapacityError, ContextLengthError, IntegrityError, QueueFullError, SpecError
from sglang_dsl.runtime.schedule.admission import DECAY_STEPS, INITIAL_RATIO, LOWEST_RATIO, NewTokenRatio
from sglang_dsl.runtime.schedule.step import StepResult

POLICIES = ["fcfs", "longest_prefix", "depth_first", "priority"]


def prompt(seed, length):
    rng = random.Random(seed)
    return tuple(rng.randrange(50) for _ in range(length))


def test_request_larger_than_the_pool_is_refused_with_the_numbers(lab):
    """sgl-project/sglang PR#14948: an error to the client, a server that goes on."""
    it = lab(num_pages=50, page_size=4)
    with pytest.raises(
        CapacityError, match="180 prompt tokens and 40 new ones need 55 pages of 4 tokens; the pool has 50"
    ):
        it.generate("big", prompt(1, 180), 40)
    it.generate("fits", prompt(1, 160), 41)
    it.run()
    it.expect_cold_outputs()


def test_request_longer_than_the_context_is_refused_with_the_numbers(lab):
    it = lab(context=64)
    for length, new in ((64, 1), (65, 1), (63, 2), (100_000, 1)):
        with pytest.raises(ContextLengthError, match=f"{length} prompt tokens and {new} new ones") as caught:
            it.generate("r", range(length), new)
        assert (caught.value.prompt_tokens, caught.value.max_tokens, caught.value.context_tokens) == (length, new, 64)
    it.generate("exact", [1] * 62, 2)
    it.run()
    assert it.ended["exact"] == "finished"


@pytest.mark.parametrize("ids", [(), (-1,), (2**40,), ("a",)])
def test_odd_prompts_are_refused_and_a_normal_request_still_works(lab, ids):
    it = lab()
    with pytest.raises(SpecError):
        it.generate("odd", ids, 2)
    it.generate("normal", (1, 2), 2)
    it.run()
    assert it.ended == {"normal": "finished"}


def test_request_id_in_use_is_refused(lab):
    it = lab()
    it.generate("same", (1, 2), 2)
    with pytest.raises(SpecError, match="in use"):
        it.generate("same", (1, 2), 2)
    it.run()


def test_queue_above_its_limit_refuses(lab):
    it = lab(max_queue=2, max_running=1)
    it.generate("a", (1, 2), 2)
    it.generate("b", (1, 2), 2, compiling=True)
    with pytest.raises(QueueFullError, match="2 requests wait"):
        it.generate("c", (1, 2), 2)


@pytest.mark.parametrize(
    "limits", [{"max_batch_tokens": 8}, {"prefill_chunk_tokens": 8}, {"max_batch_tokens": 70, "max_running": 64}]
)
def test_limits_that_leave_no_room_for_a_page_are_refused(lab, limits):
    with pytest.raises(SpecError):
        lab(page_size=16, **limits)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_retraction_under_pressure_keeps_outputs_and_ends_everything(lab, page_size):
    it = lab(num_pages=320 // page_size, page_size=page_size, max_running=12, max_batch_tokens=128)
    for i in range(6):
        it.generate(f"r{i}", prompt(i, 10), 100)
    it.run()
    assert it.scheduler.snapshot().retracted > 0
    assert set(it.ended.values()) == {"finished"}
    it.expect_cold_outputs()
    it.expect_all_released()


def test_counts_of_a_retracted_request_are_those_of_its_first_admission(lab):
    it = lab(retract_every_steps=2)
    it.generate("r", prompt(1, 20), 12)
    it.run()
    admitted = [p for p in it.progress["r"] if p.kind == "admitted"]
    assert [(p.cached_tokens, p.computed_tokens) for p in admitted] == [(0, 20)]
    assert it.scheduler.snapshot().hit_tokens == 0
    it.expect_cold_outputs()


def test_throughput_recovers_after_pressure(lab):
    """sgl-project/sglang#26248: the reservation learned from a retraction fades again."""
    it = lab(num_pages=145, max_running=10, check_integrity=False)
    for i in range(10):
        it.generate(f"r{i}", prompt(i, 10), 40)
    it.run()
    assert it.scheduler.snapshot().retracted > 0
    pressed = it.scheduler.snapshot().new_token_ratio
    decayed = it.scheduler.snapshot().steps * (INITIAL_RATIO - LOWEST_RATIO) / DECAY_STEPS
    assert pressed > INITIAL_RATIO - decayed + 0.05, "the retraction taught it to reserve more"
    it.generate("calm", prompt(50, 10), 100)
    it.run()
    assert it.scheduler.snapshot().new_token_ratio < max(pressed, INITIAL_RATIO)
    for i in range(5):
        it.generate(f"again{i}", prompt(i, 10), 4)
    assert len(it.turn().samples) == 5, "all admitted at once"


def test_allocation_that_fails_after_admission_requeues_the_request(lab):
    """sgl-project/sglang#26265: an admission estimate that was wrong is no exception."""
    it = lab()
    it.generate("r", prompt(1, 10), 4)
    pool = it.scheduler.cache.pool
    honest = pool.allocate_each
    pool.allocate_each = lambda owners: None if len(owners) else []
    assert it.turn() is None
    it.scheduler.check()
    assert it.scheduler.snapshot().allocation_failures == 1
    assert it.scheduler.snapshot().waiting == 1
    pool.allocate_each = honest
    it.run()
    it.expect_cold_outputs()
    it.expect_all_released()


def test_chunk_is_parked_while_decoding_requests_hold_the_pool(lab):
    """sgl-project/sglang PR#30743: a chunk never takes what is not there."""
    it = lab(num_pages=70, max_batch_tokens=16, max_running=8)
    for i in range(4):
        it.generate(f"d{i}", prompt(i, 4), 9)
    it.turn()
    it.generate("chunked", prompt(9, 60), 5)
    it.run()
    assert set(it.ended.values()) == {"finished"}
    it.expect_cold_outputs()
    it.expect_all_released()


def test_page_rounding_is_part_of_admission(lab):
    """sgl-project/sglang PR#5081, PR#7353: many short requests on large pages."""
    it = lab(num_pages=8, page_size=64, max_running=32, max_batch_tokens=1024)
    for i in range(32):
        it.generate(f"r{i}", prompt(i, 3), 3)
    it.run()
    assert it.scheduler.snapshot().retracted == 0
    it.expect_cold_outputs()
    it.expect_all_released()


def test_one_chunk_per_request_is_in_flight(lab):
    """sgl-project/sglang PR#34554."""
    it = lab(num_pages=600, prefill_chunk_tokens=16)
    for i in range(6):
        it.generate(f"r{i}", prompt(i, 50 + i), 3)
    it.run()
    for plan in it.worker.plans:
        assert len({row.seq_id for row in plan.rows}) == len(plan.rows)
        assert all(len(row.token_ids) <= 16 for row in plan.rows)
    it.expect_cold_outputs()


def test_decode_rows_go_on_while_a_long_prompt_is_prefilled(lab):
    it = lab(num_pages=600, max_batch_tokens=32, max_running=8)
    for i in range(4):
        it.generate(f"d{i}", prompt(i, 4), 30)
    it.turn()
    it.generate("long", prompt(9, 200), 3)
    for _ in range(5):
        plan = it.turn()
        assert sum(len(row.token_ids) for row in plan.rows) <= 32
        assert len(plan.samples) >= 4
    it.run()
    it.expect_cold_outputs()


@pytest.mark.parametrize("policy", POLICIES)
def test_no_request_starves_under_a_stream_of_better_ones(lab, policy):
    """sgl-project/sglang#31954: longest prefix and priority both age."""
    it = lab(num_pages=200, max_running=2, policy=policy, aging_s=0.3)
    it.generate("hot", prompt(1, 30), 2, priority=5)
    it.run()
    it.generate("cold", prompt(2, 30), 2)
    for i in range(200):
        it.generate(f"h{i}", (*prompt(1, 30), i % 50), 2, priority=5)
        it.turn()
        if "cold" in it.ended:
            break
    assert it.ended["cold"] == "finished"
    assert it.now < 2.0


def test_priority_preempts_when_memory_is_the_limit(lab):
    """sgl-project/sglang#14872: also where not rows but pages are short."""
    it = lab(num_pages=64, policy="priority", max_running=8)
    for i in range(3):
        it.generate(f"low{i}", prompt(i, 12), 12)
    for _ in range(3):
        it.turn()
    it.generate("high", prompt(9, 40), 4, priority=10)
    it.turn()
    it.turn()
    assert it.scheduler.snapshot().preempted >= 1
    it.run()
    order = list(it.ended)
    assert order[0] == "high"
    it.expect_cold_outputs()
    it.expect_all_released()


def test_priority_preempts_when_rows_are_the_limit(lab):
    it = lab(policy="priority", max_running=2)
    for i in range(2):
        it.generate(f"low{i}", prompt(i, 12), 30)
    it.turn()
    it.generate("high", prompt(9, 4), 3, priority=1)
    it.run()
    assert next(iter(it.ended)) == "high"
    it.expect_cold_outputs()


def test_preemption_in_the_step_a_victim_finishes_counts_once(lab):
    """sgl-project/sglang PR#13142."""
    it = lab(policy="priority", max_running=1)
    it.generate("low", prompt(1, 5), 3)
    it.turn()
    it.turn()
    it.generate("high", prompt(2, 5), 2, priority=1)
    it.turn()
    it.run()
    assert set(it.ended.values()) == {"finished"}
    it.expect_cold_outputs()
    it.expect_all_released()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("page_size", [1, 4])
def test_branching_tree_of_prompts_in_a_quarter_of_its_memory_equals_cold_runs(lab, policy, page_size):
    rng = random.Random(5)
    nodes = [()]
    for _ in range(400):
        parent = rng.choice(nodes[-60:])
        nodes.append(parent + tuple(rng.randrange(50) for _ in range(rng.randrange(1, 9))))
    nodes = [node for node in nodes[1:] if len(node) < 90]
    needed = sum(len(set(zip(node, range(99), strict=False))) for node in nodes) // page_size
    it = lab(
        num_pages=max(needed // 4 // 10, 160 // page_size), page_size=page_size, max_batch_tokens=128, max_running=32,
        prefill_chunk_tokens=128, retract_every_steps=3, policy=policy, check_integrity=False,
    )  # fmt: skip
    for i, node in enumerate(nodes):
        it.generate(f"n{i}", node, rng.randrange(1, 8))
    for _ in range(10_000):
        if it.scheduler.idle:
            break
        it.turn()
        it.scheduler.check()
    assert len(it.ended) == len(nodes)
    it.expect_cold_outputs()
    it.expect_all_released()


def test_step_asked_for_while_one_is_in_flight_is_refused(lab):
    it = lab()
    it.generate("r", (1, 2, 3), 2)
    plan = it.scheduler.step(it.now)
    with pytest.raises(IntegrityError, match="not landed"):
        it.scheduler.step(it.now)
    it.land(plan)
    with pytest.raises(IntegrityError, match="not the one in flight"):
        it.scheduler.commit(plan, StepResult(), it.now)


def test_flush_while_busy_keeps_what_is_held(lab):
    """sgl-project/sglang#33783, #12099: a flush is a number, never a crash; idle, it returns everything."""
    it = lab()
    it.generate("old", prompt(1, 20), 2)
    it.run()
    it.generate("live", prompt(2, 20), 9)
    it.turn()
    assert it.scheduler.flush() == 21
    it.run()
    it.expect_cold_outputs()
    it.scheduler.flush()
    assert it.scheduler.snapshot().free_pages == 256


def test_request_that_fits_only_without_a_page_to_copy_from_is_admitted(lab):
    """A node locked to be copied from must not take the very pages the request needs: nothing else would free them."""
    it = lab(page_size=4, num_pages=12, max_running=1)
    it.generate("cached", prompt(1, 40), 5)
    it.run()
    it.generate("alone", (*prompt(1, 40)[:18], *prompt(2, 26)), 3)
    it.run(steps=50)
    it.expect_cold_outputs()
    it.expect_all_released()


def pressed_by(lab, running, high, *, turns=3, num_pages=64):
    """A pool nearly full of `running` (name -> prompt, most tokens, priority), then one of priority 10. Who was preempted."""
    it = lab(num_pages=num_pages, policy="priority", max_running=8)
    for name, (length, most, priority) in running.items():
        it.generate(name, prompt(name, length), most, priority=priority)
        it.turn()
    for _ in range(turns):
        it.turn()
    opened = len(it.worker.plans)
    it.generate("high", prompt("high", high), 4, priority=10)
    it.turn()
    closed = [seq_id for plan in it.worker.plans[opened:] for seq_id in plan.closes]
    names = dict(enumerate(running, 1))
    found = [names[seq_id] for seq_id in sorted(closed)]
    it.run()
    it.expect_cold_outputs()
    it.expect_all_released()
    return found, it.scheduler.snapshot().preempted


def test_lowest_priority_is_preempted_and_nobody_else(lab):
    running = {"two": (12, 8, 2), "none": (12, 8, 0), "one": (12, 8, 1)}
    assert pressed_by(lab, running, 16) == (["none"], 1)


def test_of_one_priority_who_has_generated_least_is_preempted(lab):
    running = {"older": (12, 8, 1), "old": (12, 8, 1), "young": (12, 8, 1)}
    assert pressed_by(lab, running, 16, turns=1) == (["young"], 1)


def test_latest_of_those_who_came_together_is_preempted(lab):
    it = lab(num_pages=64, policy="priority", max_running=8)
    for i in range(3):
        it.generate(f"low{i}", prompt(i, 12), 8)
    it.turn()
    it.turn()
    it.generate("high", prompt(9, 16), 4, priority=1)
    assert it.turn().closes == (3,)
    it.run()
    it.expect_cold_outputs()


def test_equal_priority_is_never_preempted(lab):
    running = {"a": (12, 8, 10), "b": (12, 8, 10), "c": (12, 8, 10)}
    assert pressed_by(lab, running, 16) == ([], 0)


def test_who_loses_least_is_retracted_when_decode_rows_lack_memory(lab):
    """Fewest generated tokens first; among those the longest prompt, then the latest."""
    it = lab(num_pages=330, max_running=8, max_batch_tokens=128)
    it.generate("first", prompt(1, 12), 100)
    for _ in range(4):
        it.turn()
    for i, length in ((2, 4), (3, 8), (4, 8)):
        it.generate(f"r{i}", prompt(i, length), 100)
    assert len(it.turn().opens) == 3
    while not it.scheduler.snapshot().retracted:
        plan = it.turn()
    assert plan.closes == (4,)
    it.run()
    it.expect_cold_outputs()


def test_retraction_sets_the_reserve_to_what_was_observed(lab):
    """Of all that running requests may generate, the share they have generated, with 20 tokens of slack for each."""
    it = lab(num_pages=450, max_running=8)
    for i in range(3):
        it.generate(f"r{i}", prompt(i, 4), 200)
    it.turn()
    while not it.scheduler.snapshot().retracted:
        before = it.scheduler.snapshot().new_token_ratio
        generated = sum(map(len, it.tokens.values()))
        assert it.turn() is not None
    observed = (generated + 3 * 20) / (3 * 200 + 1)
    assert before < observed < 1
    assert it.scheduler.snapshot().new_token_ratio == pytest.approx(observed, abs=0.002)
    it.run()
    it.expect_cold_outputs()


@pytest.mark.parametrize(("generated", "left", "expected"), [(0, 5000, INITIAL_RATIO), (10, 0, 1.0)])
def test_reserve_is_never_lowered_by_a_retraction_nor_more_than_all(generated, left, expected):
    ratio = NewTokenRatio()
    ratio.retracted([SimpleNamespace(generated=generated, max_new=left)])
    assert ratio.value == expected


def test_leases_become_hints_before_a_parked_prompt_is_sent_back(lab, namespace):
    """Nothing decodes and the pool is held by a lease and by half of a prompt: the lease yields."""
    it = lab(num_pages=64, prefill_chunk_tokens=8)
    it.generate("chunked", prompt(2, 50), 2)
    it.turn()
    it.generate("parent", prompt(1, 30), 1)
    it.scheduler.lease(prompt(1, 30), namespace(""), 3)
    it.run()
    assert set(it.ended.values()) == {"finished"}
    assert it.scheduler.snapshot().demoted_leases <= 1
    it.expect_cold_outputs()


def test_reserve_fades_by_the_step_and_is_whole_again_when_nothing_runs(lab):
    it = lab()
    assert it.scheduler.snapshot().new_token_ratio == INITIAL_RATIO
    it.generate("r", prompt(1, 5), 21)
    it.run()
    faded = it.scheduler.snapshot().new_token_ratio
    assert faded == pytest.approx(INITIAL_RATIO - 20 * (INITIAL_RATIO - LOWEST_RATIO) / DECAY_STEPS)
    it.generate("again", prompt(1, 5), 1)
    it.turn()
    assert it.scheduler.snapshot().new_token_ratio == INITIAL_RATIO
    ratio = NewTokenRatio()
    for _ in range(2 * DECAY_STEPS):
        ratio.decay()
    assert ratio.value == LOWEST_RATIO


@pytest.mark.parametrize(("most", "admitted"), [(40, 2), (60, 1)])
def test_request_is_admitted_where_the_share_of_what_all_may_still_generate_fits(lab, most, admitted):
    """Pool 64; each has 4 prompt tokens: 4 + 0.7 * 40 + 1 fits twice, 4 + 0.7 * 60 + 1 does not."""
    it = lab(num_pages=70)
    for i in range(2):
        it.generate(f"r{i}", prompt(i, 4), most)
    assert len(it.turn().opens) == admitted
    it.run()
    it.expect_cold_outputs()


def test_score_is_admitted_only_where_its_longest_choice_fits(lab):
    it = lab(num_pages=64)
    it.generate("g", prompt(1, 10), 40)
    it.turn()
    it.score("s", prompt(2, 10), [tuple(range(30)), (1,)])
    it.turn()
    assert it.scheduler.snapshot().running == 1
    it.run()
    assert it.scheduler.snapshot().retracted == 0
    it.expect_cold_outputs()
    it.expect_all_released()


def test_lease_yields_before_a_prompt_that_can_go_no_further_is_sent_back(lab, namespace):
    """What was to be evicted for a prompt under way is leased meanwhile: nothing runs, and the lease is the one to go."""
    it = lab(num_pages=64, prefill_chunk_tokens=8)
    it.generate("cached", prompt(1, 30), 1)
    it.run()
    it.generate("long", prompt(2, 50), 2)
    it.turn()
    it.scheduler.lease(prompt(1, 30), namespace(""), 3)
    it.run()
    assert it.ended["long"] == "finished"
    assert it.scheduler.snapshot().demoted_leases == 1
    assert it.scheduler.snapshot().retracted == 0
    it.expect_cold_outputs()


def test_preemption_takes_no_more_than_what_is_not_shared_needs(lab):
    stem = prompt(5, 30)
    it = lab(num_pages=120, policy="priority", max_running=8)
    for i in range(3):
        it.generate(f"low{i}", stem + prompt(i, 10), 20)
    for _ in range(3):
        it.turn()
    it.generate("high", stem + prompt(9, 20), 10, priority=1)
    it.turn()
    assert it.scheduler.snapshot().preempted == 1
    it.run()
    it.expect_cold_outputs()
    it.expect_all_released()


@pytest.mark.parametrize("longer", [0, 1])
def test_score_is_refused_for_its_longest_choice(lab, longer):
    it = lab(context=64)
    continuations = [(1,), tuple(range(44 + longer)), (2, 3)]
    if longer:
        with pytest.raises(ContextLengthError, match="20 prompt tokens and 45 new ones"):
            it.score("s", prompt(1, 20), continuations)
        return
    it.score("s", prompt(1, 20), continuations)
    it.run()
    assert it.ended == {"s": "scored"}


@pytest.mark.parametrize(("tokens", "running", "fits"), [(23, 8, True), (22, 8, False), (16, 1, True), (15, 1, False)])
def test_step_has_to_have_room_for_a_page_beside_all_decode_rows(lab, tokens, running, fits):
    if not fits:
        with pytest.raises(SpecError, match="no room for a page"):
            lab(page_size=16, max_batch_tokens=tokens, max_running=running)
        return
    it = lab(page_size=16, num_pages=40, max_batch_tokens=tokens, max_running=running)
    for i in range(8):
        it.generate(f"r{i}", prompt(i, 20), 8)
    it.run()
    it.expect_cold_outputs()


@pytest.mark.parametrize(("pages", "admitted"), [(66, 2), (65, 1)])
def test_reserve_is_the_rest_of_prompt_and_output_and_a_page_for_rounding(lab, pages, admitted):
    """The first holds its 4 pages and reserves 0.7 * 40 + 1; the second holds none and reserves 4 + 0.7 * 40 + 1."""
    it = lab(num_pages=pages)
    for i in range(2):
        it.generate(f"r{i}", prompt(i, 4), 40)
    assert len(it.turn().opens) == admitted
    it.run()
    it.expect_cold_outputs()


def test_request_that_fits_is_admitted_at_once_after_another_was_refused(lab):
    """A refusal is remembered for some steps, but not beyond the arrival of somebody who may fit."""
    it = lab(num_pages=64)
    it.generate("runs", prompt(1, 10), 30)
    it.turn()
    it.generate("big", prompt(2, 40), 10)
    it.turn()
    assert it.scheduler.snapshot().waiting == 1
    it.generate("small", prompt(3, 2), 2, priority=1)
    assert [opened.request_id for opened in it.turn().opens] == ["small"]
    it.run()
    it.expect_cold_outputs()


@pytest.mark.parametrize(
    ("policy", "victim"), [("priority", 1), ("fcfs", 2), ("longest_prefix", 2), ("depth_first", 2)]
)
def test_priority_decides_who_is_retracted_under_its_own_policy_only(lab, policy, victim):
    it = lab(num_pages=150, max_running=8, policy=policy)
    it.generate("low", prompt(1, 4), 80)
    for _ in range(3):
        it.turn()
    it.generate("high", prompt(2, 4), 80, priority=5)
    while not it.scheduler.snapshot().retracted:
        plan = it.turn()
    assert plan.closes == (victim,)
    it.run()
    it.expect_cold_outputs()
