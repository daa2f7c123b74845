"""What the graph says ahead of a run."""

from functools import partial

import pytest

from sglang_dsl.ir.analysis import critical_path, dependencies, sibling_groups, waves
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.nodes import Arm, Fork, Gen, Join, Plain, Reference, Select, Switch, Text
from sglang_dsl.ir.specs import SamplingSpec
from tests.counted import counted


def text(node_id, context=None, branch=None, *mentions):
    pieces = (Plain(node_id), *(Reference(m) for m in mentions))
    return Text(id=node_id, context=context, branch=branch, pieces=pieces)


def gen(node_id, context, tokens=10, branch=None):
    return Gen(id=node_id, context=context, branch=branch, name=node_id, sampling=SamplingSpec(max_tokens=tokens))


@pytest.fixture
def graph():
    """A shared preamble, two branches (the second with two calls), a join, and a last call that mentions the join."""
    return Graph(
        [
            text("pre"),
            Fork(id="f", context="pre", size=2),
            text("a1", "f", 0),
            gen("a2", "a1", 30),
            text("b1", "f", 1),
            gen("b2", "b1", 20),
            gen("b3", "b2", 25),
            Join(id="j", context="f", fork="f", tips=("a2", "b3"), values=(Reference("a2"), Reference("b3"))),
            text("end", "j", None, "j"),
            gen("last", "end", 5),
        ],
        name="p",
    )


def test_waves_follow_context_data_and_joins(graph):
    assert waves(graph) == [("a2", "b2"), ("b3",), ("last",)]


def test_dependencies_hold_a_joins_tips(graph):
    assert set(dependencies(graph).predecessors("j")) == {"f", "a2", "b3"}


def test_sibling_groups_are_calls_of_one_wave_below_one_fork(graph):
    assert sibling_groups(graph) == [("a2", "b2"), ("b3",), ("last",)]


def test_critical_path_takes_the_longer_branch(graph):
    path = critical_path(graph)
    assert path.weight == 20 + 25 + 5
    assert [n for n in path.nodes if n in ("a2", "b2", "b3", "last")] == ["b2", "b3", "last"]


def test_critical_path_with_own_weight_counts_it():
    chain = Graph([text("a"), gen("b", "a"), gen("c", "b")])
    assert critical_path(chain, lambda node: 1).weight == 3


def test_critical_path_of_an_empty_graph_is_empty():
    assert critical_path(Graph()).nodes == ()


def test_switch_counts_as_the_calls_of_its_arms():
    arms = tuple(Arm((c,), Graph([gen(f"{c}1", None, n)])) for c, n in (("x", 7), ("y", 90)))
    graph = Graph(
        [
            Select(id="k", choices=("x", "y")),
            Switch(id="w", context="k", on=Reference("k"), arms=arms),
            gen("g", "w", 5),
        ]
    )
    assert waves(graph) == [("k",), ("w",), ("g",)]
    assert critical_path(graph).weight == 1 + 90 + 5


def test_analyses_of_five_thousand_nodes_are_quick():
    nodes = [text("pre"), Fork(id="f", context="pre", size=2500)]
    for i in range(2500):
        nodes += [text(f"t{i}", "f", i), gen(f"g{i}", f"t{i}")]
    graph = Graph(nodes)
    for analysis in (waves, sibling_groups, critical_path):
        assert counted(partial(analysis, graph))[1] < 200 * len(graph)
