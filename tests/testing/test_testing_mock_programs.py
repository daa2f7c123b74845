"""Scripts against whole programs: run, batch, stream and async (cases 21, 24, 73)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sglang_dsl import RunOptions, State, gen, program
from sglang_dsl.errors import ScriptError
from sglang_dsl.testing import MockExecutor, mock


@program
def talk(s: State, calls: int) -> str:
    s += "Go "
    for i in range(calls):
        s += gen(f"g{i}", max_tokens=8)
    return str(s[f"g{calls - 1}"])


@program
async def talk_async(s: State, calls: int) -> str:
    s += "Go "
    for i in range(calls):
        s += gen(f"g{i}", max_tokens=8)
    return str(await s.get(f"g{calls - 1}"))


def by_run(backend: MockExecutor, calls: int) -> Any:
    return talk.run(calls, options=RunOptions(backend=backend)).value


def by_arun(backend: MockExecutor, calls: int) -> Any:
    async def main() -> Any:
        return (await talk_async.arun(calls, options=RunOptions(backend=backend))).value

    return asyncio.run(main())


def by_batch(backend: MockExecutor, calls: int) -> Any:
    [result] = talk.run_batch([(calls,)], options=RunOptions(backend=backend))
    return result.value


WAYS: list[Callable[[MockExecutor, int], Any]] = [by_run, by_arun, by_batch]


@pytest.mark.parametrize("way", WAYS)
def test_script_of_two_fits_two_calls_however_the_program_is_run(way: Callable[[MockExecutor, int], Any]) -> None:
    with mock(["one", "two"]) as backend:
        assert way(backend, 2) == "two"


@pytest.mark.parametrize("way", WAYS)
def test_script_of_two_fails_the_third_call_with_its_node_and_prompt(way: Callable[[MockExecutor, int], Any]) -> None:
    with mock(["one", "two"]) as backend, pytest.raises(ScriptError, match=r"'g2'.*Go onetwo"):
        way(backend, 3)


@pytest.mark.parametrize("way", WAYS)
def test_script_of_two_reports_what_one_call_left(way: Callable[[MockExecutor, int], Any]) -> None:
    with pytest.raises(ScriptError, match="reply 1: 'two'"):  # noqa: SIM117
        with mock(["one", "two"]) as backend:
            way(backend, 1)


def test_two_rounds_of_one_name_bind_the_second_rounds_values() -> None:
    @program
    def rounds(s: State) -> list[str]:
        for r in range(2):
            branches = s.fork(2)
            for branch in branches:
                branch += f"r{r} "
                branch += gen("v")
            branches.join("v")
        return list(s["v"])

    with mock([f"OUT{i}" for i in range(1, 5)]) as backend:
        assert rounds.run(options=RunOptions(backend=backend)).value == ["OUT3", "OUT4"]


def test_nesting_two_hundred_deep_keeps_the_leafs_value() -> None:
    @program
    def deep(s: State, depth: int) -> str:
        state = s
        state += "x "
        for _ in range(depth):
            [state] = list(state.fork(1))
        state += gen("v")
        return str(state["v"])

    with mock(["leaf"]) as backend:
        assert deep.run(200, options=RunOptions(backend=backend)).value == "leaf"
