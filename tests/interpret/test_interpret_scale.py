"""Width, depth, many threads, random programs: nothing hangs, nothing is lost, whatever the order of completions."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from fake_target import FakeTarget
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import programs

from sglang_dsl.errors import RunError
from sglang_dsl.ir.execution import RunSpec
from sglang_dsl.ir.nodes import Fork, Gen, Join, Node, Plain, Reference, Text
from sglang_dsl.ir.specs import RunOptions
from sglang_dsl.runtime.interpret.run import InterpretedRun
from sglang_dsl.runtime.schedule.request import Request


def open_run(target: FakeTarget) -> InterpretedRun:
    return InterpretedRun(RunSpec(options=RunOptions(seed=7)), {None: target})


def text(id_: str, said: str, context: str | None = None, branch: int | None = None) -> Text:
    return Text(id=id_, pieces=(Plain(said),), context=context, branch=branch)


def nested(depth: int) -> list[Node]:
    """fork(1) in fork(1) in ..., a leaf gen, and the joins back up."""
    nodes: list[Node] = [text("t", "go ")]
    context = "t"
    for level in range(depth):
        branch = 0 if level else None
        nodes.append(Fork(id=f"f{level}", size=1, context=context, branch=branch))
        context = f"f{level}"
    nodes.append(Gen(id="leaf", name="leaf", context=context, branch=0))
    value = tip = "leaf"
    for level in reversed(range(depth)):
        join = Join(id=f"j{level}", context=f"f{level}", fork=f"f{level}", tips=(tip,), values=(Reference(value),))
        nodes.append(join)
        value = tip = f"j{level}"
    return nodes


@pytest.mark.parametrize("depth", [200, 500])
def test_nesting_joins_deep_needs_no_recursion(depth: int) -> None:
    target = FakeTarget()
    run = open_run(target)
    run.extend(nested(depth))
    target.answer("leaf", "v")
    value = run.value("j0").result(1).value
    for _ in range(depth):
        [value] = value
    assert value == "v"


def test_nesting_deep_fails_as_one() -> None:
    target = FakeTarget()
    run = open_run(target)
    run.extend(nested(500))
    target.answer("leaf", RunError("BOOM"))
    assert "BOOM" in str(run.value("j0").exception(1))
    run.seal().result(1)


def test_chain_of_two_thousand_calls_appended_ahead() -> None:
    target = FakeTarget(lambda r: "x ")
    run = open_run(target)
    nodes: list[Node] = [text("t", "go ")]
    for i in range(2000):
        nodes.append(Gen(id=f"g{i}", name="g", context=nodes[-1].id))
    target.context_tokens = 10**9
    run._machine.default.target.info = target.info.__class__(  # type: ignore[misc]
        model="fake", context_tokens=10**9, kv_bytes_per_token=1, namespace=target.info.namespace
    )
    run.extend(nodes)
    assert run.value("g1999").result(10).value == "x "
    assert target.requests[0].critical_tokens == 2000 * 256
    assert target.requests[-1].critical_tokens == 256


def test_many_threads_appending_to_branches_while_others_complete() -> None:
    target = FakeTarget(lambda r: f"<{r.label.node_id}>")
    run = open_run(target)
    run.extend([text("t", "go "), Fork(id="f", size=16, context="t")])

    def body(branch: int) -> None:
        context, at = "f", branch
        for step in range(20):
            run.extend([text(f"t{branch}.{step}", "? ", context, at if step == 0 else None)])
            run.extend([Gen(id=f"g{branch}.{step}", context=f"t{branch}.{step}")])
            context = f"g{branch}.{step}"
            run.value(context).result(10)

    threads = [threading.Thread(target=body, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    summary = run.seal().result(5)
    assert summary.usage.calls == 320
    assert summary.error is None
    assert target.leases == {}


def outcomes(nodes: list[Node], seed: int, fail: str = "", cancel: str = "") -> dict[str, Any]:
    """Run a program, answering held calls in a random order; what each node gave."""
    target = FakeTarget()
    run = open_run(target)
    rng = random.Random(seed)
    try:
        run.extend(nodes)
    except RunError:
        return {}
    if cancel:
        run.cancel([cancel])
    sealed = run.seal()
    while (open_calls := [held for held in target.held if not held.ended]) and not sealed.done():
        held = rng.choice(open_calls)
        target.finish(held, RunError("BOOM") if held.request.label.node_id == fail else _reply(held.request))
    sealed.result(1)
    assert target.leases == {}
    futures = {node.id: run.value(node.id) for node in nodes}
    assert all(future.done() for future in futures.values())
    return {i: future.exception() or future.result().value for i, future in futures.items()}


def _reply(request: Request) -> str:
    return f"<{request.label.node_id}:{len(request.prompt_ids) % 3}>"


@settings(max_examples=150, deadline=None)
@given(programs(), st.integers(0, 1000), st.integers(0, 1000))
def test_random_programs_give_the_same_values_in_any_order_of_completion(nodes: list[Node], a: int, b: int) -> None:
    if any(isinstance(node, Join) and node.mode in ("first", "vote") for node in nodes):
        outcomes(nodes, a)
        return
    assert outcomes(nodes, a) == outcomes(nodes, b)


@settings(max_examples=150, deadline=None)
@given(programs(), st.integers(0, 1000), st.data())
def test_random_programs_end_whatever_fails_or_is_cancelled(nodes: list[Node], seed: int, data: Any) -> None:
    ids = [node.id for node in nodes]
    outcomes(nodes, seed, fail=data.draw(st.sampled_from(ids)), cancel=data.draw(st.sampled_from(["", *ids])))
