"""Cancellation in every state: exact ids, everything released, `done` once, nothing delivered after it."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import pytest

from sglang_dsl.errors import CancelledError, EngineError
from sglang_dsl.ir.specs import ConstraintSpec
from sglang_dsl.runtime.engine.border import EngineConfig
from sglang_dsl.runtime.schedule.request import ScoreRequest

LONG = " ".join(f"w{i}" for i in range(40))  # 40 tokens


def chunked(**options):
    return EngineConfig(check_integrity=True, idle_check_after_s=0.0, prefill_chunk_tokens=8, **options)


def assert_cancelled(lab, recorder):
    lab.settle()
    assert isinstance(recorder.end, CancelledError)
    assert len(recorder.ends) == 1
    assert recorder.late == []
    lab.assert_clean()


def test_cancel_before_the_first_turn_computes_nothing(lab):
    engine = lab.engine()
    [recorder] = lab.submit(lab.request("r"))
    engine.cancel(["r"])
    assert_cancelled(lab, recorder)
    assert lab.worker.steps == []
    assert recorder.starts == 0


@pytest.mark.parametrize("turns", range(9))
def test_cancel_after_each_turn_of_prefill_and_decode_returns_all_pages(lab, turns):
    engine = lab.engine(default=["t"] * 30, config=chunked())
    [recorder] = lab.submit(lab.request("r", LONG, ignore_eos=True))
    for _ in range(turns):
        engine.turn()
    delivered = list(recorder.deltas)
    engine.cancel(["r"], "no longer needed")
    assert_cancelled(lab, recorder)
    assert recorder.deltas == delivered
    assert "no longer needed" in str(recorder.end)


@pytest.mark.parametrize("step", range(9))
def test_cancel_while_each_step_is_in_flight_delivers_none_of_its_tokens(lab, step):
    engine = lab.engine(default=["t"] * 30, config=chunked())
    [recorder] = lab.submit(lab.request("r", LONG))
    lab.worker.during_step = lambda number: engine.cancel(["r"]) if number == step else None
    assert_cancelled(lab, recorder)
    assert len(lab.worker.steps) == step + 1
    assert len(recorder.deltas) == max(step - 4, 0)


def test_cancel_in_the_queue_leaves_the_running_one_alone(lab):
    engine = lab.engine({"a": ["x"] * 5}, config=chunked(max_running=1))
    running, queued = lab.submit(lab.request("1", "a"), lab.request("2", "b"))
    engine.turn()
    engine.cancel(["2"])
    assert_cancelled(lab, queued)
    assert queued.starts == 0
    assert running.end.text == "xxxxx"


def test_cancel_while_the_constraint_compiles_forgets_the_compilation(lab):
    engine = lab.engine()
    lab.worker.compiling["slow"] = compiling = Future()
    [recorder] = lab.submit(lab.request("r", constraint=ConstraintSpec(kind="regex", text="slow")))
    lab.settle()
    engine.cancel(["r"])
    assert_cancelled(lab, recorder)
    compiling.set_result(None)
    lab.settle()
    assert lab.worker.steps == []
    assert len(recorder.ends) == 1


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("step", range(8))
@pytest.mark.parametrize("how", ["cancel", "fault"])
def test_cancel_or_fault_of_a_scoring_at_each_step_returns_all_pages(lab, page_size, step, how):
    engine = lab.engine(config=chunked(), page_size=page_size)
    continuations = tuple(tuple(lab.ids(f"x y{i % 3} z{i} end")) for i in range(12))
    request = ScoreRequest(
        request_id="s",
        prompt_ids=lab.ids(LONG),
        continuations=continuations,
        unconditional=True,
        namespace=engine.info.namespace,
    )
    if how == "fault":
        lab.worker.raise_at[step] = RuntimeError("boom")
    else:
        lab.worker.during_step = lambda number: engine.cancel(["s"]) if number == step else None
    [recorder] = lab.submit(request)
    lab.settle()
    if len(lab.worker.steps) > step:
        assert isinstance(recorder.end, CancelledError if how == "cancel" else EngineError)
    else:
        assert len(recorder.end.logprobs) == 12
    assert len(recorder.ends) == 1
    lab.assert_clean()


def test_cancel_takes_exact_ids_only(lab):
    engine = lab.engine()
    recorders = lab.submit(lab.request("run"), lab.request("run-1"), lab.request(""))
    engine.cancel(["run"])
    lab.settle()
    assert [type(r.end).__name__ for r in recorders] == ["CancelledError", "GenerateResult", "GenerateResult"]


def test_cancel_of_ended_unknown_and_repeated_ids_is_ignored(lab):
    engine = lab.engine()
    [recorder] = lab.submit(lab.request("r"))
    lab.settle()
    engine.cancel(["r", "r", "other"])
    lab.settle()
    assert recorder.end.text == "abc"
    assert engine.snapshot().cancelled == 0


def test_cancel_from_a_receiver_stops_a_sibling_in_the_same_step(lab):
    engine = lab.engine({"a": ["x"], "b": ["y"] * 9})
    winner, loser = lab.submit(lab.request("win", "a"), lab.request("lose", "b"))
    winner.done, finish = lambda result: (finish(result), engine.cancel(["lose"])), winner.done
    lab.settle()
    assert loser.deltas == ["y"]  # of the first step; the second ended the winner
    assert isinstance(loser.end, CancelledError)
    assert len(lab.worker.steps) == 2
    lab.assert_clean()


def test_cancel_race_within_a_step_is_told_in_the_order_asked_for_not_of_submission(lab):
    lab.engine()
    told = []
    requests = [replace(lab.request(f"r{i}", f"p{i}"), order=order) for i, order in enumerate([(1, 0), (0, 3), (0, 2)])]
    for recorder in lab.submit(*requests):
        recorder.done = lambda result: told.append(result.request_id)
    lab.settle()
    assert told == ["r2", "r1", "r0"]


def test_cancel_storm_balances_the_books_after_every_turn(lab):
    engine = lab.engine(default=["t"] * 20, config=chunked(max_running=4), num_pages=400)
    recorders = lab.submit(*(lab.request(f"r{i}", f"{LONG} {i % 7}") for i in range(40)))
    for number in range(40):
        engine.cancel([f"r{number}"])
        engine.turn()
        engine.check()
    lab.settle()
    assert all(len(recorder.ends) == 1 and not recorder.late for recorder in recorders)
    lab.assert_clean()


def test_cancel_of_leased_children_counts_the_lease_down(lab):
    engine = lab.engine()
    lease = engine.lease(lab.ids(LONG), engine.info.namespace, 2)
    lab.submit(lab.request("a", LONG + " a", lease=lease), lab.request("b", LONG + " b", lease=lease))
    engine.cancel(["a", "b"])
    lab.settle()
    lab.assert_clean()
