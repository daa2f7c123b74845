"""What a type checker sees of a program. `test_typing.py` runs mypy and pyright on this file; nothing runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, assert_type

from pydantic import BaseModel

from sglang_dsl import (
    Generation,
    Joined,
    Lazy,
    Program,
    Result,
    RunOptions,
    Selection,
    State,
    gen,
    program,
    select,
    set_default_backend,
    tool,
    use,
    user,
)


class Answer(BaseModel):
    text: str


@dataclass
class Point:
    x: int


@tool(pure=True)
def search(query: str, limit: int = 3) -> list[str]:
    return [query] * limit


@program
def triage(s: State, tickets: list[str], depth: int = 1) -> list[Answer]:
    number = gen("number", type=int)
    free = gen("free", max_tokens=5, stop=["\n"])
    model = gen("answer", schema=Answer, max_tokens=192)
    point = gen("point", type=Point)
    several = gen("several", type=int, n=3)
    kind = select("kind", ["a", "b"])
    odd = gen("odd", type=Literal["a", "b"])
    plain = gen("plain", schema={"type": "object"})

    assert_type(number, Generation[int])
    assert_type(kind, Selection[str])

    s += user("q") + number
    assert_type(s[number], int)
    assert_type(s[free], str)
    assert_type(s[model], Answer)
    assert_type(s[point], Point)
    assert_type(s[several], list[int])
    assert_type(s[kind], str)
    assert_type(s[odd], Any)
    assert_type(s[plain], Any)
    assert_type(s["number"], Any)
    assert_type(s.all(number), list[int])
    assert_type(s.read(number, timeout_s=1), int)

    branches = s.fork(len(tickets))
    branches += model
    for branch in branches:
        assert_type(branch, State)
        branch += user("x")
    assert_type(branches.join(number), Joined[int])
    assert_type(branches.join(model)[0], Answer)
    assert_type(branches.first(number, k=2), Joined[int])
    assert_type(branches.vote(number), Lazy[int])
    assert_type(branches.best(point, key=lambda p: p.x).value, Point)
    assert_type(branches.map(lambda branch: branch[number]), list[int])

    hits = s.call(search, "x", limit=2)
    assert_type(hits, Lazy[list[str]])
    assert_type(hits.value, list[str])
    return branches.join(model)


@program
async def atriage(s: State, ticket: str) -> int:
    number = gen("number", type=int)
    s += number
    assert_type(await s.get(number), int)
    return await s.get(number)


@program
def voted(s: State) -> Lazy[int]:
    number = gen("number", type=int)
    return s.fork(2).vote(number)


@program(pure=True)
def pure(s: State, x: int) -> str:
    return f"{x}"


class Desk:
    """Programs and tools as methods."""

    @program
    def ask(self, s: State, question: str, times: int = 1) -> int:
        number = gen("number", type=int)
        s += question + number
        assert_type(s[number], int)
        assert_type(s.call(self.count, "tent"), Lazy[int])
        return s[number]

    @program
    async def aask(self, s: State, question: str) -> int:
        number = gen("number", type=int)
        s += question + number
        return await s.get(number)

    @program
    def several(self, s: State) -> Joined[int]:
        assert_type(self.ask(s, "inside"), int)
        return s.fork(2).join(gen("number", type=int))

    @program
    def voted(self, s: State) -> Lazy[int]:
        return s.fork(2).vote(gen("number", type=int))

    @program(pure=True)
    def pure(self, s: State, question: str) -> str:
        return question

    @program
    @classmethod
    def of_the_class(cls, s: State, question: str) -> str:
        return question

    @staticmethod
    @program
    def of_nobody(s: State, question: str) -> str:
        return question

    @tool
    def count(self, item: str) -> int:
        return len(item)


desk = Desk()
assert_type(desk.ask.run("q"), Result[int])
assert_type(desk.ask.run("q", times=2, options=RunOptions(seed=1)), Result[int])
assert_type(desk.ask.run_batch(["q"]), list[Result[int]])
assert_type(desk.aask.run("q").value, int)
assert_type(desk.several.run().value, list[int])
assert_type(desk.voted.run().value, int)
assert_type(desk.pure.run("q").value, str)
assert_type(Desk.of_the_class.run("q").value, str)
assert_type(desk.of_the_class.run("q").value, str)
assert_type(desk.of_nobody.run("q").value, str)
assert_type(desk.count("tent"), int)

with use(backend="mock", seed=3, temperature=0, stop=["\n"]) as options:
    assert_type(options, RunOptions)
with set_default_backend("mock"):
    pass

assert_type(triage, Program[[list[str], int], list[Answer]])  # type: ignore[assert-type]  # parameter names count
assert_type(triage.run(["a"]), Result[list[Answer]])
assert_type(triage.run(["a"], depth=2, options=RunOptions()), Result[list[Answer]])
assert_type(atriage.run("x").value, int)
assert_type(voted.run().value, int)
assert_type(pure.run(1).value, str)


async def awaited() -> None:
    assert_type((await atriage.arun("x")).value, int)


triage.run(5)  # type: ignore[call-overload]
triage.run(["a"], wrong=1)  # type: ignore[call-overload]
gen("a", max_tokens="5")  # type: ignore[call-overload]
gen("a", nonsense=1)  # type: ignore[call-overload]
search("x", limit="3")  # type: ignore[arg-type]
