"""Beyond a Break: the other branches and what follows are in the graph, and nothing that hangs on a guess (cases: 404)."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from program_strategy import compiled
from trial_runs import breaks, everything, run_body

from sglang_dsl import RunOptions, State, gen, program, select
from sglang_dsl.errors import ExportError
from sglang_dsl.frontend.tracing.rehearsal import NASTY, Samples
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.json_format import dumps, loads
from sglang_dsl.ir.nodes import Gen, Switch
from sglang_dsl.ir.text_format import parse, print_graph
from sglang_dsl.ir.verify import findings
from sglang_dsl.runtime.backends.mock import mock


def calls(graph: Graph) -> list[str]:
    return [node.name or "" for node in everything(graph) if isinstance(node, Gen)]


def assert_whole(graph: Graph) -> None:
    assert findings(graph) == []
    assert loads(dumps(graph)) == graph
    assert parse(print_graph(graph)) == graph


ASKING = {
    "in": 'b += gen("x")\n        if "yes" in b["x"]:\n            b += gen("y")',
    "chain": 'b += gen("x")\n        if b["x"] == "a":\n            b += gen("y")\n        elif b["x"] == "b":\n            b += gen("z")',
    "while": 'b += gen("x")\n        while "done" not in b["x"]:\n            b += gen("x")',
    "while more": 'b += gen("x")\n        while "more" in b["x"]:\n            b += gen("x")',
    "number": 'b += gen("x", type=int)\n        if b["x"] > 3:\n            b += gen("y")',
    "length": 'b += gen("x")\n        if len(b["x"]) > 3:\n            b += gen("y")',
    "int": 'b += gen("x")\n        for i in range(int(b["x"])):\n            b += gen("y")',
    "lines": 'b += gen("x")\n        for line in b["x"].splitlines():\n            b += line + gen("y")',
    "list": 'b += gen("x", type=list[str])\n        for line in b["x"]:\n            b += line + gen("y")',
    "raise": 'b += gen("x")\n        if not b["x"]:\n            raise ValueError("empty")',
    "continue": 'b += gen("x")\n        if "a" in b["x"]:\n            continue\n        b += gen("y")',
    "sum": 'b += gen("x")\n        n += "a" in b["x"]\n        if n == 2:\n            b += gen("y")',
    "outside": 'b += gen("x")\n        if "a" in s["q"]:\n            b += gen("y")',
    "text of several": 'b += gen("x")\n        if "a" in b["x"] + s["q"]:\n            b += gen("y")',
}


@pytest.mark.parametrize("asking", ASKING.values(), ids=ASKING)
@pytest.mark.parametrize("siblings", [3, 40])
def test_siblings_of_a_branch_that_asks_are_traced(asking, siblings) -> None:
    source = (
        "from sglang_dsl import gen, program\n@program\ndef generated(s):\n    n = 0\n    s += gen('q')\n"
        f"    for b in s.fork({siblings}):\n        {asking}\n    s += gen('last')\n    return s['last']\n"
    )
    body = compiled(source)
    graph = body.trace()
    assert_whole(graph)
    assert calls(graph) == ["q", *["x"] * siblings, "last"]
    assert len(breaks(graph)) == siblings
    assert {node.id.partition("[")[2] for node in breaks(graph)} == {f"{n}]" for n in range(siblings)}
    with pytest.raises(ExportError, match="breaks off"):
        body.export()


def test_what_a_sibling_decides_is_followed_beyond_a_break() -> None:
    @program
    def p(s: State):
        for b in s.fork(3):
            b += select("kind", ["a", "b"]) + gen("x")
            if b["kind"] == "a" and "yes" in b["x"]:
                b += gen("y")
            b += gen("end")

    graph = p.trace()
    assert_whole(graph)
    assert calls(graph) == ["x", "end"] * 3
    for switch in (node for node in graph if isinstance(node, Switch)):
        by_arm = {arm.values: [node.kind for node in arm.graph] for arm in switch.arms}
        assert by_arm == {("a",): ["break"], ("b",): ["gen"]}


def test_siblings_in_async_bodies() -> None:
    @program
    async def p(s: State):
        async def body(b: State, _: str) -> None:
            b += gen("x")
            if "yes" in await b.get("x"):
                b += gen("y")

        await s.map(["a", "b", "c"], body)
        for b in s.fork(2):
            b += gen("w")
            if "yes" in await b.get("w"):
                b += gen("v")
        s += gen("last")

    graph = p.trace()
    assert_whole(graph)
    assert calls(graph) == ["x", "x", "x", "w", "w", "last"]


def test_what_hangs_on_an_answer_is_not_in_the_graph() -> None:
    @program
    def p(s: State):
        n = 0
        for b in s.fork(3):
            b += gen("x")
            n += "yes" in b["x"]
        s += f"{n} of 3" + gen("said")
        if n == 2:
            s += gen("two")
        for b in s.fork(n + 1):
            b += gen("each")
        return n

    graph = p.trace()
    assert_whole(graph)
    assert calls(graph) == ["x", "x", "x", "said"]
    shown = print_graph(graph)
    assert "of 3" not in shown
    assert "return" not in shown


def test_a_made_up_text_is_never_said() -> None:
    @program
    def p(s: State):
        for b in s.fork(2):
            b += gen("x")
            n = int(b["x"])
            s += f"<{n}>" + gen("y")
            s += {"a": "A"}.get(b["x"], "B")

    graph = p.trace()
    assert_whole(graph)
    assert not any("<" in str(getattr(piece, "text", "")) for node in graph for piece in getattr(node, "pieces", ()))
    assert '"B"' not in print_graph(graph)


def test_a_break_on_the_programs_own_line_ends_the_trace() -> None:
    @program
    def p(s: State):
        s += gen("x")
        if "yes" in s["x"]:
            s += gen("y")
        s += "never"

    assert [node.kind for node in p.trace()] == ["gen", "break"]


def test_explain_counts_the_siblings() -> None:
    @program
    def p(s: State):
        for b in s.fork(4):
            b += "part " + gen("part", max_tokens=5)
            if "more" in b["part"]:
                b += gen("more")
        s += gen("end", max_tokens=5)

    found = p.explain(options=RunOptions(backend=mock(unscripted="echo")))
    assert "calls:         >= 5" in str(found)
    assert len(found.incomplete) == 1


LINES = (
    "b += gen('r')",
    "n += 1",
    "b += gen('t') if 'a' in b['x'] else 'few'",
    "b += gen('u') if len(b['x']) > n else gen('v')",
    "n += 'e' in b['x']",
    "n += len(b['x'].split())",
    "last = b",
    "c = b.fork(2); c[0] += gen('c'); n += 'c' in c[0]['c']; c[1] += gen('d')",
    "b += gen('k', choices=['a', 'b']); b += gen('ka') if b['k'] == 'a' else 'no'",
)
ENDS = (
    "s += gen('both') if n >= 2 else 'no'",
    "s += gen('one') if n % 2 else gen('even')",
    "s += f'{n}'",
    "s += ', '.join(branches.join('x'))",
    "s += gen('late')",
    "last is not None and last.append(gen('z'))",
)


@given(
    lines=st.lists(st.sampled_from(LINES), min_size=1, max_size=3),
    ends=st.lists(st.sampled_from(ENDS), max_size=3),
    size=st.integers(2, 4),
)
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_graph_holds_no_call_that_a_run_may_leave_out(lines, ends, size) -> None:
    source = "\n".join(
        [
            "from sglang_dsl import gen, program", "@program", "def generated(s):", "    n, last = 0, None",
            f"    branches = s.fork({size})", "    for i, b in enumerate(branches):", "        b += gen('x')",
            *(f"        {line}" for line in lines), *(f"    {end}" for end in ends), "    return n", "",
        ]
    )  # fmt: skip
    note(source)
    body = compiled(source)
    graph = body.trace()
    assert_whole(graph)
    if not breaks(graph):
        return
    certain = [node.id for node in graph if isinstance(node, Gen)]
    for trial in range(8):
        made = {call.node.id for call in run_body(body, Samples(trial, NASTY)).calls}
        missed = [node_id for node_id in certain if node_id not in made]
        assert missed == []
