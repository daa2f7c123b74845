"""Graphs and data nested without an end: as deep as the limits say, then a clear error at the border (case: 704)."""

from __future__ import annotations

import hashlib
import json

import pytest
from word_meter import WordMeter

from sglang_dsl.errors import DslError, FormatError, GraphError
from sglang_dsl.ir import analysis
from sglang_dsl.ir.draw import draw
from sglang_dsl.ir.explain import explain
from sglang_dsl.ir.expressions import MAX_DATA_DEPTH
from sglang_dsl.ir.graph import MAX_REGION_DEPTH, Graph
from sglang_dsl.ir.json_format import FORMAT, dumps, loads
from sglang_dsl.ir.nodes import (
    Arm,
    Concat,
    Constant,
    DictOf,
    Gen,
    ListOf,
    Loop,
    Map,
    Plain,
    Reference,
    Return,
    Select,
    Switch,
    Text,
)
from sglang_dsl.ir.operations import text_of
from sglang_dsl.ir.outcome import Outcome
from sglang_dsl.ir.record import RunRecord, dump_record, parse_record
from sglang_dsl.ir.semantics import evaluate, every_node, references_of, same
from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.ir.text_format import parse, print_graph
from sglang_dsl.ir.verify import findings

PICTURES = ("terminal", "mermaid", "dot", "svg", "html")
REGIONS = {
    "loop": lambda i, body: Loop(id=f"r{i}", body=body, limit=1),
    "map": lambda i, body: Map(id=f"r{i}", items=ListOf((Constant(1),)), item=f"i{i}", body=body),
    "switch": lambda i, body: Switch(
        id=f"r{i}", on=Reference("q"), arms=(Arm(values=("a",), graph=body), Arm(values=None, graph=Graph().freeze()))
    ),
}
EXPRESSIONS = {
    "list": lambda inner: ListOf((inner,)),
    "dict": lambda inner: DictOf((("a", inner),)),
    "concat": lambda inner: Concat((inner,)),
}


def nested(wrap, depth, core):
    for _ in range(depth):
        core = wrap(core)
    return core


def regions(kind, depth):
    graph = Graph([Text(id="leaf", pieces=(Plain("x"),))]).freeze()
    for i in range(depth - 1):
        graph = Graph([REGIONS[kind](i, graph)]).freeze()
    return Graph([Select(id="q", choices=("a", "b")), REGIONS[kind](depth, graph)], name="deep").freeze()


def everything(graph):
    assert loads(dumps(graph)) == graph
    assert parse(print_graph(graph)) == graph
    findings(graph)
    list(every_node(graph))
    for node in graph:
        references_of(node)
    explain(graph, WordMeter())
    for question in ("waves", "sibling_groups", "critical_path"):
        getattr(analysis, question)(graph)
    for form in PICTURES:
        assert draw(graph, form)


@pytest.mark.filterwarnings("ignore:.*Mermaid")
@pytest.mark.parametrize("kind", REGIONS)
def test_regions_as_deep_as_the_limit_go_through_everything_and_no_deeper(kind):
    everything(regions(kind, MAX_REGION_DEPTH))
    with pytest.raises(GraphError, match=f"more than {MAX_REGION_DEPTH} deep"):
        regions(kind, MAX_REGION_DEPTH + 1)


@pytest.mark.parametrize("kind", [*EXPRESSIONS, "constant"])
def test_expressions_as_deep_as_the_limit_go_through_everything_and_no_deeper(kind):
    def graph(depth):
        plain = nested(lambda inner: [inner], depth, "x")
        value = Constant(plain) if kind == "constant" else nested(EXPRESSIONS[kind], depth, Reference("q"))
        gen = Gen(id="q", sampling=SamplingSpec(max_tokens=3))
        return Graph([gen, Return(id="r", context="q", value=value)]).freeze()

    everything(graph(MAX_DATA_DEPTH))
    evaluate(graph(MAX_DATA_DEPTH)["r"].value, lambda _: "x")
    with pytest.raises(DslError, match=f"more than {MAX_DATA_DEPTH} deep"):
        dumps(graph(MAX_DATA_DEPTH + 1))


STORED = {
    "list": lambda n: "[" * n + "]" * n,
    "dict": lambda n: '{"dict":[["a",' * n + "1" + "]]}" * n,
    "concat": lambda n: '{"concat":[' * n + "1" + "]}" * n,
    "constant": lambda n: '{"const":' + "[" * n + "]" * n + "}",
    "object": lambda n: '{"const":' + '{"a":' * n + "1" + "}" * n + "}",
    "python": lambda n: '{"const":' + '{"$python":["tuple",[' * n + "1" + "]]}" * n + "}",
    "pairs": lambda n: '{"const":' + '{"$pairs":[[1,' * n + "1" + "]]}" * n + "}",
    "operation": lambda n: '{"ref":"q","ops":[["item",' + "[" * n + "]" * n + "]]}",
}
DEPTHS = (120, 310, 480, 700, 950, 100_000)


def graph_file(node):
    return f'{{"format":"{FORMAT}","version":1,"hash":"x","graph":{{"name":"g","nodes":[{node}]}}}}'


def record_file(line):
    head = {"format": "sglang_dsl.record", "version": 1, "program": "p", "graph": "g", "seed": 0}
    body = json.dumps({**head, "options": {}, "versions": {}}) + f"\n{line}\n"
    digest = hashlib.sha256(body.encode()).hexdigest()
    return body + json.dumps({"end": {"usage": {}, "error": None, "lines": 2, "hash": f"sha256:{digest}"}}) + "\n"


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("kind", STORED)
def test_hostile_files_are_refused_as_such(kind, depth):
    data = STORED[kind](depth)
    node = f'{{"id":"r","kind":"return","value":{data}}}'
    for read, stored in (
        (loads, graph_file(node)),
        (loads, graph_file(f'{{"id":"r","kind":"loop","stop_value":{data},"body":{{"nodes":[]}}}}')),
        (loads, graph_file(f'{{"id":"r","kind":"input","name":"x","structure":{data}}}')),
        (parse_record, record_file(f'{{"node":{node}}}')),
        (parse_record, record_file(f'{{"id":"r","outcome":{{"value":{data},"meta":{data}}}}}')),
        (parse_record, record_file(f'{{"id":"r","error":{data}}}')),
    ):
        with pytest.raises(FormatError) as caught:
            read(stored)
        assert len(str(caught.value)) < 600


@pytest.mark.parametrize("depth", DEPTHS[:-1])
def test_hostile_texts_are_refused_as_such(depth):
    for value in ("[" * depth + "]" * depth, "concat(" * depth + "1" + ")" * depth, '{"a": ' * depth + "1" + "}" * depth,
                  "const(" + "[" * depth + "]" * depth + ")"):  # fmt: skip
        with pytest.raises(FormatError):
            parse(f'graph "g"\n%r = return {value}\n')
    loops = "".join(f"%l{i} = loop limit=1 {{\nbody {{\n" for i in range(depth)) + "}\n}\n" * depth
    with pytest.raises(FormatError):
        parse(f'graph "g"\n{loops}')


@pytest.mark.parametrize(
    "data", [["set", [[1]]], ["Decimal", "x"], ["UUID", 5], ["timedelta", ["x"]], ["date", "soon"], ["tuple", 3]]
)
def test_values_of_python_types_that_are_none_are_refused(data):
    for value in ({"$python": data}, [{"$python": data}], {"$pairs": [[1]]}, {"$pairs": [[[1], 2]]}, {"$float": "x"}):
        with pytest.raises(FormatError):
            parse_record(record_file(json.dumps({"id": "r", "outcome": {"value": value}})))


def test_values_of_runs_are_stored_up_to_the_limit_whatever_they_are_made_of():
    for wrap in (lambda v: [v], lambda v: (v,), lambda v: {1: v}, lambda v: {"$a": v}, lambda v: {"a": v}):
        value = nested(wrap, MAX_DATA_DEPTH, 5)
        record = parse_record(dump_record(RunRecord(outcomes={"a": Outcome(value=value)})))
        assert record.outcomes["a"].value == value
        with pytest.raises(FormatError, match="deep"):
            dump_record(RunRecord(outcomes={"a": Outcome(value=wrap(value))}))


def test_values_that_hold_themselves_or_nest_without_end_are_told_from_each_other():
    one, other = nested(lambda v: [v], 5000, 1), nested(lambda v: [v], 5000, True)
    assert same(one, nested(lambda v: [v], 5000, 1.0))
    assert not same(one, other)
    circle: list = []
    circle.append(circle)
    assert same(circle, circle)
    for value in (one, circle):
        with pytest.raises((GraphError, ValueError)):
            text_of(value)
