"""Programs: decorating, running, nesting, binding, batches, streams, async."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from sglang_dsl import RunOptions, State, assistant, gen, program, tool, use, user
from sglang_dsl.errors import (
    CancelledError,
    DeadlineError,
    DecorationError,
    ProgramError,
    SpecError,
    UnknownNameError,
    UnresolvedError,
)
from sglang_dsl.ir.nodes import Constant, Reference, Return, ToolNode
from sglang_dsl.ir.verify import findings


@program
def ask(s: State, question: str, n: int = 1, stop: str = ".", temperature: float = 0.5) -> str:
    """Ask once."""
    s += user(question + stop * n)
    s += assistant(gen("answer"))
    return s["answer"]


def on(backend) -> RunOptions:
    return RunOptions(backend=backend)


# decorating ----------------------------------------------------------------------------------------------------------


def test_decorating_keeps_name_and_doc():
    assert (ask.name, ask.__name__, ask.__doc__) == ("ask", "ask", "Ask once.")


def test_decorating_a_generator_is_refused():
    def stepwise(s):
        yield s

    async def stepwise_async(s):
        yield s

    for function in (stepwise, stepwise_async):
        with pytest.raises(DecorationError, match="is a generator"):
            program(function)


@pytest.mark.parametrize("function", [lambda: 1, lambda *, s: s, lambda *a: a])
def test_decorating_without_a_state_parameter_is_refused(function):
    with pytest.raises(DecorationError, match="no parameter for the state"):
        program(function)


@pytest.mark.parametrize("thing", [5, print, State, staticmethod(lambda s: s)])
def test_decorating_something_else_is_refused(thing):
    with pytest.raises(DecorationError):
        program(thing)


def test_state_parameter_may_have_any_name_and_methods_work(fake):
    class Desk:
        greeting = "hello"

        @program
        def greet(self, state, name: str):
            state += f"{self.greeting} {name}: " + gen("a")
            return state["a"]

    assert Desk().greet.run("Ann", options=on(fake())).value == "a1"
    assert Desk().greet.run(name="Bo", options=on(fake())).text == "hello Bo: a1"


# running -------------------------------------------------------------------------------------------------------------


def test_run_gives_value_text_graph_usage_and_seed(fake):
    result = ask.run("Why", options=RunOptions(backend=fake({"answer": ["because"]}), seed=7))
    assert result.value == "because"
    assert result.text == "<user>Why.</><assistant>because</>"
    assert (result.usage.calls, result.seed, result.error) == (1, 7, None)
    assert result.graph.frozen
    assert result.finished == {"answer": "because"}
    assert findings(result.graph) == []


def test_run_takes_every_parameter_name_of_the_program(fake):
    result = ask.run("Why", n=2, stop="!", temperature=0.1, options=on(fake()))
    assert result.text.startswith("<user>Why!!</>")


def test_program_with_a_parameter_called_options_keeps_it(fake):
    @program
    def p(s: State, options: str) -> str:
        s += options
        return options

    with use(backend=fake()):
        assert p.run(options="mine").value == "mine"


def test_run_with_wrong_arguments_is_a_type_error_and_cancels_the_run(fake):
    backend = fake()
    with pytest.raises(TypeError, match="question"):
        ask.run(options=on(backend))
    assert backend.runs[0].cancelled


def test_body_runs_once_on_the_thread_of_the_caller(fake):
    threads = []

    @program
    def p(s: State):
        threads.append(threading.get_ident())
        s += gen("a")

    p.run(options=on(fake()))
    assert threads == [threading.get_ident()]


def test_body_that_raises_cancels_the_run_and_raises_that(fake):
    backend = fake(held=["a"])

    @program
    def p(s: State):
        s += gen("a")
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        p.run(options=on(backend))
    assert "ValueError" in backend.runs[0].cancelled


def test_failed_call_that_nobody_read_fails_the_run(fake):
    @program
    def p(s: State):
        s += "BOOM" + gen("a")

    with pytest.raises(RuntimeError, match="BOOM"):
        p.run(options=on(fake(fail_if="BOOM")))


def test_return_value_is_in_the_graph_where_it_is_data(fake):
    @program
    def p(s: State, give):
        branches = s.fork(2)
        branches += gen("v")
        return give(branches.join("v"))

    def returned(give):
        nodes = [n for n in p.run(give, options=on(fake())).graph if isinstance(n, Return)]
        return nodes[0].value if nodes else None

    assert returned(lambda joined: joined) == Reference("3")
    assert returned(lambda joined: {"a": [1, "x"]}) == Constant({"a": [1, "x"]})
    assert returned(lambda joined: object()) is None


def test_returned_containers_have_their_lazy_values_resolved(fake):
    @program
    def p(s: State):
        branches = s.fork(2)
        branches += gen("v")
        joined = branches.join("v")
        return {"a": [joined], "b": (1, joined)}

    values = ["v1", "v2"]
    assert p.run(options=on(fake())).value == {"a": [values], "b": (1, values)}


def test_call_without_a_state_says_how_to_run():
    with pytest.raises(ProgramError, match=r"ask.run\(...\)"):
        ask("Why")


# nesting and binding -------------------------------------------------------------------------------------------------


def test_nested_program_appends_to_the_same_state_in_a_scope_of_its_own(fake):
    @program
    def inner(s: State, word: str):
        s += word + gen("a")
        return s["a"]

    @program
    def outer(s: State):
        s += gen("a")
        first = inner(s, "x")
        second = inner(s, "y")
        return s["a"], first, second

    result = outer.run(options=on(fake()))
    assert result.value == ("a1", "a2", "a3")
    assert result.text == "a1xa2ya3"
    assert [n.id for n in result.graph][:5] == ["1", "inner/1", "inner/1.1", "inner#2/1", "inner#2/1.1"]


def test_nested_program_in_each_branch(fake):
    @program
    def inner(s: State, i: int):
        s += f"{i}" + gen("a")
        return s["a"]

    @program
    def outer(s: State):
        return [inner(branch, i) for i, branch in enumerate(s.fork(3))]

    assert outer.run(options=on(fake())).value == ["a1", "a2", "a3"]


def test_bound_arguments_give_way_to_those_of_the_run(fake):
    bound = ask.bind(question="Q", n=2)
    assert bound.run(options=on(fake())).text.startswith("<user>Q..</>")
    assert bound.run(n=3, options=on(fake())).text.startswith("<user>Q...</>")
    assert bound.run("R", options=on(fake())).text.startswith("<user>R..</>")
    with pytest.raises(ProgramError, match="no parameter 'm'"):
        ask.bind(m=1)


# surroundings --------------------------------------------------------------------------------------------------------


def test_use_reaches_runs_and_is_overridden_by_them(fake):
    outer, inner, own = fake(), fake(), fake()
    with use(backend=outer, seed=1):
        with use(RunOptions(backend=inner)):
            assert ask.run("a").seed == 1
        ask.run("b", options=on(own))
    assert [len(b.runs) for b in (outer, inner, own)] == [0, 1, 1]


def test_use_of_both_forms_at_once_is_refused():
    with pytest.raises(SpecError), use(RunOptions(), seed=1):
        pass


def test_two_threads_with_two_backends_do_not_meet(fake):
    backends = [fake(), fake()]

    def work(index):
        with use(backend=backends[index]):
            return [ask.run("q").value for _ in range(20)]

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    assert [len(b.runs) for b in backends] == [20, 20]


def test_started_and_batched_runs_see_the_context_of_the_caller(fake):
    variable = contextvars.ContextVar("variable", default="none")

    @program
    def p(s: State, _: int):
        return variable.get()

    variable.set("A")
    with use(backend=fake()):
        assert p.start(0).result().value == "A"
        assert [r.value for r in p.run_batch([1, 2, 3])] == ["A"] * 3
        assert asyncio.run(p.arun(1)).value == "A"


# handles -------------------------------------------------------------------------------------------------------------


def test_started_run_can_be_read_cancelled_and_keeps_what_finished(fake):
    backend = fake(held=["b"])

    @program
    def p(s: State):
        s += gen("a") + gen("b")
        return s["b"]

    running = p.start(options=on(backend))
    with pytest.raises(DeadlineError):
        running.result(timeout_s=0.02)
    assert not running.done
    running.cancel("enough")
    result = running.result(5, raising=False)
    assert isinstance(result.error, CancelledError)
    assert result.finished == {"a": "a1"}
    with pytest.raises(CancelledError):
        running.result()
    with pytest.raises(CancelledError):
        result.value


def test_read_with_a_timeout_gives_up(fake):
    backend = fake(held=["a"])

    @program
    def p(s: State):
        s += gen("a")
        with pytest.raises(DeadlineError, match=r"after 0.01 s"):
            s.read("a", timeout_s=0.01)
        backend.runs[0].release("a")
        return s.read("a", timeout_s=5)

    assert p.run(options=on(backend)).value == "a1"


def test_program_that_cancels_itself_ends(fake):
    @program
    def p(s: State):
        s += gen("a")
        s.cancel("no more")
        s += "x"

    with pytest.raises(CancelledError, match="no more"):
        p.run(options=on(fake()))


# batches -------------------------------------------------------------------------------------------------------------


def test_batch_gives_results_in_the_order_of_the_items_and_keeps_errors_apart(fake):
    results = ask.run_batch(
        ["a", ("b", 2), {"question": "BOOM"}, {"question": "c", "stop": "!"}], options=on(fake(fail_if="BOOM"))
    )
    assert [r.error is None for r in results] == [True, True, False, True]
    assert results[1].text.startswith("<user>b..</>")
    with pytest.raises(RuntimeError):
        results[2].value


def test_batch_of_nothing_is_empty(fake):
    assert ask.run_batch([], options=on(fake())) == []


def test_batch_body_that_raises_loses_no_other_result(fake):
    @program
    def p(s: State, i: int):
        if i == 1:
            raise ValueError("one")
        return i

    results = p.run_batch([0, 1, 2], options=on(fake()))
    assert [r.error is None for r in results] == [True, False, True]


def test_batch_uses_at_most_as_many_threads_as_its_concurrency(fake):
    threads, live, most, lock = set(), [0], [0], threading.Lock()

    @program
    def p(s: State, i: int):
        with lock:
            threads.add(threading.get_ident())
            live[0] += 1
            most[0] = max(most[0], live[0])
        s += gen("a")
        value = s["a"]
        with lock:
            live[0] -= 1
        return value

    p.run_batch(range(50), options=on(fake()), concurrency=4)
    assert most[0] <= 4
    assert len(threads) <= 4


@pytest.mark.parametrize("concurrency", [0, -1, "2", True])
def test_batch_concurrency_below_one_is_refused(fake, concurrency):
    with pytest.raises(SpecError):
        ask.run_batch(["a"], options=on(fake()), concurrency=concurrency)


def test_batch_as_finished_gives_the_quick_ones_first(fake):
    backend = fake(held=["slow"])

    @program
    def p(s: State, name: str):
        s += gen(name)
        return s[name]

    order = []
    for index, _ in p.run_batch_iter(["slow", "quick"], options=on(backend), concurrency=2):
        order.append(index)
        for run in backend.runs:
            run.release("slow")
    assert order == [1, 0]


def test_batch_with_a_progress_bar_counts(fake, capsys):
    ask.run_batch(["a", "b"], options=on(fake()), progress=True)
    assert "2/2" in capsys.readouterr().out


def test_pure_program_whose_trace_fails_fails_only_where_its_run_does(fake):
    @program(pure=True)
    def p(s: State, bad: bool):
        if bad:
            raise ValueError("bad")
        s += gen("a")
        return s["a"]

    good, failed, other = p.run_batch([False, True, False], options=on(fake()), concurrency=1)
    assert (good.value, other.value) == ("a1", "a2")
    assert str(failed.error) == "bad"


def test_batch_awaited_with_a_concurrency_below_one_is_refused(fake):
    with pytest.raises(SpecError, match="concurrency=0 is not a whole number above 0"):
        asyncio.run(ask.arun_batch(["a"], options=on(fake()), concurrency=0))


def test_batch_of_an_unknown_backend_says_so():
    with pytest.raises(Exception, match="no backend is called 'nothing'"):
        ask.run_batch(["a"], options=RunOptions(backend="nothing"))


# streams -------------------------------------------------------------------------------------------------------------


def test_stream_joined_is_the_text(fake):
    @program
    def p(s: State):
        s += user("q")
        s += assistant("It is ", gen("m"))
        s += " end"

    stream = p.stream(options=on(fake({"m": ["iron"]})))
    pieces = list(stream)
    assert "".join(pieces) == "<user>q</><assistant>It is iron</> end"
    assert stream.running.result().text == "".join(pieces)


def test_stream_of_one_name_follows_all_branches(fake):
    @program
    def p(s: State):
        s += "x" + gen("other")
        branches = s.fork(2)
        branches += gen("m")
        branches.join("m")

    by_node = {}
    for piece in p.stream(options=on(fake({"m": ["iron", "zinc"]}))).of("m"):
        by_node[piece.node.id] = by_node.get(piece.node.id, "") + piece
    assert sorted(by_node.values()) == ["iron", "zinc"]


def test_stream_of_a_name_that_no_call_has_is_refused_at_its_end(fake):
    stream = ask.stream("Mind?", options=on(fake())).of("anwser")
    with pytest.raises(UnknownNameError, match="no call of ask was named 'anwser'"):
        list(stream)


def test_stream_ends_with_the_error_of_the_program(fake):
    @program
    def p(s: State):
        s += "a"
        raise ValueError("mine")

    pieces = iter(p.stream(options=on(fake())))
    assert next(pieces) == "a"
    with pytest.raises(ValueError, match="mine"):
        next(pieces)


def test_stream_left_early_cancels_the_run(fake):
    backend = fake(held=["b"])

    @program
    def p(s: State):
        s += "a" + gen("b")

    for _ in p.stream(options=on(backend)):
        break
    for _ in range(200):
        if backend.runs[0].cancelled:
            break
        time.sleep(0.01)
    assert backend.runs[0].cancelled == "the stream was left"


def test_async_stream_gives_the_same_text(fake):
    async def collect():
        return [piece async for piece in ask.astream("q", options=on(fake()))]

    assert "".join(asyncio.run(collect())) == "<user>q.</><assistant>answer1</>"


# async ---------------------------------------------------------------------------------------------------------------


@program
async def aask(s: State, question: str) -> str:
    s += user(question)
    a = gen("answer")
    s += assistant(a)
    return await s.get(a)


def test_async_program_is_awaited(fake):
    async def many():
        return await asyncio.gather(*(aask.arun("q", options=on(fake())) for _ in range(50)))

    assert {r.value for r in asyncio.run(many())} == {"answer1"}


def test_async_program_runs_from_everywhere(fake):
    async def inside():
        return aask.run("q", options=on(fake())).value, ask.run("q", options=on(fake())).value

    assert aask.run("q", options=on(fake())).value == "answer1"
    assert asyncio.run(inside()) == ("answer1", "answer1")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: aask.run("q", options=on(fake())).value).result() == "answer1"
    assert aask.start("q", options=on(fake())).result().value == "answer1"
    assert "".join(aask.stream("q", options=on(fake()))) == "<user>q</><assistant>answer1</>"


def test_async_body_that_reads_too_early_is_told_to_await(fake):
    backend = fake(held=["a"])

    @program
    async def p(s: State):
        s += gen("a")
        return s["a"]

    with pytest.raises(UnresolvedError, match=r"await s.get\(x\)") as caught:
        p.run(options=on(backend))
    assert caught.value.origin.statement == 'return s["a"]'


def test_async_join_is_awaited(fake):
    @program
    async def p(s: State):
        v = gen("v", type=int)
        branches = s.fork(2)
        branches += v
        return await branches.join(v)

    assert p.run(options=on(fake({"v": ["1", "2"]}))).value == [1, 2]


def test_cancelled_task_cancels_the_run(fake):
    backend = fake(held=["answer"])

    async def cancel_soon():
        task = asyncio.create_task(aask.arun("q", options=on(backend)))
        while not backend.runs:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel_soon())
    assert backend.runs[0].cancelled


def test_async_batch_needs_no_thread_per_program(fake):
    threads = set()

    @program
    async def p(s: State, i: int):
        threads.add(threading.get_ident())
        s += gen("a")
        return await s.get("a")

    assert len(p.run_batch(range(40), options=on(fake()))) == 40
    assert len(threads) == 1
    results = asyncio.run(p.arun_batch(range(5), options=on(fake())))
    assert [r.error for r in results] == [None] * 5


@dataclass
class Point:
    x: int
    y: int


# tools ---------------------------------------------------------------------------------------------------------------


@tool(pure=True, timeout_s=3)
def search(query: str, limit: int = 2) -> list[str]:
    """Hits."""
    return [f"{query}{i}" for i in range(limit)]


def test_tool_is_called_by_the_runtime_and_read_like_its_result(fake):
    @program
    def p(s: State):
        hits = s.call(search, "x", limit=3)
        s += "Found: " + hits
        return hits, s["search"], hits[0], len(hits)

    result = p.run(options=on(fake()))
    full = ["x0", "x1", "x2"]
    assert result.value == (full, full, "x0", 3)
    assert result.text == 'Found: ["x0", "x1", "x2"]'
    (node,) = [n for n in result.graph if isinstance(n, ToolNode)]
    assert (node.pure, node.timeout_s, node.tool) == (True, 3, search.key)


def test_tool_takes_and_gives_what_its_annotations_say(fake):
    @tool
    def swap(point: Point) -> Point:
        return Point(point.y, point.x)

    @program
    def p(s: State):
        once = s.call(swap, Point(1, 2))
        return once, s.call(swap, once)

    result = p.run(options=on(fake()))
    assert result.value == (Point(2, 1), Point(1, 2))
    assert {n.tool for n in result.graph if isinstance(n, ToolNode)} == {swap.key}


def test_tool_called_outside_of_a_program_is_the_function():
    assert search("a", 1) == ["a0"]


def test_tool_with_wrong_arguments_is_refused_at_the_line(fake):
    @program
    def p(s: State):
        s.call(search, nothing=1)

    with pytest.raises(ProgramError, match="nothing") as caught:
        p.run(options=on(fake()))
    assert caught.value.origin.statement == "s.call(search, nothing=1)"


def test_tool_argument_that_is_no_data_is_refused(fake):
    @program
    def p(s: State):
        s.call(search, object())

    with pytest.raises(ProgramError, match="not data"):
        p.run(options=on(fake()))


@pytest.mark.parametrize("function", [lambda *a: a, lambda **k: k, 5])
def test_tool_that_cannot_be_called_by_name_is_refused(function):
    with pytest.raises(SpecError):
        tool(function)


def test_batch_of_async_programs_bounds_how_many_run(fake):
    live, most = set(), []

    @program
    async def p(s: State, item: int):
        live.add(item)
        most.append(len(live))
        for _ in range(3):
            await asyncio.sleep(0)
        live.discard(item)
        return item

    results = asyncio.run(p.arun_batch(range(6), options=on(fake()), concurrency=2))
    assert [result.value for result in results] == list(range(6))
    assert max(most) == 2
