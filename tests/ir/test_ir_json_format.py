"""The stored form: exact, versioned, hashed, described by its schema; and what cannot be exported."""

import json

import pytest
from graph_strategy import GRAPHS, same
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator

from sglang_dsl.errors import ExportError, FormatError, Origin
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.json_format import check_exportable, dumps, graph_hash, load, loads, save, schema
from sglang_dsl.ir.nodes import (
    Arm,
    Break,
    Constant,
    Fork,
    Gen,
    Join,
    Plain,
    Reference,
    Return,
    Select,
    Switch,
    Text,
    ToolNode,
)
from sglang_dsl.ir.specs import SamplingSpec

GRAPH = Graph(
    [Text(id="1", pieces=(Plain("hello"),), origin=Origin("a.py", 3, "p", 4, 9)), Gen(id="2", context="1", name="x")],
    name="g",
)
SCHEMA = Draft202012Validator(schema())


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@given(GRAPHS)
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_loads_dumps_any_graph_round_trips_and_fits_the_schema(graph):
    text = dumps(graph)
    assert same(loads(text), graph)
    SCHEMA.validate(json.loads(text))


def test_schema_is_itself_a_valid_schema_and_refuses_an_unknown_field():
    Draft202012Validator.check_schema(schema())
    document = json.loads(dumps(GRAPH))
    document["graph"]["nodes"][0]["colour"] = "red"
    assert not SCHEMA.is_valid(document)


def test_dumps_keeps_origins_that_the_hash_does_not_see():
    moved = Graph([Text(id="1", pieces=(Plain("hello"),), origin=Origin("b.py", 99)), GRAPH["2"]], name="g")
    assert loads(dumps(GRAPH))["1"].origin == Origin("a.py", 3, "p", 4, 9)
    assert graph_hash(moved) == graph_hash(GRAPH)
    assert graph_hash(Graph([GRAPH["1"]], name="g")) != graph_hash(GRAPH)


def test_save_load_goes_through_a_file(tmp_path):
    save(GRAPH, tmp_path / "g.json")
    assert load(tmp_path / "g.json") == GRAPH


def changed(**fields):
    return json.dumps({**json.loads(dumps(GRAPH)), **fields})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a graph file"),
        ('{"format": "other"}', "not a graph file"),
        (changed(version=2), "has version 2; this release reads version 1"),
        (changed(version="1"), "has version '1'"),
        (changed(hash="sha256:0"), "changed after it was written"),
        (changed(hash=None), "no hash"),
        (changed(extra=1), "unknown fields: extra"),
        (changed(graph=[]), "not an object"),
        (dumps(GRAPH).replace("hello", "hellO"), "changed after it was written"),
        (dumps(GRAPH).replace('"gen"', '"gin"'), "kind has to be one of"),
    ],
)
def test_loads_damaged_or_foreign_document_raises_format_error(text, words):
    with pytest.raises(FormatError) as caught:
        loads(text)
    assert words in caught.value.what


def test_dumps_value_that_is_no_json_is_refused():
    with pytest.raises(FormatError, match="not JSON"):
        dumps(Graph([Return(id="1", value=Constant(float("inf")))]))


def test_check_exportable_names_everything_that_needs_python():
    origin = Origin("p.py", 4)
    inner = Graph([ToolNode(id="t", tool="search", origin=origin)])
    graph = Graph(
        [
            Select(id="k", choices=("a",)),
            Switch(id="s", on=Reference("k"), arms=(Arm(None, inner),), assumed=True),
            Gen(id="g", context="k", validator="mine.check"),
            Fork(id="f", context="g", size=1),
            Join(id="j", context="f", fork="f", tips=("f",), values=(None,), mode="best", key="mine.score"),
            Break(id="b", reason="asked len()"),
        ],
        name="p",
    )
    with pytest.raises(ExportError) as caught:
        check_exportable(graph)
    for words in ("'s' is a switch", "tool 'search'", "'mine.check'", "'mine.score'", "'b' is a break (asked len())"):
        assert words in caught.value.what
    assert caught.value.origin == origin


def test_check_exportable_registered_tools_and_keys_pass():
    graph = Graph([Gen(id="g", validator="check"), ToolNode(id="t", tool="search")])
    check_exportable(graph, {"check", "search"})
    with pytest.raises(ExportError, match="search"):
        check_exportable(graph, {"check"})


@pytest.mark.parametrize(
    ("pair", "what"),
    [([], "[] has too few items"), ([3], "[3] has too few items"), ([3, 1.5, 2], "[3, 1.5, 2] has too many items")],
)
def test_pair_of_another_length_is_told_with_its_field(pair, what):
    data = json.loads(dumps(Graph([Gen(id="1", name="x", sampling=SamplingSpec(logit_bias=((3, 1.5),)))])))
    data["graph"]["nodes"][0]["sampling"]["logit_bias"] = [pair]
    with pytest.raises(FormatError) as caught:
        loads(json.dumps(data))
    assert caught.value.what == f"gen node '1', field sampling.logit_bias[0]: {what}"
