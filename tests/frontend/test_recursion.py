"""Programs that call themselves: as deep as the run allows, then an error; traced like loops (case: 304)."""

from __future__ import annotations

from contextvars import ContextVar

import pytest

from sglang_dsl import RunOptions, State, gen, program, select, tool, use
from sglang_dsl.errors import DslError, JoinError, ProgramError, SpecError, ToolError
from sglang_dsl.ir.nodes import Switch, subgraphs
from sglang_dsl.ir.verify import findings
from sglang_dsl.testing import mock
from tests.counted import counted


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
    def run():
        with pytest.raises(JoinError, match="501 calls deep") as caught:
            prog.run(options=options())
        return str(caught.value)

    message, calls = counted(run)
    assert len(message) < 800
    assert calls < 5_000_000


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


# regions, and runs in runs ---------------------------------------------------------------------------------------------


def through_loops(s: State, depth: int, limit: int):
    return "end" if depth == limit else s.loop(lambda inside: through_loops(inside, depth + 1, limit), limit=1)


def through_switches(s: State, depth: int, limit: int):
    if depth == limit:
        return "end"
    deeper = lambda inside: through_switches(inside, depth + 1, limit)  # noqa: E731
    return s.switch("more", {"yes": deeper}, default=deeper)


def through_maps(s: State, depth: int, limit: int):
    if depth == limit:
        return "end"
    return s.map([1], lambda branch, _: through_maps(branch, depth + 1, limit))[0]


WAYS = [through_loops, through_switches, through_maps]


def nesting(way, limit, *, asynchronous):
    if asynchronous:

        @program
        async def p(s: State):
            s += select("more", ["yes", "no"])
            await s.get("more")
            return way(s, 0, limit)
    else:

        @program
        def p(s: State):
            s += select("more", ["yes", "no"])
            return way(s, 0, limit)

    return p


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("way", WAYS[:2])
def test_regions_nest_as_deep_as_programs_do_and_then_end_with_an_error(way, asynchronous):
    assert nesting(way, 450, asynchronous=asynchronous).run(options=options()).value == "end"
    with pytest.raises(ProgramError, match="501 deep in loops and switches"):
        nesting(way, 10**9, asynchronous=asynchronous).run(options=options())


def test_maps_of_known_items_nest_in_runs_and_traces():
    deep = nesting(through_maps, 300, asynchronous=False)
    assert deep.run(options=options()).value == "end"
    assert not findings(deep.trace())


@pytest.mark.parametrize("way", WAYS)
def test_traces_of_regions_without_an_end_are_never_a_recursion_error(way):
    try:
        explained = str(nesting(way, 10**9, asynchronous=False).explain(options=options()))
    except DslError as error:
        explained = str(error)
    assert "deep" in explained
    assert "RecursionError" not in explained


def test_runs_inside_runs_end_where_nested_programs_do():
    backend = mock({"v": "x"})

    @program
    def inner(s: State, depth: int):
        if depth:
            return inner.run(depth - 1, options=RunOptions(backend=backend)).value
        s += gen("v")
        return s["v"]

    @program
    async def ainner(s: State, depth: int):
        if depth:
            return (await ainner.arun(depth - 1, options=RunOptions(backend=backend))).value
        s += gen("v")
        return await s.get("v")

    for prog in (inner, ainner):
        assert prog.run(300, options=RunOptions(backend=backend)).value == "x"
        with pytest.raises(ProgramError, match="501 runs deep"):
            prog.run(10**6, options=RunOptions(backend=backend))


def test_tools_that_run_their_own_program_end_in_a_short_message():
    backend = mock({})

    @tool
    def again(x: int) -> int:
        return outer.run(options=RunOptions(backend=backend, max_depth=40)).value

    @program
    def outer(s: State):
        return s.call(again, 1).value

    with pytest.raises(ToolError) as caught:
        outer.run(options=RunOptions(backend=backend, max_depth=40))
    assert "41 runs deep" in str(caught.value)
    assert len(str(caught.value)) < 4000


def test_deep_values_of_tools_are_handed_on_and_refused_by_name_in_text():
    @tool
    def deep(x: int) -> list:
        value: object = "a"
        for _ in range(3000):
            value = [value]
        return value

    @program
    def p(s: State, said: bool, given: object = None):
        found = s.call(deep, 1)
        if said:
            s += found
            return s.text
        return found

    result = p.run(False, options=options())
    assert isinstance(result.value, list)
    assert "<list>" in repr(result)
    with pytest.raises(DslError, match="deeply"):
        p.run(True, options=options())


def test_deep_values_are_drawn_and_deep_patterns_refused():
    @tool
    def deep(x: int) -> list:
        value: object = "a"
        for _ in range(3000):
            value = [value]
        return value

    @program
    def p(s: State):
        found = s.call(deep, 1)
        s += gen("v")
        return found

    result = p.run(options=options())
    for form in ("terminal", "mermaid", "dot", "svg", "html", "trace"):
        assert result.draw(form)
    with pytest.raises(DslError, match="regular expression"):
        gen("v", regex="(" * 3000 + "a" + ")" * 3000)


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
    (graph, explained), calls = counted(lambda: (prog.trace(), str(prog.explain(options=options()))))
    assert calls < 5_000_000
    assert any(isinstance(node, Switch) and node.assumed for node in _nodes(graph))
    assert not findings(graph)
    assert "more" in explained


def test_trace_of_a_recursion_without_an_end_says_where_it_stopped():
    graph = endless.trace()
    broken = [node for node in _nodes(graph) if node.kind == "break"]
    assert broken
    assert "calls deep" in broken[0].reason
