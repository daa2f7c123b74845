"""One request's fault is its own; the loop goes on, and health tells."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from sglang_dsl.errors import (
    CapacityError,
    ConstraintError,
    ContextLengthError,
    DslError,
    EngineClosedError,
    EngineError,
    QueueFullError,
    SamplingError,
    SpecError,
)
from sglang_dsl.ir.specs import ConstraintSpec
from sglang_dsl.runtime.engine.border import EngineConfig
from sglang_dsl.runtime.schedule.request import ScoreRequest
from sglang_dsl.runtime.schedule.step import StepResult


def test_fault_one_row_of_eight_fails_alone(lab):
    engine = lab.engine({f"p{i}": [f"v{i}"] for i in range(8)})
    lab.worker.row_errors["p3"] = SamplingError("everything is masked")
    recorders = lab.submit(*(lab.request(f"r{i}", f"p{i}") for i in range(8)))
    lab.settle()
    assert isinstance(recorders[3].end, SamplingError)
    assert [r.end.text for i, r in enumerate(recorders) if i != 3] == [f"v{i}" for i in range(8) if i != 3]
    assert engine.health().status == "ok"
    lab.assert_clean()


def test_fault_worker_raising_once_fails_the_rows_of_that_step_and_later_requests_work(lab):
    engine = lab.engine()
    lab.worker.raise_at[1] = MemoryError("out of memory")
    first = lab.submit(lab.request("a"), lab.request("b"))
    lab.settle()
    for recorder in first:
        assert isinstance(recorder.end, EngineError)
        assert recorder.end.retryable
        assert isinstance(recorder.end.__cause__, MemoryError)
        assert "".join(recorder.deltas) == "a"
    health = engine.health()
    assert health.status == "degraded"
    assert "out of memory" in health.reasons[0]
    lab.assert_clean()
    [later] = lab.submit(lab.request("c"))
    lab.settle()
    assert later.end.text == "abc"
    assert engine.snapshot().step_faults == 1


def test_fault_degraded_health_recovers_after_its_window(lab):
    engine = lab.engine(config=EngineConfig(health_window_s=0.05))
    lab.worker.raise_at[0] = RuntimeError("once")
    lab.submit(lab.request("a"))
    lab.settle()
    assert engine.health().status == "degraded"
    lab.submit(lab.request("b", max_tokens=32, ignore_eos=True), lab.request("c"))
    lab.worker.default = ["t"] * 40
    lab.settle()
    assert engine.health().status == "ok"


def test_fault_misshapen_result_fails_the_step_not_the_engine(lab):
    lab.engine()
    execute = lab.worker.execute
    lab.worker.execute = lambda plan: StepResult((), (), 0.0) if plan.samples else execute(plan)
    [recorder] = lab.submit(lab.request("a"))
    lab.settle()
    assert isinstance(recorder.end, EngineError)
    lab.worker.execute = execute
    [later] = lab.submit(lab.request("b"))
    lab.settle()
    assert later.end.text == "abc"
    lab.assert_clean()


def test_fault_receiver_that_raises_harms_nobody(lab):
    engine = lab.engine()
    bad, good = lab.submit(lab.request("bad"), lab.request("good"))

    def explode(*_):
        raise ValueError("receiver")

    bad.started = bad.text = bad.done = explode
    lab.settle()
    assert good.end.text == "abc"
    assert engine.snapshot().sink_faults == 5  # started, three deltas, done
    lab.assert_clean()


def test_fault_bad_constraint_fails_its_request_and_the_next_one_works(lab):
    lab.engine()
    lab.worker.compiling["bad"] = compiling = Future()
    bad, good = lab.submit(
        lab.request("bad", constraint=ConstraintSpec(kind="regex", text="bad")),
        lab.request("good", constraint=ConstraintSpec(kind="regex", text="good")),
    )
    lab.settle()
    assert good.end.text == "abc"
    compiling.set_exception(ConstraintError("unclosed group at 3"))
    lab.settle()
    assert isinstance(bad.end, ConstraintError)
    [again] = lab.submit(lab.request("again", constraint=ConstraintSpec(kind="regex", text="bad")))
    lab.settle()
    assert isinstance(again.end, ConstraintError)
    lab.assert_clean()


def test_fault_compiler_that_raises_at_once_fails_its_request(lab):
    engine = lab.engine()

    def prepare(constraint):
        raise RuntimeError("compiler crashed")

    lab.worker.prepare = prepare
    [bad] = lab.submit(lab.request("bad", constraint=ConstraintSpec(kind="regex", text="x")))
    lab.settle()
    assert isinstance(bad.end, EngineError)
    assert engine.snapshot().request_faults == 1
    lab.assert_clean()


@pytest.mark.parametrize("prompt_tokens", [62, 63, 64, 65, 100_000])
@pytest.mark.parametrize("max_tokens", [1, 2, 64])
def test_fault_prompt_near_the_context_length_fits_exactly_or_is_refused_with_counts(lab, prompt_tokens, max_tokens):
    lab.engine(context_tokens=64, default=["t"] * 200)
    request = lab.request("r", max_tokens=max_tokens)
    [recorder] = lab.submit(
        type(request)(
            request_id="r", prompt_ids=[97] * prompt_tokens, sampling=request.sampling, namespace=request.namespace
        )
    )
    lab.settle()
    if prompt_tokens + max_tokens <= 64:
        assert recorder.end.generated_tokens == max_tokens
    else:
        assert isinstance(recorder.end, ContextLengthError)
        assert (recorder.end.prompt_tokens, recorder.end.context_tokens) == (prompt_tokens, 64)
    lab.assert_clean()


def test_fault_request_larger_than_the_pool_is_refused_and_the_engine_lives(lab):
    lab.engine(num_pages=32)
    big, small = lab.submit(lab.request("big", " x" * 60), lab.request("small", max_tokens=8))
    lab.settle()
    assert isinstance(big.end, CapacityError)
    assert small.end.text == "abc"
    lab.assert_clean()


def test_fault_full_queue_refuses_the_rest(lab):
    lab.engine(config=EngineConfig(max_queue=3, max_running=1))
    recorders = lab.submit(*(lab.request(f"r{i}") for i in range(6)))
    lab.settle()
    refused = [r for r in recorders if isinstance(r.end, QueueFullError)]
    assert 0 < len(refused) < 6
    assert all(r.end.text == "abc" for r in recorders if r not in refused)
    lab.assert_clean()


def test_fault_id_in_use_refuses_the_second_and_keeps_the_first(lab):
    lab.engine()
    first, second = lab.submit(lab.request("same"), lab.request("same"))
    lab.settle()
    assert first.end.text == "abc"
    assert isinstance(second.end, SpecError)


@pytest.mark.parametrize("ids", [[], [-1], [10**9], ["x"], [1.5], [None]])
def test_fault_prompt_that_is_no_prompt_is_refused(lab, ids):
    engine = lab.engine()
    request = lab.request("r")
    bad, good = lab.submit(
        type(request)(request_id="bad", prompt_ids=ids, namespace=request.namespace), lab.request("good")
    )
    lab.settle()
    assert isinstance(bad.end, SpecError)
    assert good.end.text == "abc"
    assert engine.health().status == "ok"


@pytest.mark.parametrize("continuations", [[], [[1], [-1]], [[10**9]]])
def test_fault_scoring_without_tokens_is_refused(lab, continuations):
    lab.engine()
    [recorder] = lab.submit(ScoreRequest(request_id="s", prompt_ids=[97], continuations=continuations))
    lab.settle()
    assert isinstance(recorder.end, SpecError)


def test_fault_logit_bias_outside_the_vocabulary_is_refused(lab):
    lab.engine()
    [recorder] = lab.submit(lab.request("r", logit_bias=((70_001, 5.0),)))
    lab.settle()
    assert isinstance(recorder.end, SamplingError)


def test_fault_of_the_scheduler_ends_the_engine_with_a_reason_and_nothing_hangs(lab):
    engine = lab.engine(stepped=False)

    def broken(now):
        raise KeyError("slot 7")

    engine._loop._scheduler.step = broken
    recorders = lab.submit(lab.request("a"), lab.request("b"))
    assert all(isinstance(r.end, EngineClosedError) for r in recorders)
    engine.close()
    health = engine.health()
    assert health.status == "closed"
    assert "slot 7" in health.reasons[0]
    with pytest.raises(EngineClosedError):
        lab.submit(lab.request("c"))


def test_fault_leak_is_reported_with_its_pages_and_owner(lab):
    engine = lab.engine()
    [recorder] = lab.submit(lab.request("a"))
    lab.settle()
    assert isinstance(recorder.end, object)
    from sglang_dsl.errors import IntegrityError

    def leaking():
        raise IntegrityError("pages 3, 4 have no owner; last owner: request 'a'")

    engine._loop._scheduler.check = leaking
    engine._loop.rest()
    assert engine.snapshot().leaks == 1
    assert "last owner: request 'a'" in engine.health().reasons[0]


def test_fault_errors_are_ours(lab):
    lab.engine(num_pages=8)
    [recorder] = lab.submit(lab.request("big", " x" * 60))
    lab.settle()
    assert isinstance(recorder.end, DslError)
    assert recorder.end.code.startswith("E4")
