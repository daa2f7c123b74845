"""What a type makes of a model's text is made once per attempt, where it is checked, and every reader gets that object."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, field_validator

from sglang_dsl import RunOptions, State, gen, program, tool
from sglang_dsl.ir.record import dump_record, parse_record
from sglang_dsl.runtime.backends.mock import mock
from sglang_dsl.runtime.backends.replay import RecordedExecutor

asked: Counter[int] = Counter()


class Answer(BaseModel):
    """Counts how often each value is validated."""

    n: int

    @field_validator("n")
    @classmethod
    def count(cls, n: int) -> int:
        asked[n] += 1
        if n < 0:
            raise ValueError("too small")
        return n


def texts(*numbers: int) -> list[str]:
    return [json.dumps({"n": n}) for n in numbers]


def run(body: Any, *numbers: int) -> Any:
    asked.clear()
    value = body.run(options=RunOptions(backend=mock({"a": texts(*numbers)}))).value
    assert asked == Counter(numbers), "each attempt is validated once"
    return value


def test_object_that_was_accepted_is_what_every_reader_gets() -> None:
    judged: list[Answer] = []

    @tool
    def same(answer: Answer) -> int:
        return id(answer)

    @program
    def p(s: State) -> Any:
        a = gen("a", type=Answer, validate=lambda answer: judged.append(answer), retries=1)
        s += "?" + a
        of_tool = s.call(same, s.ref(a))
        assert s["a"] is s["a"] is s[a] is s.all("a")[0] is judged[-1]
        assert of_tool == id(s["a"])
        return s["a"]

    assert run(p, -1, 5) is judged[-1]


@pytest.mark.parametrize(
    "join",
    [
        lambda b: list(b.join("a")),
        lambda b: list(b.join("a", mode="settle")),
        lambda b: list(b.first("a", k=3)),
        lambda b: [b.best("a", key=lambda answer: answer.n).value],
        lambda b: [b.vote("a").value],
        lambda b: [b.quorum("a", k=1).value],
    ],
    ids=["all", "settle", "first", "best", "vote", "quorum"],
)
def test_join_gives_the_branches_own_objects(join: Any) -> None:
    @program
    def p(s: State) -> Any:
        branches = s.fork(3)
        branches += "?" + gen("a", type=Answer, max_tokens=20)
        for branch in branches:
            assert branch.text  # quorum and first then cancel nobody
        joined = join(branches)
        own = [branch["a"] for branch in branches]
        assert all(any(item is one for one in own) for item in joined)
        return len(joined)

    assert run(p, 1, 2, 3) in (1, 3)


def test_samples_and_joins_of_joins_are_made_once() -> None:
    @program
    def p(s: State) -> Any:
        outer = s.fork(2)
        for branch in outer:
            branch += "?" + gen("a", type=Answer, n=2)
        once, twice = outer.join("a"), s["a"]
        assert all(one is other for one, other in zip(once, twice, strict=True))
        assert once[0] is outer[0]["a"][0]
        return [answer.n for answer in once]

    assert run(p, 1, 2, 3, 4) == [1, 2, 3, 4]


def test_scalars_and_async_programs_are_made_once_too() -> None:
    made: list[list[int]] = []

    def box(n: int) -> Any:
        made.append([n])
        return made[-1]

    @program
    async def p(s: State) -> Any:
        boxed = gen("a", type=Annotated[int, AfterValidator(box)])
        s += "?" + boxed
        first = await s.get(boxed)
        assert first is await s.get("a") is s["a"] is made[0]
        return first

    assert p.run(options=RunOptions(backend=mock({"a": "7"}))).value == [7]
    assert made == [[7]]


def test_replay_makes_an_equal_object_once_too() -> None:
    @program
    def p(s: State) -> Any:
        s += "?" + gen("a", type=Answer)
        assert s["a"] is s["a"]
        return s["a"]

    backend = mock({"a": texts(3)})
    asked.clear()
    result = p.run(options=RunOptions(backend=backend, seed=1))
    record = parse_record(dump_record(result.record))
    again = p.run(options=RunOptions(backend=RecordedExecutor(record), seed=1))
    assert again.value == result.value == Answer.model_construct(n=3)
    assert asked == {3: 2}


def test_vote_over_objects_compares_their_data_and_runs_none_of_their_code():
    @dataclass(eq=False, repr=False)
    class Choice:
        name: str

        def __repr__(self) -> str:
            raise AssertionError("nobody may ask how it reads")

        __eq__ = __hash__ = __repr__

    @tool
    def choose(index: int) -> Choice:
        return Choice("ab"[index % 2])

    @program
    def plan(s):
        branches = s.fork(3)
        for index, branch in enumerate(branches):
            branch.call(choose, index)
        return branches.vote("choose").value.name

    assert plan.run(options=RunOptions(backend=mock(unscripted="echo"))).value == "a"
