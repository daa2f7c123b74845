from __future__ import annotations

from typing import Any

import pytest
from fake_target import FakeTarget

from sglang_dsl.errors import CancelledError, RunError
from sglang_dsl.ir.execution import RunSpec
from sglang_dsl.ir.nodes import Fork, Gen, Plain, Select, Text
from sglang_dsl.ir.specs import RunOptions, SamplingSpec
from sglang_dsl.runtime.interpret.run import InterpretedRun

GREEDY = SamplingSpec(temperature=0, max_tokens=8)


def open_run(target: FakeTarget, *, share_equal: bool = True) -> InterpretedRun:
    return InterpretedRun(RunSpec(options=RunOptions(seed=7)), {None: target}, share_equal=share_equal)


def twins(sampling: SamplingSpec, size: int = 2, **more: Any) -> list[Any]:
    gens = [
        Gen(id=f"a{i}", name="a", context="f", branch=i, sampling=sampling, **{k: v[i] for k, v in more.items()})
        for i in range(size)
    ]
    return [Text(id="t", pieces=(Plain("Shared. "),)), Fork(id="f", size=size, context="t"), *gens]


def test_equal_greedy_calls_are_one_and_count_as_asked_twice() -> None:
    target = FakeTarget()
    run = open_run(target)
    run.extend(twins(GREEDY))
    assert len(target.requests) == 1
    assert target.leases == {}
    target.answer("a", "same")
    first, second = (run.value(f"a{i}").result(1) for i in range(2))
    assert (first.value, second.value) == ("same", "same")
    assert second.meta is not None
    assert (second.meta.computed_tokens, second.meta.cached_tokens) == (0, second.meta.prompt_tokens)
    usage = run.seal().result(1).usage
    assert usage.calls == 2
    assert usage.asked_tokens == 2 * usage.computed_tokens
    assert [(e.node_id, e.text) for e in run.events() if e.kind == "text"] == [("a0", "same"), ("a1", "same")]


def test_equal_call_that_comes_after_the_result_gets_it_at_once() -> None:
    target = FakeTarget()
    run = open_run(target)
    run.extend(twins(GREEDY)[:3])
    target.answer("a", "same")
    run.extend(twins(GREEDY)[3:])
    assert run.value("a1").result(1).text == "same"
    assert len(target.requests) == 1


@pytest.mark.parametrize(
    ("sampling", "more", "requests"),
    [
        (SamplingSpec(temperature=1), {}, 2),
        (SamplingSpec(temperature=1, seed=3), {}, 1),
        (SamplingSpec(temperature=1, seed=3), {"sample": [0, 1]}, 2),
        (GREEDY, {"sample": [0, 1]}, 1),
        (GREEDY, {"timeout_s": [1.0, None]}, 2),
        (GREEDY, {"model": [None, "judge"]}, 2),
    ],
)
def test_calls_are_one_only_if_their_outcome_has_to_be(sampling: SamplingSpec, more: Any, requests: int) -> None:
    target, judge = FakeTarget(), FakeTarget()
    run = InterpretedRun(RunSpec(options=RunOptions(seed=7)), {None: target, "judge": judge})
    run.extend(twins(sampling, **more))
    assert len(target.requests) + len(judge.requests) == requests


def test_sharing_can_be_switched_off() -> None:
    target = FakeTarget()
    open_run(target, share_equal=False).extend(twins(GREEDY))
    assert len(target.requests) == 2


def test_shared_call_goes_on_until_the_last_who_waits_has_left() -> None:
    target = FakeTarget()
    run = open_run(target)
    run.extend(twins(GREEDY))
    run.cancel(["a0"])
    assert target.cancelled == []
    target.answer("a", "same")
    assert run.value("a1").result(1).value == "same"
    assert isinstance(run.value("a0").exception(1), CancelledError)


def test_shared_call_is_cancelled_with_the_last_and_a_later_one_starts_anew() -> None:
    target = FakeTarget()
    run = open_run(target)
    run.extend(twins(GREEDY, 3)[:4])
    run.cancel(["a0", "a1"])
    assert len(target.cancelled) == 1
    run.extend(twins(GREEDY, 3)[4:])
    assert len(target.requests) == 2


def test_failure_of_a_shared_call_is_everybodys_and_is_not_kept() -> None:
    target = FakeTarget()
    run = open_run(target)
    run.extend(twins(GREEDY, 3)[:4])
    boom = RunError("BOOM")
    target.answer("a", boom)
    assert [run.value(f"a{i}").exception(1) for i in range(2)] == [boom, boom]
    run.extend(twins(GREEDY, 3)[4:])
    target.answer("a", "well")
    assert run.value("a2").result(1).value == "well"


def test_equal_selects_are_one() -> None:
    target = FakeTarget(lambda r: [[-1.0], [-2.0]])
    run = open_run(target)
    run.extend(twins(GREEDY)[:2])
    run.extend([Select(id=f"k{i}", choices=("p", "q"), context="f", branch=i) for i in range(2)])
    assert len(target.requests) == 1
    assert run.value("k1").result(1).value == "p"
