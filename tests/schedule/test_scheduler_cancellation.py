"""Every request can be ended in every state, once, and nothing of it is left."""

from __future__ import annotations

import pytest

from sglang_dsl.errors import DeadlineError

PROMPT = tuple(range(40))


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("step", range(12))
def test_abort_at_every_step_of_a_chunked_prompt_returns_every_page_once(lab, step, in_flight, page_size):
    """sgl-project/mini-sglang#111, sgl-project/sglang#38981, #34149, PR#2238: queue, each chunk, each decode; before a step or while it runs."""
    it = lab(num_pages=128 // page_size, page_size=page_size, prefill_chunk_tokens=8)
    it.generate("victim", PROMPT, 20)
    it.generate("bystander", (*PROMPT[:20], 9), 6)
    for _ in range(step):
        it.turn()
    if in_flight:
        plan = it.scheduler.step(it.now)
        reported = len(it.progress.get("victim", ()))
        assert it.cancel("victim")
        it.land(plan)
        assert len(it.progress.get("victim", ())) == reported, "a token after the acknowledgement"
    else:
        assert it.cancel("victim")
    assert not it.scheduler.cancel("victim")
    it.run()
    assert it.ended["bystander"] == "finished"
    it.expect_cold_outputs()
    it.expect_all_released()
    assert not it.worker.known or it.scheduler.idle


def test_cancel_while_compiling_leaves_nothing(lab):
    it = lab()
    it.generate("c", PROMPT, 4, compiling=True)
    assert it.turn() is None
    assert not it.scheduler.idle
    assert it.cancel("c")
    it.scheduler.compiled("c")
    assert it.scheduler.idle
    it.expect_all_released()


def test_compiled_request_runs_only_afterwards(lab):
    it = lab()
    it.generate("c", PROMPT, 4, compiling=True)
    it.generate("other", (1, 2), 3)
    for _ in range(5):
        it.turn()
    assert it.ended == {"other": "finished"}
    it.scheduler.compiled("c")
    it.run()
    assert it.ended["c"] == "finished"


@pytest.mark.parametrize("name", ["", "r", "r1", "r11 "])
def test_cancel_takes_exact_ids_only(lab, name):
    it = lab()
    for request_id in ("r11", "r12"):
        it.generate(request_id, PROMPT, 4)
    assert not it.scheduler.cancel(name)
    it.run()
    assert set(it.ended.values()) == {"finished"}


def test_cancel_of_the_row_that_computes_a_shared_prefix_spares_its_children(lab):
    it = lab()
    it.generate("leader", (*PROMPT, 1), 4)
    it.generate("child", (*PROMPT, 2), 4)
    plan = it.scheduler.step(it.now)
    it.cancel("leader")
    it.land(plan)
    it.run()
    assert it.ended == {"leader": "cancelled", "child": "finished"}
    it.expect_cold_outputs()
    it.expect_all_released()


@pytest.mark.parametrize("page_size", [1, 16])
def test_worker_fault_fails_the_rows_of_its_step_and_nobody_else(lab, page_size):
    it = lab(num_pages=256 // page_size, page_size=page_size, max_running=2)
    it.generate("one", (*PROMPT, 1), 4)
    it.generate("two", (*PROMPT, 2), 4)
    it.generate("later", (*PROMPT, 3), 4)
    it.worker.fail_next = RuntimeError("out of order")
    it.turn()
    assert it.ended == {"one": "failed", "two": "failed"}
    it.scheduler.check()
    assert it.scheduler.snapshot().tree_pages == 0, "nothing that was not computed may be cached"
    it.run()
    assert it.ended["later"] == "finished"
    it.expect_cold_outputs()
    it.expect_all_released()


def test_worker_fault_with_a_cancelled_row_reports_it_no_more(lab):
    it = lab()
    it.generate("one", (*PROMPT, 1), 4)
    it.generate("two", (*PROMPT, 2), 4)
    plan = it.scheduler.step(it.now)
    it.cancel("one")
    it.worker.fail_next = RuntimeError("fault")
    it.land(plan)
    assert it.ended == {"one": "cancelled", "two": "failed"}
    it.expect_all_released()


def test_row_that_cannot_be_sampled_fails_alone(lab):
    it = lab()
    it.generate("bad", (*PROMPT, 1), 4)
    it.generate("good", (*PROMPT, 2), 4)
    plan = it.scheduler.step(it.now)
    result = it.worker.execute(plan)
    broken = [
        s._replace(token_id=-1, error=ValueError("all masked")) if i == 0 else s for i, s in enumerate(result.samples)
    ]
    it.take(it.scheduler.commit(plan, result._replace(samples=broken), it.now))
    it.run()
    assert sorted(it.ended.values()) == ["failed", "finished"]
    it.expect_cold_outputs()
    it.expect_all_released()


def test_finish_twice_releases_once(lab):
    """sgl-project/sglang#28702: release is idempotent."""
    it = lab()
    it.generate("one", PROMPT, 3)
    it.run()
    before = it.scheduler.snapshot()
    it.scheduler.finish("one", 3)
    assert it.scheduler.snapshot() == before


def test_waiting_timeout_ends_only_who_was_never_admitted(lab):
    it = lab(max_running=1, waiting_timeout_s=1.0)
    it.generate("runs", PROMPT, 30)
    it.generate("waits", PROMPT, 30)
    it.turn()
    assert it.scheduler.next_deadline() == 1.0
    it.now = 1.5
    it.take(it.scheduler.expired(it.now))
    assert it.ended == {"waits": "failed"}
    assert isinstance(it.errors["waits"], DeadlineError)
    it.run()
    assert it.ended["runs"] == "finished"
    it.expect_all_released()


def test_running_timeout_counts_from_admission(lab):
    it = lab(max_running=1, running_timeout_s=0.2)
    it.generate("long", PROMPT, 200)
    it.generate("short", PROMPT, 3)
    it.run()
    assert it.ended == {"long": "failed", "short": "finished"}
    assert "ran 0.2" in str(it.errors["long"])
    it.expect_all_released()


@pytest.mark.parametrize("state", ["compiling", "waiting", "prefill", "decode"])
def test_deadline_ends_a_request_in_every_state(lab, state):
    it = lab(max_running=1, prefill_chunk_tokens=8)
    if state == "waiting":
        it.generate("first", PROMPT, 100)
    it.generate("late", PROMPT, 100, deadline_s=1.0, compiling=state == "compiling")
    for _ in range({"compiling": 1, "waiting": 1, "prefill": 2, "decode": 8}[state]):
        it.turn()
    it.now = 1.0
    it.take(it.scheduler.expired(it.now))
    assert it.ended == {"late": "failed"}
    it.scheduler.check()


def test_abort_storm_leaves_an_idle_engine(lab):
    it = lab(num_pages=200, max_running=8, max_batch_tokens=32)
    for i in range(60):
        it.generate(f"r{i}", (*PROMPT[: i % 30 + 1], i % 50), 10)
    for step in range(20):
        it.turn()
        for i in range(3 * step, 3 * step + 3):
            it.cancel(f"r{i}")
    it.run()
    assert it.scheduler.idle
    assert not it.scheduler._life.by_request
    it.expect_all_released()


def test_worker_fault_before_it_closed_a_sequence_closes_it_again(lab):
    it = lab(max_running=2, retract_every_steps=3)
    it.generate("retracted", PROMPT, 20)
    it.generate("other", (1, 2), 20)
    it.turn()
    it.turn()
    it.cancel("other")
    it.worker.fail_next = RuntimeError("fault")
    it.turn()
    it.generate("next", (3, 4), 2)
    it.run()
    closed = [seq_id for plan in it.worker.plans for seq_id in plan.closes]
    assert closed.count(2) == 2
    assert set(it.worker.known) <= {3}
