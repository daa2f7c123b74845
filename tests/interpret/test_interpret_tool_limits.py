"""Tools that take too long: what counts towards a limit, and that nothing waits behind a stuck one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as NoResultYet
from typing import Any

import pytest
from fake_target import FakeTarget

from sglang_dsl.errors import DeadlineError, ToolError
from sglang_dsl.ir.execution import RunSpec
from sglang_dsl.ir.nodes import DictOf, ToolNode
from sglang_dsl.ir.specs import RunOptions
from sglang_dsl.runtime.interpret.run import InterpretedRun
from sglang_dsl.runtime.interpret.user_code import WORKERS


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """What stuck tools wait for; set when the test ends."""
    event = threading.Event()
    yield event
    event.set()


def run_with(registry: dict[str, Callable[..., Any]], **options: Any) -> InterpretedRun:
    return InterpretedRun(
        RunSpec(options=RunOptions(seed=1, **options), registry=registry), {None: FakeTarget(lambda request: "")}
    )


def call(node_id: str, tool: str, timeout_s: float | None = None) -> ToolNode:
    return ToolNode(id=node_id, name=tool, tool=tool, arguments=DictOf(()), timeout_s=timeout_s)


def test_timeout_counts_from_the_start_of_the_call_not_while_it_waits_for_a_thread(stuck: threading.Event) -> None:
    run = run_with({"slow": lambda: stuck.wait(10), "quick": lambda: "ok"})
    run.extend([call(f"s{i}", "slow") for i in range(WORKERS)])
    run.extend([call("q", "quick", timeout_s=0.02)])
    with pytest.raises(NoResultYet):
        run.value("q").result(0.1)
    stuck.set()
    assert run.value("q").result(5).value == "ok"


def test_tools_that_outlived_their_timeout_hold_back_no_other(stuck: threading.Event) -> None:
    run = run_with({"slow": lambda: stuck.wait(10), "quick": lambda: "ok"})
    run.extend([call(f"s{i}", "slow", timeout_s=0.02) for i in range(2 * WORKERS)])
    run.extend([call("q", "quick", timeout_s=5)])
    assert run.value("q").result(5).value == "ok"
    assert all(isinstance(run.value(f"s{i}").exception(5), ToolError) for i in range(2 * WORKERS))


def test_tools_of_a_cancelled_branch_hold_back_no_other(stuck: threading.Event) -> None:
    begun = threading.Semaphore(0)

    def slow() -> None:
        begun.release()
        stuck.wait(10)

    run = run_with({"slow": slow, "quick": lambda: "ok"})
    run.extend([call(f"s{i}", "slow") for i in range(WORKERS)])
    for _ in range(WORKERS):
        assert begun.acquire(timeout=5)
    run.cancel([f"s{i}" for i in range(WORKERS)], "not needed")
    run.extend([call("q", "quick")])
    assert run.value("q").result(5).value == "ok"


def test_deadline_of_the_run_also_ends_tools_that_wait_for_a_thread(stuck: threading.Event) -> None:
    run = run_with({"slow": lambda: stuck.wait(10)}, deadline_s=0.05)
    run.extend([call(f"s{i}", "slow") for i in range(WORKERS + 1)])
    assert all(isinstance(run.value(f"s{i}").exception(5), DeadlineError) for i in range(WORKERS + 1))


def test_many_tools_with_limits_share_few_threads() -> None:
    before = threading.active_count()
    seen: list[int] = []
    run = run_with({"count": lambda: seen.append(threading.active_count() - before)}, deadline_s=60)
    run.extend([call(f"c{i}", "count", timeout_s=30) for i in range(1000)])
    for i in range(1000):
        run.value(f"c{i}").result(10)
    assert max(seen) <= WORKERS + 1
