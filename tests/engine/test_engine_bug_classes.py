"""Faults that other engines had (numbers of the runtime survey's catalogue), prevented here, through the whole engine."""

from __future__ import annotations

import pytest

from sglang_dsl.errors import CancelledError, CapacityError
from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.runtime.engine.border import EngineConfig
from sglang_dsl.runtime.schedule.request import GenerateRequest

PAGE_SIZES = [1, 4, 16]


def letters(count, offset=0):
    return [97 + (i * i + offset) % 26 for i in range(count)]


def ask(lab, request_id, prompt_ids, tokens=4, **options):
    return GenerateRequest(
        request_id=request_id,
        prompt_ids=prompt_ids,
        sampling=SamplingSpec(temperature=0, max_tokens=tokens, ignore_eos=True),
        namespace=lab.engines[-1].info.namespace,
        **options,
    )


def strict(**options):
    return EngineConfig(check_integrity=True, idle_check_after_s=0.0, **options)


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_bug_01_equal_prompts_in_one_batch_leave_no_row_on_freed_pages(lab, page_model, page_size):
    lab.engine(model=page_model, page_size=page_size, config=strict())
    prompt = letters(37)
    recorders = lab.submit(*(ask(lab, f"r{i}", prompt, tokens=20) for i in range(6)))
    lab.settle()
    assert {r.end.token_ids for r in recorders} == {tuple(page_model.alone(prompt, 20))}
    lab.assert_clean()


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("step", range(10))
def test_bug_02_10_abort_with_a_result_pending_frees_once(lab, page_model, page_size, step):
    engine = lab.engine(model=page_model, page_size=page_size, config=strict(prefill_chunk_tokens=max(8, page_size)))
    doomed, other = lab.submit(ask(lab, "doomed", letters(40), 8), ask(lab, "other", [*letters(40), 97], 8))
    lab.worker.during_step = lambda number: engine.cancel(["doomed"]) if number == step else None
    lab.settle()
    assert isinstance(doomed.end, CancelledError)
    assert list(other.end.token_ids) == page_model.alone([*letters(40), 97], 8)
    lab.assert_clean()


def test_bug_07_next_turn_finds_every_token_that_was_computed(lab, page_model):
    engine = lab.engine(model=page_model, config=strict())
    first = engine.generate(letters(30), SamplingSpec(temperature=0, max_tokens=10, ignore_eos=True))
    turn = [*letters(30), *first.token_ids, 65]
    second = engine.generate(turn, SamplingSpec(temperature=0, max_tokens=1, ignore_eos=True))
    assert second.cached_tokens == 30 + 10 - 1  # the last token was sampled, never computed
    lab.assert_clean()


def test_bug_07_next_turn_after_an_eos_finds_the_whole_answer(lab):
    engine = lab.engine({"hello there": ["x", "y", "z"]}, config=strict())
    first = engine.generate("hello there", SamplingSpec(temperature=0))
    turn = [*lab.ids("hello there"), *first.token_ids, 65]
    assert engine.generate(turn, SamplingSpec(temperature=0, max_tokens=1)).cached_tokens == len(turn) - 1


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("shared", [0, 1, 15, 16, 17, 31, 32, 33, 48, 64])
def test_bug_11_12_answers_do_not_depend_on_how_much_was_cached(lab, page_model, page_size, shared):
    engine = lab.engine(model=page_model, page_size=page_size, config=strict())
    sampling = SamplingSpec(temperature=0, max_tokens=6, ignore_eos=True)
    engine.generate(letters(64), sampling)
    for tail in (letters(20, offset=5), letters(1, offset=7)):
        prompt = letters(64)[:shared] + tail
        warm = engine.generate(prompt, sampling)
        assert list(warm.token_ids) == page_model.alone(prompt, 6)
        assert engine.generate(prompt, sampling, no_cache=True).token_ids == warm.token_ids
    lab.assert_clean()


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_bug_18_opting_out_of_the_cache_with_long_chunked_prompts_ends(lab, page_model, page_size):
    lab.engine(
        model=page_model,
        page_size=page_size,
        num_pages=160 // page_size,
        config=strict(prefill_chunk_tokens=16, max_batch_tokens=64, max_running=8),
    )
    prompts = [letters(60, offset=i) for i in range(12)]
    recorders = lab.submit(*(ask(lab, f"r{i}", p, no_cache=i % 2 == 0) for i, p in enumerate(prompts)))
    lab.settle()
    for prompt, recorder in zip(prompts, recorders, strict=True):
        assert list(recorder.end.token_ids) == page_model.alone(prompt, 4)
    lab.assert_clean()


def test_bug_22_many_short_requests_on_large_pages_all_end(lab, page_model):
    lab.engine(model=page_model, page_size=64, num_pages=8, config=strict())
    recorders = lab.submit(*(ask(lab, f"r{i}", letters(3, offset=i), 3) for i in range(60)))
    lab.settle()
    assert all(len(r.end.token_ids) == 3 for r in recorders)
    lab.assert_clean()


def test_bug_23_request_larger_than_the_pool_is_refused_and_one_that_just_fits_runs(lab, page_model):
    lab.engine(model=page_model, num_pages=32, config=strict())
    too_big, fits = lab.submit(ask(lab, "big", letters(32), 4), ask(lab, "fits", letters(29), 4))
    lab.settle()
    assert isinstance(too_big.end, CapacityError)
    assert list(fits.end.token_ids) == page_model.alone(letters(29), 4)
    lab.assert_clean()


def test_bug_25_throughput_recovers_after_pressure(lab, page_model):
    engine = lab.engine(model=page_model, num_pages=300, config=EngineConfig(max_running=16))

    def work(name):
        before = len(lab.worker.steps)
        recorders = lab.submit(*(ask(lab, f"{name}{i}", letters(10, offset=i), 8) for i in range(16)))
        lab.settle()
        assert all(len(r.end.token_ids) == 8 for r in recorders)
        return len(lab.worker.steps) - before

    calm = work("calm")
    lab.submit(*(ask(lab, f"storm{i}", letters(20, offset=i), 60) for i in range(16)))
    lab.settle()
    assert engine.snapshot().scheduler.retracted > 0
    assert work("after") <= calm + 2


def test_bug_30_31_aborted_requests_leave_neither_tokens_nor_state(lab, page_model):
    engine = lab.engine(model=page_model, config=strict(prefill_chunk_tokens=8, max_running=4))
    recorders = lab.submit(*(ask(lab, f"r{i}", letters(20, offset=i), 30) for i in range(20)))
    for turn in range(12):
        engine.turn()
        engine.cancel([f"r{turn}", f"r{turn + 5}"])
    engine.cancel([f"r{i}" for i in range(20)])
    lab.settle()
    assert all(isinstance(r.end, CancelledError) and r.late == [] for r in recorders)
    snapshot = engine.snapshot()
    assert (snapshot.live, snapshot.scheduler.running, snapshot.scheduler.waiting) == (0, 0, 0)
    assert len(engine._loop._live.by_id) == 0
    lab.assert_clean()


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_bug_33_request_that_ends_with_its_prefill_in_a_mixed_batch_leaks_nothing(lab, page_model, page_size):
    engine = lab.engine(model=page_model, page_size=page_size, config=strict(prefill_chunk_tokens=max(8, page_size)))
    [long] = lab.submit(ask(lab, "long", letters(5), 30))
    for i in range(10):
        engine.turn()
        [one] = lab.submit(ask(lab, f"one{i}", letters(11, offset=i), 1))
    lab.settle()
    assert list(one.end.token_ids) == page_model.alone(letters(11, offset=9), 1)
    assert list(long.end.token_ids) == page_model.alone(letters(5), 30)
    lab.assert_clean()


def test_bug_34_prompt_longer_than_a_step_without_chunking_runs(lab, page_model):
    lab.engine(model=page_model, config=strict(max_batch_tokens=64, prefill_chunk_tokens=None))
    long, short = lab.submit(ask(lab, "long", letters(500)), ask(lab, "short", letters(5)))
    lab.settle()
    assert list(long.end.token_ids) == page_model.alone(letters(500), 4)
    assert list(short.end.token_ids) == page_model.alone(letters(5), 4)
    lab.assert_clean()
