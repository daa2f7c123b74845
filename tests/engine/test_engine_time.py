"""Deadlines and timeouts on a clock that only steps and waits move."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from sglang_dsl.errors import DeadlineError, SpecError
from sglang_dsl.ir.specs import ConstraintSpec, SamplingSpec
from sglang_dsl.runtime.engine.border import EngineConfig
from sglang_dsl.runtime.engine.metrics import VirtualClock, WallClock


def test_time_deadline_in_decode_fails_the_request_and_frees_it(lab):
    lab.engine(default=["t"] * 30, step_s=1.0)
    slow, fast = lab.submit(lab.request("slow", deadline_s=5.5), lab.request("fast", max_tokens=3))
    lab.settle()
    assert isinstance(slow.end, DeadlineError)
    assert len(slow.deltas) == 6
    assert fast.end.finished_s == 3.0
    lab.assert_clean()


def test_time_deadline_already_past_computes_nothing(lab):
    lab.engine(clock=VirtualClock(100.0))
    [recorder] = lab.submit(lab.request("late", deadline_s=99.0))
    lab.settle()
    assert isinstance(recorder.end, DeadlineError)
    assert lab.worker.steps == []


def test_time_waiting_timeout_frees_the_queue(lab):
    config = EngineConfig(max_running=1, waiting_timeout_s=4.5, check_integrity=True)
    lab.engine({"long": ["t"] * 20}, step_s=1.0, config=config)
    running, waiting = lab.submit(lab.request("1", "long"), lab.request("2", "long"))
    lab.settle()
    assert running.end.text == "t" * 20
    assert isinstance(waiting.end, DeadlineError)
    lab.assert_clean()


def test_time_running_timeout_ends_a_runaway(lab):
    lab.engine(default=["t"] * 30, step_s=1.0, config=EngineConfig(running_timeout_s=3.5, check_integrity=True))
    [recorder] = lab.submit(lab.request("r"))
    lab.settle()
    assert isinstance(recorder.end, DeadlineError)
    lab.assert_clean()


def test_time_stall_is_asked_again_before_a_virtual_clock_jumps(lab):
    engine = lab.engine(default=["t"] * 3)
    [recorder] = lab.submit(lab.request("r", deadline_s=50.0))
    plan, shortages = engine._loop._scheduler.step, [None, None]
    engine._loop._scheduler.step = lambda now: shortages.pop() if shortages else plan(now)
    engine.turn()
    assert not engine.turn()
    engine._loop.rest()
    lab.settle()
    assert recorder.end.text == "ttt"
    assert engine.now() < 1


def test_time_stall_without_end_runs_into_the_deadline_and_is_told(lab, monkeypatch):
    monkeypatch.setattr("sglang_dsl.runtime.engine.loop.STALL_S", 0.0)
    engine = lab.engine()
    [recorder] = lab.submit(lab.request("r", deadline_s=50.0))
    engine._loop._scheduler.step = lambda now: None
    engine.turn()
    engine._loop.rest()
    engine._loop.rest()
    assert engine.health().reasons == ("1 requests wait and none can run",)
    lab.settle()
    assert isinstance(recorder.end, DeadlineError)
    assert engine.now() == 50.0


def test_time_deadline_while_compiling_needs_real_time_and_no_jump(lab):
    engine = lab.engine(clock=VirtualClock())
    lab.worker.compiling["slow"] = compiling = Future()
    [recorder] = lab.submit(lab.request("r", deadline_s=5.0, constraint=ConstraintSpec(kind="regex", text="slow")))
    lab.settle()
    assert engine.now() == 0.0
    compiling.set_result(None)
    lab.settle()
    assert recorder.end.text == "abc"


def test_time_results_hold_the_moments_on_the_engines_clock(lab):
    lab.engine({"p": ["a", "b"]}, step_s=0.5, clock=VirtualClock(10.0))
    [recorder] = lab.submit(lab.request("r", "p"))
    lab.settle()
    assert (recorder.end.first_token_s, recorder.end.finished_s) == (10.5, 11.5)


def test_time_virtual_runs_are_equal(lab):
    def run():
        lab.engine(default=["t"] * 5, config=EngineConfig(max_batch_tokens=16, max_running=8, prefill_chunk_tokens=8))
        recorders = lab.submit(*(lab.request(f"r{i}", " w" * (i + 1), max_tokens=i + 1) for i in range(12)))
        lab.settle()
        return [(r.end.finished_s, r.end.cached_tokens, r.end.computed_tokens) for r in recorders], len(
            lab.worker.steps
        )

    assert run() == run()


def test_time_requests_of_one_call_enter_the_same_step(lab):
    engine = lab.engine(stepped=False)
    lab.submit(*(lab.request(f"r{i}", f"prompt {i}") for i in range(8)))
    engine.generate("x", SamplingSpec(temperature=0))
    assert len(lab.worker.steps[0].samples) >= 8


def test_time_idle_engine_gathers_calls_made_one_after_another_into_one_step(lab):
    lab.engine(stepped=False, config=EngineConfig(gather_s=0.2))
    recorders = [lab.submit(lab.request(f"r{i}", f"prompt {i}", max_tokens=1))[0] for i in range(8)]
    assert all(r.end.text == "a" for r in recorders)
    assert [len(plan.samples) for plan in lab.worker.steps] == [8]


def test_time_clock_rests():
    virtual, wall = VirtualClock(), WallClock()
    assert virtual.rest(7.0, jump=False) is None
    assert virtual.now() == 0.0
    assert virtual.rest(7.0, jump=True) == 0.0
    assert virtual.now() == 7.0
    assert wall.rest(None, jump=True) is None
    assert 0.0 < wall.rest(wall.now() + 5, jump=True) <= 5
    with pytest.raises(ValueError, match="back"):
        virtual.advance(-1)


@pytest.mark.parametrize("timeout_s", [0, -1, float("inf"), float("nan")])
def test_time_timeout_out_of_range_is_refused(lab, timeout_s):
    engine = lab.engine()
    with pytest.raises(SpecError):
        engine.generate("p", timeout_s=timeout_s)


def test_time_generate_with_timeout_raises_deadline(lab):
    engine = lab.engine(default=["t"] * 30, step_s=1.0)
    with pytest.raises(DeadlineError):
        engine.generate("p", SamplingSpec(temperature=0), timeout_s=3.5)
    lab.assert_clean()
