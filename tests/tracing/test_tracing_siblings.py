"""Siblings that ask a question: tracing costs their sum, and the graph is right or says that it assumes (cases: 501)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from program_strategy import compiled
from trial_runs import assert_same, breaks, did, everything, run_body, run_graph

import sglang_dsl.sglang as sgl
from sglang_dsl import State, gen, program, select
from sglang_dsl.frontend.tracing import explore
from sglang_dsl.frontend.tracing.rehearsal import NASTY, Samples
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.json_format import dumps, loads
from sglang_dsl.ir.nodes import Gen, Switch
from sglang_dsl.ir.text_format import parse, print_graph
from sglang_dsl.ir.verify import findings
from tests.counted import counted


@pytest.fixture
def covered(monkeypatch) -> None:
    """Also small programs are traced as large ones are."""
    monkeypatch.setattr(explore, "MAX_PATHS", 1)


def assert_whole(graph: Graph) -> None:
    """A graph that verifies and survives both forms."""
    assert findings(graph) == []
    assert loads(dumps(graph)) == graph
    assert parse(print_graph(graph)) == graph


def switches(graph: Graph) -> list[Switch]:
    return [node for node in everything(graph) if isinstance(node, Switch)]


@program
def support(s: State, n: int = 3):
    for b in s.fork(n):
        b += "ticket " + select("kind", ["a", "b", "c"])
        if b["kind"] == "a":
            b += gen("r")
        elif b["kind"] == "b":
            b += gen("q")


@program
def joined(s: State, n: int = 3):
    branches = s.fork(n)
    for b in branches:
        b += select("kind", ["a", "b", "c"])
        b += "A" + gen("r") if b["kind"] == "a" else gen("r")
    s += ", ".join(branches.join("r"))
    return [b["kind"] for b in branches]


@program
def mapped(s: State, n: int = 3):
    def body(b: State) -> str:
        b += select("kind", ["a", "b"])
        if b["kind"] == "a":
            b += gen("r")
            return b["r"]
        return b["kind"]

    s += "; ".join(s.fork(n).map(body))


@program
def helper(s: State, i: int):
    s += f"{i}" + gen("flag", type=bool)
    if s["flag"]:
        s += gen("why")
    s += gen("end")
    return s["end"]


@program
def called(s: State, n: int = 3):
    return [helper(b, i) for i, b in enumerate(s.fork(n))]


@program
def nested(s: State, n: int = 2):
    for b in s.fork(n):
        b += select("kind", ["a", "b"])
        for c in b.fork(2):
            c += gen("size", type=Literal["big", "small"])
            if c["size"] == "big":
                c += gen("more")
        if b["kind"] == "a":
            b += gen("r")


@program
def in_a_row(s: State, n: int = 3):
    for i in range(n):
        s += f"{i}" + select("kind", ["a", "b", "c"])
        if s["kind"] == "a":
            s += gen("r")
        elif s["kind"] == "b":
            s += "B"
    s += gen("end")


@program
def split_inside(s: State, n: int = 2):
    for b in s.fork(n):
        b += select("kind", ["a", "b"])
        if b["kind"] == "a":
            b += select("sub", ["x", "y", "z"])
            b += gen("r") if b["sub"] == "x" else f"<{b['sub']}>"
        b += gen("last")


@program
def switched(s: State, n: int = 3):
    def yes(b: State) -> str:
        b += gen("y")
        return b["y"]

    def no(b: State) -> str:
        b += "no" + gen("n")
        return b["n"]

    found = []
    for b in s.fork(n):
        b += gen("ok", type=bool)
        found.append(b.switch("ok", {True: yes, False: no}))
    s += " ".join(found)


INDEPENDENT = [support, joined, mapped, called, nested, in_a_row, split_inside, switched]


@pytest.mark.parametrize("body", INDEPENDENT, ids=lambda p: p.name)
def test_graph_of_independent_siblings_does_what_the_body_does(body, covered) -> None:
    graph = body.trace()
    assert_whole(graph)
    assert any(node.assumed for node in switches(graph))
    assert_same(body, graph)


@pytest.mark.parametrize("body", INDEPENDENT, ids=lambda p: p.name)
def test_few_siblings_are_followed_whole(body) -> None:
    graph = body.trace(2)
    assert_whole(graph)
    assert not any(node.assumed for node in switches(graph))
    assert_same(body, graph, 2)


@pytest.mark.parametrize("body", INDEPENDENT, ids=lambda p: p.name)
def test_forty_siblings_take_the_work_of_forty(body) -> None:
    graph, calls = counted(lambda: body.trace(40))
    assert calls < 25_000_000  # two take up to 230,000; the product of forty would never end
    assert breaks(graph) == []
    assert findings(graph) == []
    assert all(node.assumed for node in switches(graph))


def test_every_answer_of_forty_tickets_is_in_the_graph() -> None:
    graph = support.trace(40)
    made = {(node.name, node.id.rpartition("[")[2]) for node in everything(graph) if isinstance(node, Gen)}
    assert len(made) == 80
    assert len(switches(graph)) == 40
    samples = Samples(3, NASTY)
    assert did(lambda: run_graph(graph, samples)) == did(lambda: run_body(support, samples, 40))


def test_runs_of_the_body_grow_with_the_sum() -> None:
    count = [0]

    @program
    def p(s: State, n: int):
        count[0] += 1
        for b in s.fork(n):
            b += select("kind", ["a", "b", "c"])
            b += gen("r") if b["kind"] == "a" else "no"

    runs = []
    for n in (10, 20, 40):
        count[0] = 0
        p.trace(n)
        runs.append(count[0])
    assert runs == [12, 22, 42]


def test_siblings_in_sglangs_style() -> None:
    @sgl.function
    def f(s, n):
        forks = s.fork(n)
        for b in forks:
            b += sgl.select("kind", choices=["a", "b", "c"])
            if b["kind"] == "a":
                b += sgl.gen("r")
            elif b["kind"] == "b":
                b += sgl.gen("q")
        forks.join()

    graph = f.trace(n=40)
    assert findings(graph) == []
    assert len(switches(graph)) >= 40


def test_pure_run_does_not_wait_for_a_trace_of_all_ways() -> None:
    from sglang_dsl import RunOptions
    from sglang_dsl.runtime.backends.mock import mock

    pure = program(pure=True)(support.function)
    begin = time.process_time()
    pure.run(20, options=RunOptions(backend=mock(unscripted="echo")))
    assert time.process_time() - begin < 5


# --- questions that matter to each other ------------------------------------------------------------------------------

LINES = (
    "b += gen('r')",
    "b += 'x' + gen('q')",
    "n += 1",
    "seen.append(i)",
    "b += gen('r') if n > 1 else 'few'",
    "b += 'many' if len(seen) == 2 else gen('m')",
    "pass",
    "last = b",
)
ENDS = (
    "s += gen('both') if n >= 2 else 'no'",
    "s += gen('all') if len(seen) == 3 else ''",
    "s += 'some' if any(b['kind'] == 'a' for b in branches) else gen('none')",
    "s += gen('two') if [b['kind'] for b in branches].count('b') == 2 else '.'",
    "s += str(sum(b['kind'] == 'c' for b in branches))",
    "s += ' '.join(b['kind'] for b in branches)",
    "s += ', '.join(branches.join('end'))",
    "s += gen('late')",
)


@st.composite
def siblings(draw: Any) -> str:
    """The source of a program of siblings that ask, some of which look at what others were answered."""
    one, two, three = (draw(st.sampled_from(LINES)) for _ in range(3))
    ends = draw(st.lists(st.sampled_from(ENDS), max_size=2))
    lines = [
        "from sglang_dsl import gen, program, select", "@program", "def generated(s):", "    n, seen, last = 0, [], None",
        f"    branches = s.fork({draw(st.integers(2, 4))})", "    for i, b in enumerate(branches):",
        "        b += select('kind', ['a', 'b', 'c'])", "        if b['kind'] == 'a':", f"            {one}",
        "        elif b['kind'] == 'b':", f"            {two}", "        else:", f"            {three}",
        "        b += gen('end')", *(f"    {end}" for end in ends), "    return n", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _trials(trials: int) -> Iterator[Samples]:
    return (Samples(trial, NASTY) for trial in range(trials))


@pytest.mark.parametrize("most", [1, 30, 256])
@given(source=siblings())
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_graph_of_random_siblings_is_right_or_says_that_it_assumes(most, source) -> None:
    note(source)
    body = compiled(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explore, "MAX_PATHS", most)
        graph = body.trace()
    assert_whole(graph)
    assert breaks(graph) == []
    if not any(node.assumed for node in switches(graph)):
        for samples in _trials(30):
            assert did(lambda s=samples: run_graph(graph, s)) == did(lambda s=samples: run_body(body, s))


def test_a_loop_without_an_end_is_a_graph_that_assumes() -> None:
    @program
    def p(s: State):
        s += select("k", ["more", "stop"])
        while s["k"] == "more":
            s += gen("x") + select("k", ["more", "stop"])
        return s["k"]

    graph = p.trace()
    assert_whole(graph)
    assert switches(graph)[0].assumed
