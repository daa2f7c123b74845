"""Programs that call themselves: as deep as the run allows, then an error; traced like loops (case: 304)."""

from __future__ import annotations

import time
from contextvars import ContextVar

import pytest

from sglang_dsl import RunOptions, State, gen, program, select, use
from sglang_dsl.errors import DslError, JoinError, ProgramError, SpecError
from sglang_dsl.ir.nodes import Switch, subgraphs
from sglang_dsl.ir.verify import findings
from sglang_dsl.testing import mock


def options(**fields):
    return RunOptions(backend=mock({"v": "x", "more": "no"}), **fields)


@program
def down(s: State, depth: int) -> str:
    if depth:
        return down(s, depth - 1)
    s += gen("v")
    return s["v"]


@pytest.mark.parametrize(("depth", "limit"), [(300, None), (499, None), (1500, 2000)])
def test_program_calls_itself_as_deep_as_the_run_allows(depth, limit):
    given = {} if limit is None else {"max_depth": limit}
    assert down.run(depth, options=options(**given)).value == "x"


@program
async def adown(s: State, depth: int) -> str:
    if depth:
        return await adown(s, depth - 1)
    s += gen("v")
    return await s.get("v")


@pytest.mark.parametrize(("prog", "depth"), [(down, 501), (down, 10**6), (adown, 501)])
def test_deeper_is_an_error_that_names_program_and_depth(prog, depth):
    with pytest.raises(ProgramError, match=f"{prog.name} is 501 calls deep") as caught:
        prog.run(depth, options=options())
    assert len(str(caught.value)) < 600
    assert "max_depth" in caught.value.hint


def test_limit_is_an_option_of_the_run_and_of_the_surroundings():
    with pytest.raises(ProgramError, match="6 calls deep"):
        down.run(9, options=options(max_depth=5))
    with use(max_depth=3), pytest.raises(ProgramError, match="4 calls deep"):
        down.run(9, options=options())
    for wrong in (0, -1, 2.5, "9", True):
        with pytest.raises(SpecError, match="max_depth"):
            RunOptions(max_depth=wrong)


@program
def branching(s: State):
    return s.fork(1).map(branching)


def plain(s: State):
    return s.fork(1).map(plain)


@program
async def abranching(s: State):
    return await s.fork(1).map(abranching)


@pytest.mark.parametrize("prog", [branching, program(plain), abranching, program(lambda s: s.map([1], body_of_map))])
def test_maps_without_an_end_end_soon_with_the_depth_in_a_short_message(prog):
    began = time.process_time()
    with pytest.raises(JoinError, match="501 calls deep") as caught:
        prog.run(options=options())
    assert len(str(caught.value)) < 800
    assert time.process_time() - began < 10


def body_of_map(s: State, item: int):
    return s.map([item], body_of_map)


def test_mutual_recursion_counts_too():
    @program
    def ping(s: State):
        return pong(s)

    @program
    def pong(s: State):
        return ping(s)

    with pytest.raises(ProgramError, match="calls deep"):
        ping.run(options=options())


def test_deep_calls_see_and_set_the_callers_context_and_raise_through_it():
    seen: ContextVar[int] = ContextVar("seen", default=0)

    @program
    def deep(s: State, depth: int):
        seen.set(seen.get() + 1)
        if depth:
            return deep(s, depth - 1)
        raise KeyError("at the bottom")

    @program
    def top(s: State):
        with pytest.raises(KeyError, match="at the bottom"):
            deep(s, 400)
        return seen.get()

    assert top.run(options=options()).value == 401


def test_message_about_a_node_far_down_is_short():
    @program
    def fail(s: State, depth: int):
        if depth:
            return fail(s, depth - 1)
        s += gen("v", type=int)
        return s["v"]

    with pytest.raises(DslError) as caught:
        fail.run(400, options=options())
    assert len(str(caught.value)) < 1000


# traced ----------------------------------------------------------------------------------------------------------------


@program
def once(s: State, depth: int = 0):
    s += f"r{depth} " + select("more", ["yes", "no"])
    if s["more"] == "yes":
        return once(s, depth + 1)
    return depth


@program
def twice(s: State, depth: int = 0):
    s += f"r{depth} " + select("more", ["yes", "no"])
    if s["more"] == "yes":
        twice(s, depth + 1)
        twice(s, depth + 1)


@program
def spread(s: State, depth: int = 0):
    s += f"r{depth} " + select("more", ["no", "yes"])
    if s["more"] == "yes":
        s.fork(2).map(lambda branch: spread(branch, depth + 1))


@program
def endless(s: State, depth: int = 0):
    s += select("more", ["no", "yes"])
    if s["more"] != "maybe":
        return endless(s, depth + 1)
    return depth


def _nodes(graph):
    for node in graph:
        yield node
        for inner in subgraphs(node):
            yield from _nodes(inner)


@pytest.mark.parametrize("prog", [once, twice, spread])
def test_trace_and_explain_of_recursion_on_a_select_end_soon_and_say_what_is_assumed(prog):
    began = time.process_time()
    graph = prog.trace()
    explained = str(prog.explain(options=options()))
    assert time.process_time() - began < 10
    assert any(isinstance(node, Switch) and node.assumed for node in _nodes(graph))
    assert not findings(graph)
    assert "more" in explained


def test_trace_of_a_recursion_without_an_end_says_where_it_stopped():
    graph = endless.trace()
    broken = [node for node in _nodes(graph) if node.kind == "break"]
    assert broken
    assert "calls deep" in broken[0].reason
