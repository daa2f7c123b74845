"""A traced graph, executed without its Python source, asks the same and gives the same as the program itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from sglang_dsl import RunOptions, State, assistant, gen, program, select, system, user
from sglang_dsl.ir.execution import RunSpec, execute
from sglang_dsl.ir.nodes import Return
from sglang_dsl.ir.text_format import parse, print_graph
from sglang_dsl.testing import mock

TIMEOUT_S = 20


def reply(call: Any) -> Any:
    digest = hashlib.sha256(call.prompt.encode()).hexdigest()
    if call.choices:
        return call.choices[int(digest, 16) % len(call.choices)]
    return " ".join(digest[: 1 + int(digest[0], 16) % 5])


@program
def chat(s: State, question: str) -> str:
    s += system("Be terse.")
    s += user(question)
    s += assistant(gen("a"))
    s += user("Sure? " + s.ref("a"))
    s += assistant(gen("b", stop=["3"]))
    return s["b"]


@program
def fan(s: State, items: list[str]) -> list[str]:
    s += "Common. "
    branches = s.fork(len(items))
    for branch, item in zip(branches, items, strict=True):
        branch += f"{item}: "
        branch += gen("v")
    joined = branches.join("v")
    s += "All: "
    s += joined
    s += gen("end")
    return joined


@program
def tail(s: State) -> str:
    s += " tail "
    s += gen("t")
    return s["t"]


@program
def nested(s: State) -> str:
    s += "Go"
    branches = s.fork(2)
    for branch in branches:
        tail(branch)
        inner = branch.fork(2)
        for leaf in inner:
            leaf += gen("leaf")
        inner.concat()
        branch += gen("after")
    branches.concat()
    return tail(s)


@program
def switched(s: State, question: str) -> Any:
    s += question
    kind = select("kind", ["yes", "no"])
    s += kind

    def explain(s: State) -> Any:
        s += " because " + gen("why")
        return s["why"]

    said = s.switch(kind, {"yes": explain, "no": lambda s: "plain"})
    s += " so "
    s += gen("end")
    return [said, s["end"]]


@program
def branching(s: State, question: str) -> Any:
    s += question
    s += select("k", ["a", "b", "c"])
    if s["k"] == "a":
        s += " first " + gen("x")
    else:
        s += " other " + gen("x")
    return s["x"]


@program
def polish(s: State, limit: int) -> Any:
    s += "Draft: "

    def once(s: State) -> Any:
        s += gen("draft")
        s += select("done", ["yes", "no"])
        return s["draft"]

    return s.loop(once, until="done", stop_value="yes", limit=limit)


@program
def each(s: State, items: list[str]) -> Any:
    s += "common "

    def one(branch: State, item: str) -> Any:
        branch += item + gen("v")
        return branch["v"]

    values = s.map(items, one)
    s += "then " + gen("end")
    return [values, s["end"]]


CASES: list[tuple[Any, tuple[Any, ...]]] = [
    (chat, ("Why?",)),
    (chat, ("<|im_end|>",)),
    (fan, (["p", "q", "r"],)),
    (nested, ()),
    *((switched, (f"q{i}",)) for i in range(4)),
    *((branching, (f"q{i}",)) for i in range(4)),
    (polish, (4,)),
    (each, (["p", "q"],)),
]


@pytest.mark.parametrize(("prog", "arguments"), CASES, ids=[f"{p.name}{a}" for p, a in CASES])
@pytest.mark.parametrize("stored", [lambda g: g, lambda g: parse(print_graph(g))], ids=["as traced", "as text"])
def test_traced_graph_asks_and_gives_what_the_program_does(
    prog: Any, arguments: tuple[Any, ...], stored: Callable[[Any], Any]
) -> None:
    eager_backend, graph_backend = mock(reply), mock(reply)
    eager = prog.run(*arguments, options=RunOptions(backend=eager_backend, seed=1))
    graph = stored(prog.trace(*arguments))
    run = execute(graph, graph_backend, RunSpec(options=RunOptions(seed=1)))
    assert run.seal().result(TIMEOUT_S).error is None
    assert sorted(graph_backend.calls().prompts) == sorted(eager_backend.calls().prompts)
    [returned] = [node for node in graph if isinstance(node, Return)]
    assert run.value(returned.id).result(TIMEOUT_S).value == eager.value
