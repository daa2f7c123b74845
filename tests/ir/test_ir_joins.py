"""When joins that compare values are decided, and what they say when they cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sglang_dsl.ir.nodes import Join
from sglang_dsl.ir.semantics import Count, Ended, Verdict, ballot_of
from sglang_dsl.ir.specs import JoinMode


def verdict_of(mode: JoinMode, size: int, values: Sequence[tuple[int, Any]]) -> Verdict | None:
    join = Join(id="j", fork="f", context="f", tips=("t",) * size, values=(None,) * size, mode=mode)
    count = Count(join, size)
    for index, value in values:
        count.add(Ended(index, value, ballot=ballot_of(join, value)))
    return count.verdict()


@pytest.mark.parametrize(
    ("values", "winner"),
    [
        ([(0, "a"), (1, "a")], "a"),  # both others may say "b": a tie, which branch 0 wins
        ([(2, "a"), (3, "a")], None),  # branches 0 and 1 would win that tie
        ([(0, "a"), (3, "b"), (2, "b")], None),
        ([(1, "b"), (0, "a"), (2, "b")], None),  # "a" of branch 3 makes a tie that branch 0 wins
        ([(0, "b"), (1, "a"), (2, "b")], "b"),
    ],
)
def test_vote_of_four_is_decided_exactly_when_the_rest_cannot_change_it(
    values: list[tuple[int, str]], winner: str | None
) -> None:
    verdict = verdict_of("vote", 4, values)
    assert (None if verdict is None else verdict.value) == winner


def test_vote_compares_values_as_json() -> None:
    verdict = verdict_of("vote", 3, [(0, 1), (1, "1"), (2, {"a": 1, "b": 2})])
    assert verdict is not None
    assert verdict.value == 1
    verdict = verdict_of("vote", 3, [(0, 1), (1, {"b": 2, "a": 1}), (2, {"a": 1, "b": 2})])
    assert verdict is not None
    assert verdict.winners == (1, 2)
