"""What a scheduler says of itself: every request is counted once where it ends, and nothing it holds is left out."""

from __future__ import annotations

import pytest

from sglang_dsl.errors import DeadlineError, SpecError
from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.runtime.schedule.request import GenerateRequest
from sglang_dsl.runtime.schedule.step import WorkerFacts

PROMPT = tuple(range(20))


def counts(it, *names):
    snapshot = it.scheduler.snapshot()
    return tuple(getattr(snapshot, name) for name in names)


ENDS = ("admitted", "finished", "failed", "cancelled", "retracted", "preempted")


def test_requests_that_finish_are_counted_with_their_tokens(lab):
    it = lab()
    it.generate("a", PROMPT, 4)
    it.run()
    it.generate("b", (*PROMPT, 30, 31), 2)
    it.run()
    it.score("s", PROMPT, [(1, 2), (3,)])
    it.run()
    assert counts(it, *ENDS) == (3, 3, 0, 0, 0, 0)
    assert counts(it, "accessed_tokens", "hit_tokens", "generated_tokens") == (20 + 22 + 20, 0 + 20 + 19, 6)
    assert counts(it, "computed_tokens") == (20 + 2 + 1 + 1,)
    assert counts(it, "waiting", "compiling", "running", "decoding", "leases") == (0, 0, 0, 0, 0)


def test_requests_that_fail_or_are_cancelled_are_counted_once(lab):
    it = lab(max_running=2)
    it.generate("a", PROMPT, 4)
    it.generate("b", (*PROMPT, 1), 4)
    it.generate("c", (*PROMPT, 2), 4, deadline_s=0.5)
    it.generate("d", (*PROMPT, 3), 4)
    it.worker.fail_next = RuntimeError("out of order")
    it.turn()
    assert counts(it, *ENDS) == (2, 0, 2, 0, 0, 0)
    assert it.cancel("d")
    assert not it.cancel("d")
    assert counts(it, *ENDS) == (2, 0, 2, 1, 0, 0)
    it.now = 0.5
    it.take(it.scheduler.expired(it.now))
    assert counts(it, *ENDS) == (2, 0, 3, 1, 0, 0)
    assert it.scheduler.idle


def test_request_cancelled_in_flight_is_no_failure_when_its_step_fails(lab):
    it = lab()
    it.generate("a", PROMPT, 4)
    it.generate("b", (*PROMPT, 1), 4)
    plan = it.scheduler.step(it.now)
    it.cancel("a")
    it.worker.fail_next = RuntimeError("fault")
    it.land(plan)
    assert counts(it, *ENDS) == (2, 0, 1, 1, 0, 0)


def test_row_that_cannot_be_sampled_is_one_failure(lab):
    it = lab()
    it.generate("a", PROMPT, 4)
    plan = it.scheduler.step(it.now)
    result = it.worker.execute(plan)
    broken = [s._replace(token_id=-1, error=ValueError("all masked")) for s in result.samples]
    it.take(it.scheduler.commit(plan, result._replace(samples=broken), it.now))
    assert counts(it, *ENDS) == (1, 0, 1, 0, 0, 0)
    assert counts(it, "generated_tokens") == (0,)
    assert it.scheduler.idle


def test_states_are_counted_while_requests_stand_in_them(lab):
    it = lab(max_running=2, prefill_chunk_tokens=8)
    it.generate("decodes", (1, 2), 9)
    it.turn()
    it.generate("prefills", PROMPT, 3)
    it.generate("waits", (*PROMPT, 1), 3)
    it.generate("compiles", (5, 6), 3, compiling=True)
    it.turn()
    assert counts(it, "waiting", "compiling", "running", "decoding") == (1, 1, 2, 1)
    assert (it.scheduler.held_pages,) == counts(it, "peak_used_pages")
    assert it.scheduler.held_pages == 2 + 1 + 8, "a prompt, what it decodes, and a chunk"
    assert counts(it, "steps") == (2,)
    it.scheduler.compiled("compiles")
    it.run()
    assert counts(it, "finished") == (4,)


def test_counts_of_a_request_come_with_its_events(lab):
    it = lab(prefill_chunk_tokens=8)
    it.generate("first", PROMPT, 3)
    it.run()
    it.generate("second", (*PROMPT[:12], 40, 41), 3)
    it.turn()
    assert it.scheduler.spent_tokens("second") == 2
    assert it.scheduler.spent_tokens("nobody") == 0
    it.run()
    assert it.scheduler.spent_tokens("second") == 0
    [admitted, *tokens] = it.progress["second"]
    assert (admitted.kind, admitted.prompt_tokens, admitted.cached_tokens, admitted.computed_tokens) == (
        "admitted",
        14,
        12,
        2,
    )
    assert [(p.kind, p.ended, p.error, p.score) for p in tokens] == [("token", False, None, None)] * 3
    assert [p.token_id for p in tokens] == it.tokens["second"]


def test_tokens_spent_come_with_the_failure(lab):
    it = lab(prefill_chunk_tokens=8, running_timeout_s=0.015)
    it.generate("slow", PROMPT, 3)
    it.turn()
    it.turn()
    it.now = 0.02
    [failed] = it.scheduler.expired(it.now)
    assert (failed.kind, failed.spent_tokens) == ("failed", 16)
    assert isinstance(failed.error, DeadlineError)


def test_next_deadline_is_the_earliest_of_those_who_are_there(lab):
    it = lab(max_running=1)
    assert it.scheduler.next_deadline() is None
    for name, at in (("c", 9.0), ("a", 3.0), ("b", 6.0)):
        it.generate(name, PROMPT, 2, deadline_s=at)
    assert it.scheduler.next_deadline() == 3.0
    it.cancel("a")
    assert it.scheduler.next_deadline() == 6.0
    assert it.scheduler.expired(5.9) == []
    it.run()
    assert it.scheduler.next_deadline() is None


@pytest.mark.parametrize(("at", "expired"), [(0.99, 0), (1.0, 1), (1.5, 1)])
def test_request_expires_at_its_time_and_not_before(lab, at, expired):
    it = lab(max_running=1, waiting_timeout_s=1.0)
    it.generate("runs", PROMPT, 90)
    it.turn()
    it.generate("waits", PROMPT, 2)
    it.now = at + 0.01
    assert len(it.scheduler.expired(it.now)) == expired


def test_idle_is_with_nothing_to_compute_nor_to_report(lab):
    it = lab()
    assert it.scheduler.idle
    it.generate("a", PROMPT, 1)
    assert not it.scheduler.idle
    plan = it.scheduler.step(it.now)
    it.cancel("a")
    assert not it.scheduler.idle, "its step is in flight"
    it.land(plan)
    assert it.scheduler.idle
    it.score("nothing", (), [(1,)])
    assert not it.scheduler.idle, "its end is still to be reported"
    it.take(it.scheduler.expired(it.now))
    assert it.scheduler.idle


def seed_of(lab, **sampling):
    it = lab()
    name = sampling.pop("name", "r")
    it.scheduler.add(
        GenerateRequest(request_id=name, prompt_ids=PROMPT, sampling=SamplingSpec(max_tokens=2, **sampling)), 0.0
    )
    [opened] = it.scheduler.step(0.0).opens
    return opened.seed


def test_seed_is_the_samplings_own_or_one_of_the_requests_id(lab):
    assert seed_of(lab, seed=17) == 17
    assert seed_of(lab, seed=0) == 0
    assert seed_of(lab) == seed_of(lab)
    assert seed_of(lab) != seed_of(lab, name="other")
    assert 0 <= seed_of(lab) < 2**64


def test_lease_for_nobody_is_refused_and_one_for_somebody_is_there(lab, namespace):
    it = lab()
    with pytest.raises(SpecError, match="0 children"):
        it.scheduler.lease(PROMPT, namespace(""), 0)
    lease = it.scheduler.lease(PROMPT, namespace(""), 2, lease_id=5)
    assert lease == 5
    it.scheduler.release(lease, 1)
    assert counts(it, "leases") == (1,)
    it.scheduler.release(lease)
    assert counts(it, "leases") == (0,)


def test_flush_of_one_namespace_leaves_the_others(lab, namespace):
    it = lab()
    for user in ("a", "b"):
        it.generate(user, PROMPT, 2, namespace=namespace(user))
    it.run()
    assert it.scheduler.flush(namespace("a")) == len(PROMPT) + 1
    it.generate("again", (*PROMPT, 1), 1, namespace=namespace("b"))
    it.run()
    assert it.admitted("again").cached_tokens == len(PROMPT)


def test_request_with_an_unknown_id_is_left_alone(lab):
    it = lab()
    it.scheduler.compiled("nobody")
    it.scheduler.finish("nobody", 3)
    assert not it.scheduler.cancel("nobody")
    assert counts(it, *ENDS) == (0, 0, 0, 0, 0, 0)


def test_request_that_ended_in_flight_is_not_ended_again_by_its_deadline(lab):
    it = lab()
    it.generate("r", PROMPT, 5, deadline_s=1.0)
    plan = it.scheduler.step(it.now)
    it.cancel("r")
    assert it.scheduler.expired(2.0) == []
    it.land(plan)
    assert counts(it, *ENDS) == (1, 0, 0, 1, 0, 0)
    it.expect_all_released()


def test_score_asks_for_the_unconditional_scores_only_where_it_is_told_to(lab):
    it = lab(bos=3)
    it.score("plain", PROMPT, [(1, 2), (3,)])
    it.score("both", PROMPT, [(1, 2), (3,)], unconditional=True)
    it.run()
    assert it.progress["plain"][-1].scored[1] == ()
    assert len(it.progress["both"][-1].scored[1]) == 2
    it.expect_cold_outputs()


@pytest.mark.parametrize(
    ("borders", "bands"), [((), {1: 0, 9999: 0}), ((8, 16), {1: 0, 8: 0, 9: 1, 16: 1, 17: 2, 99: 2})]
)
def test_band_of_a_length_is_how_many_borders_it_is_past(borders, bands):
    facts = WorkerFacts(num_pages=4, page_size=1, context_tokens=100, length_borders=borders)
    assert {tokens: facts.band_of(tokens) for tokens in bands} == bands
