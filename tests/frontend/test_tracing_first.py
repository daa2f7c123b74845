"""Tracing, the first version: one path, references for values, a Break where Python asks for one."""

from __future__ import annotations

import pytest

from sglang_dsl import State, assistant, gen, program, select, tool, user
from sglang_dsl.errors import TraceError
from sglang_dsl.ir.nodes import Break, Concat, Constant, Input, ListOf, Plain, Reference, Return, Text, Tool
from sglang_dsl.ir.verify import findings


@tool
def never(x: str) -> str:
    raise AssertionError("tools are not run while tracing")


@program
def story(s: State, topic: str, rounds: int = 2):
    s += user(f"About {topic}")
    for _ in range(rounds):
        s += assistant(gen("line"))
    s += f"<{s['line']}|{s.call(never, s['line'])}>"
    branches = s.fork(2)
    branches += gen("v")
    return [branches.join("v"), s["line"], f"x{s['line']}"]


def test_trace_runs_no_model_and_refers_to_values():
    graph = story.trace("cats")
    assert graph.frozen
    assert findings(graph) == []
    texts = [n.pieces for n in graph if isinstance(n, Text)]
    assert texts == [
        (Plain("About cats"),),
        (Plain("<"), Reference("2.1#2"), Plain("|"), Reference("3"), Plain(">")),
    ]
    (call,) = [n for n in graph if isinstance(n, Tool)]
    assert call.arguments.items == (("x", Reference("2.1#2")),)
    (end,) = [n for n in graph if isinstance(n, Return)]
    assert end.value == ListOf((Reference("7"), Reference("2.1#2"), Concat((Constant("x"), Reference("2.1#2")))))


def test_trace_has_the_node_ids_of_the_run(fake):
    from sglang_dsl import RunOptions

    @program
    def p(s: State):
        s += user("q") + gen("a")
        s.fork(3).append(gen("b", n=2))

    ran = p.run(options=RunOptions(backend=fake())).graph
    assert p.trace() == ran


def test_trace_leaves_symbolic_arguments_unknown():
    graph = story.trace(symbolic=["topic"])
    assert [n.name for n in graph if isinstance(n, Input)] == ["topic"]
    text = next(n for n in graph if isinstance(n, Text))
    assert text.pieces == (Plain("About "), Reference("topic"))


@pytest.mark.parametrize(
    "ask",
    [
        lambda v: v == "x",
        lambda v: bool(v),
        lambda v: len(v),
        lambda v: int(v),
        lambda v: {"a": 1}.get(v),
        lambda v: list(v),
        lambda v: "x" in v,
        lambda v: v < "x",
        lambda v: v[0],
        lambda v: v.split(),
        lambda v: ["a"].index(v),
        lambda v: "a" + v if v else "",
    ],
)
def test_trace_breaks_where_python_asks_for_a_value(ask):
    @program
    def p(s: State):
        s += select("k", ["x", "y"])
        try:
            ask(s["k"])
        except Exception:  # noqa: BLE001  a body's except must not swallow it
            s += "swallowed"
        s += "never"

    graph = p.trace()
    assert [n.kind for n in graph] == ["select", "break"]
    (end,) = [n for n in graph if isinstance(n, Break)]
    assert end.on == Reference("1")
    assert end.origin.file == __file__
    with pytest.raises(TraceError):
        p.trace(strict=True)


def test_trace_of_an_async_program():
    @program
    async def p(s: State):
        a = gen("a")
        s += a
        return await s.get(a)

    (end,) = [n for n in p.trace() if isinstance(n, Return)]
    assert end.value == Reference("1")


def test_trace_where_text_is_asked_for_says_so():
    @program
    def p(s: State):
        s += gen("a")
        return s.text

    with pytest.raises(TraceError, match="while tracing"):
        p.trace()
