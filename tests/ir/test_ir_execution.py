"""Graphs run without their Python source: as they are, and read back from either form."""

import hashlib

import pytest

from sglang_dsl.ir.execution import RunSpec, execute
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.json_format import dumps, loads
from sglang_dsl.ir.nodes import (
    Arm,
    Constant,
    Fork,
    Gen,
    Input,
    Join,
    ListOf,
    Loop,
    Map,
    Operation,
    Plain,
    Reference,
    Return,
    RoleBegin,
    RoleEnd,
    Select,
    Switch,
    Text,
)
from sglang_dsl.ir.specs import RunOptions, SamplingSpec
from sglang_dsl.ir.text_format import parse, print_graph
from sglang_dsl.ir.verify import verify
from sglang_dsl.runtime.backends.mock import mock

GREEDY = SamplingSpec(temperature=0, max_tokens=24)


def text(node_id, *said, context=None, branch=None):
    pieces = tuple(Plain(s) if isinstance(s, str) else s for s in said)
    return Text(id=node_id, context=context, branch=branch, pieces=pieces)


def gen(node_id, context, branch=None):
    return Gen(id=node_id, context=context, branch=branch, name=node_id, sampling=GREEDY)


def shared_calls():
    """Five branches, three of which ask the same."""
    nodes = [
        Input(id="topic", name="topic"),
        RoleBegin(id="u", context="topic", role="user"),
        text("p", "About ", context="u"),
        text("q", Reference("topic", (Operation("upper"),)), ": ", context="p"),
        RoleEnd(id="e", context="q", role="user"),
        Fork(id="f", context="e", size=5),
    ]
    for i, question in enumerate(("why?", "how?", "why?", "when?", "why?")):
        nodes += [
            text(f"t{i}", question, context="f", branch=i),
            text(f"s{i}", " Say: ", context=f"t{i}"),
            gen(f"g{i}", f"s{i}"),
        ]
    tips = tuple(f"g{i}" for i in range(5))
    nodes.append(Join(id="j", context="f", fork="f", name="g", tips=tips, values=tuple(map(Reference, tips))))
    nodes += [text("m", "So: ", Reference("j", (Operation("item", (0,)),)), context="j"), gen("last", "m")]
    return Graph(
        [*nodes, Return(id="r", context="last", value=ListOf((Reference("j"), Reference("last"))))], name="shared"
    )


def regions():
    """A switch, a loop and a map."""
    arms = tuple(
        Arm((c,), Graph([text(f"{c}t", f" {c}: "), gen(f"{c}g", f"{c}t")]), Reference(f"{c}g")) for c in ("yes", "no")
    )
    item = Graph([Input(id="i", name="item"), text("it", Reference("i"), "= ", context="i"), gen("ig", "it")])
    return Graph(
        [
            text("a", "Start. "),
            Select(id="k", context="a", choices=("yes", "no")),
            Switch(id="w", context="k", on=Reference("k"), arms=arms),
            Loop(id="l", context="w", body=Graph([gen("lg", None)]), limit=2, result=Reference("lg")),
            Map(id="m", context="l", items=Constant(["x", "y"]), item="i", body=item, result=Reference("ig")),
            Return(id="r", context="m", value=ListOf((Reference("k"), Reference("w"), Reference("l"), Reference("m")))),
        ],
        name="regions",
    )


def answer(call):
    """A reply that depends on the prompt alone."""
    digest = hashlib.sha256(call.prompt.encode()).hexdigest()
    return call.choices[int(digest, 16) % len(call.choices)] if call.choices else digest[:12]


def value_of(graph, calls=None):
    with mock(answer) as executor:
        run = execute(graph, executor, RunSpec(options=RunOptions(seed=1), arguments={"topic": "tea"}))
        value = run.value("r").result(timeout=20).value
        if calls is not None:
            calls.append(executor.calls().count)
    return value


@pytest.mark.parametrize("graph", [shared_calls(), regions()], ids=lambda g: g.name)
def test_execute_graph_from_either_form_gives_the_same_values(graph):
    verify(graph)
    value = value_of(graph)
    assert value_of(parse(print_graph(graph))) == value
    assert value_of(loads(dumps(graph))) == value
