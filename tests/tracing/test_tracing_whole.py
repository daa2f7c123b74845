"""Every graph that tracing makes verifies, survives both forms, and does what its body does (cases: 506)."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest
from trial_runs import assert_same, breaks

from sglang_dsl import RunOptions, State, execute, gen, program, select
from sglang_dsl.ir.execution import RunSpec
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.json_format import dumps, loads
from sglang_dsl.ir.nodes import Arm
from sglang_dsl.ir.semantics import arm_of, same
from sglang_dsl.ir.text_format import parse, print_graph
from sglang_dsl.ir.verify import findings
from sglang_dsl.runtime.backends.mock import mock

CASES: dict[str, Any] = {}


def case(body: Callable[..., Any]) -> Callable[..., Any]:
    """A program of the list below."""
    CASES[body.__name__] = program(body)
    return body


@case
def map_in_arm_in_map(s):
    def inner(b, x):
        b += f"{x}" + gen("i")
        return b["i"]

    def outer(b, x):
        b += f"{x}" + select("k", ["a", "b"])
        if b["k"] == "a":
            b.map(["p", "q"], inner)
        b += "more"
        b += gen("after")
        return b["after"]

    s.map(["x", "y"], outer)
    s += "end"
    s += gen("fin")


@case
def nested_switch_twice(s):
    s += select("k", ["a", "b", "c"]) + select("m", ["x", "y"])

    def in1(t):
        t += gen("p")
        return t["p"]

    def in2(t):
        t += gen("q")
        return t["q"]

    def arm1(t):
        return t.switch("k", {"a": in1, "b": in2, "c": in1})

    def arm2(t):
        return t.switch("k", {"a": in2, "b": in1}, default=in2)

    s += s.switch("k", {"a": arm1, "b": arm2}, default=arm2)


@case
def break_missing(s):
    s += gen("a")

    def body(t):
        t += gen("b")
        if len(t["b"]) > 3:
            t += "x"
        return t["b"]

    s += s.loop(body, limit=2)


@case
def break_in_arm(s):
    s += select("k", ["a", "b"])
    if s["k"] == "a":
        s += gen("z")
        if "q" in s["z"]:
            s += "!"
    s += "end"


@case
def break_in_map(s):
    s += gen("l", schema=list[str])

    def body(t, x):
        t += x + gen("b")
        if "q" in t["b"]:
            t += "x"
        return t["b"]

    s.map(s["l"], body)


@case
def break_on_item(s):
    s += gen("l", schema=list[str])

    def body(t, x):
        if "q" in x:
            t += "x"
        t += x + gen("b")
        return t["b"]

    s.map(s["l"], body)


@case
def loop_const(s):
    def body(t):
        t += gen("b")
        return "const"

    s += s.loop(body, limit=2)


@case
def loop_fstring(s):
    def body(t):
        t += gen("b")
        return f"<{t['b']}>"

    s += s.loop(body, limit=2)


@case
def loop_tuple(s):
    def body(t):
        t += gen("b")
        return t["b"], "x"

    a, b = s.loop(body, limit=2)
    s += a + b


@case
def loop_list(s):
    def body(t):
        t += gen("b")
        return [t["b"], "x"]

    a = s.loop(body, limit=2)
    s += a[0]


@case
def loop_dict(s):
    def body(t):
        t += gen("b")
        return {"v": t["b"], "n": 3}

    a = s.loop(body, limit=2)
    s += a["v"]


@case
def loop_none(s):
    def body(t):
        t += gen("b")

    s.loop(body, limit=2)


@case
def loop_int(s):
    def body(t):
        t += gen("b")
        return 5

    s += f"{s.loop(body, limit=2)}"


@case
def loop_branching(s):
    def body(t):
        t += gen("b") + select("k", ["a", "b"])
        if t["k"] == "a":
            return t["b"]
        return "none"

    s += s.loop(body, until="k", stop_value="a", limit=2)


@case
def join_map(s):
    s += gen("l", schema=list[str])

    def body(t, x):
        t += x + gen("b")
        return t["b"]

    s += ", ".join(s.map(s["l"], body))


@case
def join_map_known(s):
    def body(t, x):
        t += x + gen("b")
        return t["b"]

    s += ", ".join(s.map(["a", "b"], body))


@case
def scope_methods(s):
    with s.var_scope("v"):
        s += "in " + gen("a")
    s += s["v"].upper() + s["v"].strip() + f"{s['v']!r:>40}" + s["v"][:3] + s["v"] * 2


@case
def map_if(s):
    s += gen("l", schema=list[str])

    def body(t, x):
        t += x + select("k", ["a", "b"])
        if t["k"] == "a":
            t += gen("y")
            return t["y"]
        t += gen("z")
        return t["z"]

    r = s.map(s["l"], body)
    s += gen("end")
    return r


@case
def map_if_const(s):
    s += gen("l", schema=list[str])

    def body(t, x):
        t += x + gen("ok", type=bool)
        if t["ok"]:
            t += gen("y")
            return t["y"]
        return "none"

    return s.map(s["l"], body)


@case
def switch_float(s):
    s += gen("n", type=float)

    def five(t):
        t += gen("five")
        return t["five"]

    def other(t):
        t += gen("oth")
        return t["oth"]

    s += s.switch("n", {5.0: five}, default=other)


@case
def switch_float_lit(s):
    s += gen("n", schema={"enum": [1.0, 2.5, 5]})
    if s["n"] == 5.0:
        s += gen("five")
    else:
        s += gen("other")


STOPPED = {"break_missing", "break_in_arm", "break_in_map", "break_on_item", "join_map", "scope_methods"}


@pytest.mark.parametrize("name", sorted(CASES))
def test_graph_of_a_trace_is_a_graph(name) -> None:
    graph = CASES[name].trace()
    assert findings(graph) == []
    assert loads(dumps(graph)) == graph
    assert parse(print_graph(graph)) == graph
    assert bool(breaks(graph)) == (name in STOPPED)
    if name not in STOPPED:
        assert CASES[name].export(trials=20) == graph
        assert_same(CASES[name], graph)


def test_structure_of_an_input_survives_the_text_form() -> None:
    @program
    def p(s: State, given: Any):
        s += given[0]["a"] + gen("x")

    graph = p.export([{"a": "q", "b": [1, {"c": True}]}, "x"], symbolic=["given"])
    assert parse(print_graph(graph)) == graph
    assert loads(dumps(graph)) == graph


@pytest.mark.parametrize(
    ("value", "taken"), [(5, 0), (5.0, 0), (True, 1), (1, 2), ("5", 3), (None, 3), ([1.0, {"a": 2}], 4), ([True], 3)]
)
def test_which_arm_a_value_takes(value, taken) -> None:
    empty = Graph().freeze()
    arms = [Arm((5.0,), empty), Arm((True,), empty), Arm((1,), empty), Arm(None, empty), Arm(([1, {"a": 2.0}],), empty)]
    assert arm_of(arms, value) == taken
    assert arm_of(arms[:1], "x") is None


def test_numbers_are_the_same_by_value_and_booleans_are_none() -> None:
    assert same(5, 5.0)
    assert not same(True, 1)
    assert not same([0], [False])


@pytest.mark.parametrize("says", ["5", "5.0", "7"])
def test_arm_for_a_float_is_taken_alike_by_body_and_graph(says) -> None:
    calls = []
    for run in ("body", "graph"):
        backend = mock(lambda call: says if call.name == "n" else str(call.name))
        if run == "body":
            CASES["switch_float"].run(options=RunOptions(backend=backend))
        else:
            graph = CASES["switch_float"].export()
            execute(graph, backend, RunSpec(program="p", options=RunOptions(backend=backend))).seal().result(30)
        calls.append(sorted(call.name or "" for call in backend.calls()))
    assert calls[0] == calls[1] == sorted(["n", "five" if float(says) == 5 else "oth"])


@pytest.mark.parametrize("name", sorted(set(CASES) - STOPPED - {"switch_float_lit"}))
def test_executing_a_graph_gives_the_text_of_the_body(name) -> None:
    def says(call: Any) -> str:
        number = zlib.crc32(call.prompt.encode())
        if call.choices:
            return str(call.choices[number % len(call.choices)])
        kind = "" if call.constraint is None else call.constraint.kind
        return {"": f"t{number % 7}", "json_schema": '["u", "v"]', "regex": "5", "choices": "true"}[kind]

    body = CASES[name].run(options=RunOptions(backend=mock(says)))
    backend = mock(says)
    run = execute(CASES[name].export(), backend, RunSpec(program="p", options=RunOptions(backend=backend)))
    assert run.seal().result(30).text == body.text


def test_text_of_a_switch_and_of_a_loop() -> None:
    @program
    def p(s: State):
        s += "Q" + select("k", ["a", "b"])
        if s["k"] == "a":
            s += "A" + gen("x")

        def body(b: State) -> None:
            b += "." + gen("y")

        s.loop(body, limit=2)

    graph = p.export()
    backend = mock({"k": ["a"], "x": ["X"], "y": ["1", "2"]})
    run = execute(graph, backend, RunSpec(program="p", options=RunOptions(backend=backend)))
    assert run.seal().result(30).text == "QaAX.1.2"
    texts = {node.kind: run.value(node.id).result().text for node in graph}
    assert texts["switch"] == "AX"
    assert texts["loop"] == ".1.2"
