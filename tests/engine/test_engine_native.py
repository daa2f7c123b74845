"""The native API: token-in token-out, without the DSL."""

from __future__ import annotations

import asyncio

import pytest

from sglang_dsl.errors import EngineError, SamplingError, SpecError
from sglang_dsl.ir.specs import ConstraintSpec, SamplingSpec
from sglang_dsl.runtime.engine.border import EngineConfig

GREEDY = SamplingSpec(temperature=0)


def test_native_text_and_ids_are_the_same_prompt(lab):
    engine = lab.engine({"one two": ["x", "y"]})
    by_text, by_ids = engine.generate("one two", GREEDY), engine.generate(lab.ids("one two"), GREEDY)
    assert by_text.text == by_ids.text == "xy"
    assert by_ids.cached_tokens == 1  # all but the last prompt token
    assert by_ids.cached_tokens + by_ids.computed_tokens == by_ids.prompt_tokens == 2


def test_native_ids_may_be_of_any_whole_number_type(lab):
    numpy = pytest.importorskip("numpy")
    engine = lab.engine({"ab": ["x"]})
    assert engine.generate(numpy.array([97, 98]), GREEDY).text == "x"


@pytest.mark.parametrize("prompt", [["x"], [1.5], [None], 7, None, "", []])
def test_native_prompt_that_is_none_is_refused(lab, prompt):
    engine = lab.engine()
    with pytest.raises(SpecError):
        engine.generate(prompt, GREEDY)
    assert engine.generate("p", GREEDY).text == "abc"


def test_native_text_gets_a_bos_where_the_model_wants_one(lab):
    tokenizer = lab.text.tokenizer
    tokenizer.bos_id, tokenizer.adds_bos = tokenizer.control_id("<|im_start|>"), True
    engine = lab.engine()
    assert engine.generate("p", GREEDY).prompt_tokens == 2
    assert engine.generate(lab.ids("p"), GREEDY).prompt_tokens == 1


def test_native_control_tokens_in_text_are_content(lab):
    engine = lab.engine()
    engine.generate("a<|im_end|>b", GREEDY)
    prompt = lab.worker.steps[0].opens[0].prompt_ids
    assert not set(prompt) & lab.text.tokenizer.control_ids


def test_native_batch_keeps_order_and_errors_in_place(lab):
    engine = lab.engine({f"p{i}": [f"v{i}"] for i in range(5)})
    lab.worker.row_errors["p2"] = SamplingError("masked")
    results = engine.generate_batch([f"p{i}" for i in range(5)], GREEDY)
    assert isinstance(results[2], SamplingError)
    assert [r.text for i, r in enumerate(results) if i != 2] == ["v0", "v1", "v3", "v4"]


def test_native_async_calls_share_the_batch(lab):
    engine = lab.engine({f"p{i}": [f"v{i}"] for i in range(5)}, stepped=False)

    async def main():
        return await asyncio.gather(*(engine.agenerate(f"p{i}", GREEDY) for i in range(5)))

    assert [r.text for r in asyncio.run(main())] == [f"v{i}" for i in range(5)]


@pytest.mark.parametrize("stepped", [True, False])
def test_native_score_answers_each_continuation(lab, stepped):
    engine = lab.engine(stepped=stepped)
    ids = lab.ids("yes"), lab.ids("yes sir"), lab.ids("no")
    result = engine.score("is it", ids)
    assert result.logprobs == tuple(tuple(-0.5 - (t % 7) / 10 for t in c) for c in ids)
    assert asyncio.run(engine.ascore("is it", ids)).logprobs == result.logprobs
    lab.assert_clean()


def test_native_score_after_nothing_and_of_nothing(lab):
    lab.text.tokenizer.bos_id = None
    engine = lab.engine()
    result = engine.score([], [lab.ids("a"), lab.ids("b c"), []])
    assert [len(logprobs) for logprobs in result.logprobs] == [1, 2, 0]
    assert result.logprobs[0] == (0.0,)
    lab.assert_clean()


@pytest.mark.parametrize("chunk", [2, None])
def test_bug_61_prompt_logprobs_are_the_same_cold_and_with_any_cached_prefix(lab, chunk):
    engine = lab.engine(config=EngineConfig(prefill_chunk_tokens=chunk, check_integrity=True))
    prompt = lab.ids("a b c d e f g h")
    expected = [None, *(-0.5 - (t % 7) / 10 for t in prompt[1:])]
    for cached in range(len(prompt) + 1):
        engine.flush()
        if cached:
            engine.generate(prompt[:cached], SamplingSpec(temperature=0, max_tokens=1))
        scores = engine.generate(prompt, GREEDY, prompt_logprobs=0).prompt_scores
        assert [None if score is None else score.logprob for score in scores] == expected
        assert [None if score is None else score.token_id for score in scores] == [None, *prompt[1:]]
    lab.assert_clean()


def test_native_constraint_reaches_the_worker(lab):
    engine = lab.engine({"p": ["a", "b"]})
    constraint = ConstraintSpec(kind="regex", text="ab")
    assert engine.generate("p", GREEDY, constraint=constraint).finish_reason == "constraint"
    assert lab.worker.steps[0].opens[0].constraint == constraint


def test_native_namespaces_share_nothing(lab):
    engine = lab.engine()
    assert engine.generate("a b c d", GREEDY, namespace="x").cached_tokens == 0
    assert engine.generate("a b c d", GREEDY, namespace="y").cached_tokens == 0
    assert engine.generate("a b c d", GREEDY, namespace="x").cached_tokens > 0


def test_native_flush_empties_the_cache(lab):
    engine = lab.engine()
    engine.generate("a b c d", GREEDY)
    assert engine.flush() > 0
    assert engine.generate("a b c d", GREEDY).cached_tokens == 0


def test_native_flush_keeps_what_runs(lab):
    engine = lab.engine(default=["t"] * 10)
    [recorder] = lab.submit(lab.request("r", "a b c d"))
    engine.turn()
    engine.flush()
    lab.settle()
    assert recorder.end.text == "t" * 10
    lab.assert_clean()


def test_native_waiting_on_the_loops_own_thread_is_refused(lab):
    engine = lab.engine(stepped=False)
    refused = []

    def ask(number):
        with pytest.raises(EngineError, match="cannot wait") as caught:
            engine.generate("q", GREEDY)
        refused.append(caught)

    lab.worker.during_step = ask
    [recorder] = lab.submit(lab.request("r"))
    assert recorder.end.text == "abc"
    assert len(refused) == len(lab.worker.steps)


def test_native_turn_of_a_background_engine_is_refused(lab):
    with pytest.raises(EngineError):
        lab.engine(stepped=False).turn()


def test_native_leased_children_compute_the_parent_once(lab):
    engine = lab.engine()
    preamble = " ".join(f"w{i}" for i in range(50))
    lease = engine.lease(lab.ids(preamble), engine.info.namespace, 10)
    recorders = lab.submit(*(lab.request(f"r{i}", f"{preamble} t{i}", lease=lease) for i in range(10)))
    lab.settle()
    assert engine.snapshot().scheduler.leases == 0
    assert sum(r.end.computed_tokens for r in recorders) == 50 + 10
    assert engine.health().status == "ok"
    lab.assert_clean()


def test_native_lease_holds_the_parent_until_its_children_came(lab):
    engine = lab.engine()
    lease = engine.lease(lab.ids("w1 w2 w3 w4"), engine.info.namespace, 2)
    engine.generate("w1 w2 w3 w4 x", GREEDY, namespace="")
    assert engine.flush() > 0  # what the call left beyond the parent
    assert engine.generate("w1 w2 w3 w4 y", GREEDY).cached_tokens == 4
    engine.release(lease)
    engine.turn()
    assert engine.snapshot().scheduler.leases == 0
    engine.flush()
    assert engine.generate("w1 w2 w3 w4 y", GREEDY).cached_tokens == 0
    lab.assert_clean()


def test_native_cancelled_and_refused_children_end_their_lease(lab):
    engine = lab.engine(context_tokens=100)
    lease = engine.lease(lab.ids("w1 w2"), engine.info.namespace, 3)
    lab.submit(
        lab.request("cancelled", "w1 w2 x", lease=lease),
        lab.request("too long", "w1 w2 " * 60, lease=lease),
        lab.request("bad id", "w1 w2 y", lease=lease, stop_token_ids=(10**9,)),
    )
    engine.cancel(["cancelled"])
    engine.turn()
    assert engine.snapshot().scheduler.leases == 0
    lab.assert_clean()
