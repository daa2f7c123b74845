"""What a run says it computed is what the scheduler computed: choices, losers, failures and work done twice (cases: 705)."""

from __future__ import annotations

import pytest

from sglang_dsl import assistant, gen, program, select, system, user
from sglang_dsl.errors import DslError
from sglang_dsl.ir.specs import RunOptions
from sglang_dsl.runtime.engine.border import EngineConfig
from sglang_dsl.testing import mock

PREAMBLE = "Rules of the house. " * 20


@program
def fan_out(s):
    """One preamble, many calls."""
    s += system(PREAMBLE)
    calls = s.fork(8)
    for i, call in enumerate(calls):
        call += user(f"Item {i}")
        call += assistant(gen("a", max_tokens=4))
    return calls.join("a")


@program
def chain(s):
    """A conversation, each turn after the last."""
    s += system(PREAMBLE)
    for i in range(5):
        s += user(f"Step {i}")
        s += assistant(gen("a", max_tokens=4))
    return s["a"]


@program
def choices(s):
    """Many selects over long choices."""
    s += PREAMBLE
    for i, branch in enumerate(s.fork(6)):
        branch += f"Question {i}:"
        branch += select("b", [" yes of course it is", " yes of course it may be", " no never", " perhaps"])
    s += select("c", [" one", " two long words"], method="unconditional")
    return s["c"]


@program
def race(s):
    """The first of many; the others are cancelled."""
    s += PREAMBLE
    branches = s.fork(6)
    for i, branch in enumerate(branches):
        branch += "long word " * (1 + 4 * i)
        branch += gen("a", max_tokens=2 + 30 * i)
    return branches.first("a").value


@program
def tree(s):
    """Forks in forks, and a vote."""
    s += PREAMBLE
    outer = s.fork(3)
    for i, branch in enumerate(outer):
        branch += f"Idea {i}"
        inner = branch.fork(3)
        for j, leaf in enumerate(inner):
            leaf += f"Detail {j}"
            leaf += gen("score", max_tokens=3)
        branch += gen("text", max_tokens=3)
        inner.join("score")
    return outer.vote("text")


@program
def samples(s):
    """Several answers of one prompt."""
    s += PREAMBLE
    s += "Say"
    a = gen("a", n=5, max_tokens=3)
    s += a
    return s[a]


@program
def failing(s):
    """Some branches fail after their prompts were computed."""
    s += PREAMBLE
    branches = s.fork(4)
    for i, branch in enumerate(branches):
        branch += f"{'BOOM' if i % 2 else 'fine'} {i}"
        branch += gen("a", max_tokens=40, timeout_s=0.05 if i == 2 else None)
    return [type(value).__name__ for value in branches.settle("a").value]


WORKLOADS = [fan_out, chain, choices, race, tree, samples, failing]


@pytest.mark.parametrize("work", WORKLOADS, ids=lambda work: work.name)
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"page_size": 16},
        {"config": EngineConfig(retract_every_steps=3)},
        {"config": EngineConfig(max_batch_tokens=64, max_running=8)},
        {"config": EngineConfig(prefix_cache=False)},
        {"num_pages": 600},
    ],
    ids=["plain", "pages", "retraction", "chunks", "no cache", "tight"],
)
def test_usage_computed_tokens_are_those_of_the_scheduler(work, config):
    def reply(call):
        if "BOOM" in call.prompt:
            raise ValueError("BOOM")
        return None if call.choices else "word " * 50

    with mock(reply, unscripted="echo", **config) as backend:
        total = lost = 0
        for _ in range(3):  # cold, then warm
            result = work.run(options=RunOptions(backend=backend))
            total += result.usage.computed_tokens
            lost += result.usage.lost_tokens
        assert total == backend.engine.snapshot().scheduler.computed_tokens
        assert 0 <= lost <= total
        if work in (race, failing):
            assert lost > 0
        elif work is not tree:  # whose vote may cancel
            assert lost == 0


def test_usage_of_a_run_that_fails_holds_what_it_had_computed():
    @program
    def late(s):
        s += PREAMBLE
        s += gen("a", max_tokens=10_000)

    with mock(lambda call: "word " * 20_000) as backend:
        with pytest.raises(DslError) as caught:
            late.run(options=RunOptions(backend=backend, deadline_s=0.5))
        usage = caught.value.result.usage
        assert usage.computed_tokens == usage.lost_tokens == backend.engine.snapshot().scheduler.computed_tokens > 0
        assert usage.asked_tokens == 0
