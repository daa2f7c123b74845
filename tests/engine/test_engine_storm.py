"""Many branching requests through a pool far too small: every answer is that of a cold run alone."""

from __future__ import annotations

import random

import pytest

from sglang_dsl.errors import CancelledError, EngineError
from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.runtime.engine.border import EngineConfig
from sglang_dsl.runtime.schedule.request import GenerateRequest

POLICIES = ["fcfs", "longest_prefix", "depth_first", "priority"]
TOKENS = 6


def branching_prompts(count, seed, depth=6, longest=60):
    """Prompts that are paths of one random tree, so that they share prefixes of every length."""
    rng = random.Random(seed)
    nodes = [[rng.randrange(97, 123) for _ in range(rng.randrange(1, longest))]]
    while len(nodes) < count:
        parent = nodes[max(0, len(nodes) - rng.randrange(1, 60))] if rng.random() < 0.9 else []
        if len(parent) > depth * longest // 2:
            parent = parent[: rng.randrange(1, len(parent))]
        nodes.append(parent + [rng.randrange(97, 123) for _ in range(rng.randrange(1, longest))])
    rng.shuffle(nodes)
    return nodes


def requests_of(lab, prompts, rng):
    return [
        GenerateRequest(
            request_id=f"r{i}",
            prompt_ids=prompt,
            sampling=SamplingSpec(temperature=0, max_tokens=TOKENS, ignore_eos=True),
            namespace=lab.engines[-1].info.namespace,
            priority=rng.randrange(3),
        )
        for i, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("policy", POLICIES)
def test_storm_small_pool_and_forced_retraction_give_the_answers_of_cold_runs(lab, page_model, policy, page_size):
    prompts = branching_prompts(400, seed=POLICIES.index(policy))
    distinct = len({tuple(p[:n]) for p in prompts for n in range(1, len(p) + 1)}) + 400 * TOKENS
    engine = lab.engine(
        model=page_model,
        num_pages=max(distinct // 4, 400) // page_size,
        page_size=page_size,
        config=EngineConfig(policy=policy, prefill_chunk_tokens=128, max_batch_tokens=256, retract_every_steps=3),
    )
    recorders = lab.submit(*requests_of(lab, prompts, random.Random(1)))
    lab.settle(100_000)
    for prompt, recorder in zip(prompts, recorders, strict=True):
        assert not isinstance(recorder.end, Exception), recorder.end
        assert list(recorder.end.token_ids) == page_model.alone(prompt, TOKENS)
    snapshot = engine.snapshot()
    assert snapshot.scheduler.retracted > 10
    assert snapshot.scheduler.evicted_pages > 0
    assert snapshot.cached_tokens > 0
    lab.assert_clean()


@pytest.mark.parametrize("seed", range(4))
def test_storm_with_cancellations_and_faults_keeps_the_others_right_and_the_books_balanced(lab, page_model, seed):
    rng = random.Random(seed)
    prompts = branching_prompts(150, seed=seed, longest=24)
    engine = lab.engine(
        model=page_model,
        num_pages=400,
        config=EngineConfig(
            prefill_chunk_tokens=16, max_batch_tokens=64, max_running=16, retract_every_steps=5, check_integrity=True
        ),
    )
    lab.worker.raise_at = {step: RuntimeError(f"fault {step}") for step in rng.sample(range(5, 60), 3)}
    waiting = requests_of(lab, prompts, rng)
    recorders = {}
    while waiting or engine.snapshot().live:
        batch = [waiting.pop() for _ in range(min(len(waiting), rng.randrange(0, 6)))]
        recorders.update(zip((r.request_id for r in batch), lab.submit(*batch), strict=True))
        live = [request_id for request_id, recorder in recorders.items() if not recorder.ends]
        if live and rng.random() < 0.3:
            engine.cancel([rng.choice(live)])
        engine.turn()
    ends = {request_id: recorder.end for request_id, recorder in recorders.items()}
    assert all(len(recorder.ends) == 1 and not recorder.late for recorder in recorders.values())
    for request_id, end in ends.items():
        if isinstance(end, Exception):
            assert isinstance(end, CancelledError | EngineError)
        else:
            assert list(end.token_ids) == page_model.alone(prompts[int(request_id[1:])], TOKENS)
    assert sum(not isinstance(end, Exception) for end in ends.values()) > 60
    assert engine.snapshot().cancelled > 10
    lab.assert_clean()


@pytest.mark.parametrize("step", range(0, 60, 7))
def test_storm_planted_fault_in_a_page_is_found(lab, page_model, step):
    """The canary itself: a slot that changes under a running request is noticed at its next step."""
    engine = lab.engine(model=page_model, default=["t"] * 80)

    def corrupt(number):
        if number == step and step:
            place = min(lab.worker._slots)
            position, token = lab.worker._slots[place]
            lab.worker._slots[place] = (position + 1, token)

    lab.worker.during_step = corrupt
    [recorder] = lab.submit(lab.request("r", "one two", max_tokens=70, ignore_eos=True))
    lab.settle()
    if step:
        assert isinstance(recorder.end, EngineError)
        assert engine.health().status == "degraded"
    else:
        assert len(recorder.end.token_ids) == 70
