"""Passes: what they change, what they must not touch, and that they can be left out."""

import pytest

from sglang_dsl.errors import SpecError
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.nodes import (
    Arm,
    Concat,
    DictOf,
    Fork,
    Gen,
    Join,
    ListOf,
    Operation,
    Plain,
    Raw,
    Reference,
    Return,
    Select,
    Switch,
    Text,
    Tool,
)
from sglang_dsl.ir.passes import PASSES, merge_text, rewrite, share_equal_calls
from sglang_dsl.ir.rewrite import moved_graph
from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.ir.verify import verify

GREEDY = SamplingSpec(temperature=0)


def text(node_id, words, context=None, branch=None, **fields):
    return Text(id=node_id, context=context, branch=branch, pieces=(Plain(words),), **fields)


def fan(*heads, sampling=GREEDY, mode="all", k=None, after=()):
    nodes = [text("pre", "p"), Fork(id="f", context="pre", size=len(heads))]
    for i, head in enumerate(heads):
        nodes += [text(f"t{i}", head, "f", i), Gen(id=f"g{i}", context=f"t{i}", name="x", sampling=sampling)]
    tips = tuple(f"g{i}" for i in range(len(heads)))
    nodes.append(Join(id="j", context="f", fork="f", mode=mode, k=k, tips=tips, values=tuple(map(Reference, tips))))
    return Graph([*nodes, *after])


def test_merge_text_joins_a_run_of_texts_under_the_last_id():
    graph = Graph(
        [
            text("a", "x"),
            text("b", "y", "a"),
            Text(id="c", context="b", pieces=(Raw("<r>"), Plain(""), Plain("z"))),
            Gen(id="g", context="c"),
        ]
    )
    merged = merge_text(graph)
    assert [n.id for n in merged] == ["c", "g"]
    assert merged["c"].pieces == (Plain("xy"), Raw("<r>"), Plain("z"))
    assert merged["c"].context is None


def test_merge_text_keeps_the_branch_of_the_first():
    graph = Graph(
        [
            Fork(id="f", size=1),
            text("a", "x", "f", 0),
            text("b", "y", "a"),
            Join(id="j", context="f", fork="f", tips=("b",), values=(None,)),
        ]
    )
    merged = merge_text(graph)
    assert (merged["b"].context, merged["b"].branch) == ("f", 0)
    verify(merged)


@pytest.mark.parametrize(
    "graph",
    [
        Graph([text("a", "x"), text("b", "y", "a"), text("c", "z", "a")]),
        Graph([text("a", "x"), text("b", "y", "a", scope="inner")]),
        Graph([text("a", "x"), Fork(id="f", context="a", size=1), text("b", "y", "f", 0)]),
        Graph([Select(id="k", choices=("a",)), text("a", "x", "k"), text("b", "y", "a", control=("k",))]),
        Graph(
            [
                Fork(id="f", size=1),
                text("a", "x", "f", 0),
                Join(id="j", context="f", fork="f", tips=("a",), values=(None,)),
                text("b", "y", "a"),
            ]
        ),
    ],
    ids=["two followers", "scope", "seam", "control", "tip"],
)
def test_merge_text_leaves_what_is_not_one_run(graph):
    assert merge_text(graph) == graph


def test_share_equal_calls_second_equal_call_reads_the_first():
    shared = share_equal_calls(fan("same", "same", "other"))
    assert [n.kind for n in shared if n.id in ("g0", "g1", "g2")] == ["gen", "text", "gen"]
    assert shared["g1"].pieces == (Reference("g0"),)
    assert shared["j"].values == (Reference("g0"), Reference("g0"), Reference("g2"))
    assert shared["j"].tips == ("g0", "g1", "g2")
    verify(shared)


@pytest.mark.parametrize(
    "graph",
    [
        fan("same", "same", sampling=SamplingSpec(temperature=1)),
        fan("one", "two"),
        fan("same", "same", mode="first", k=1),
        fan("same", "same", mode="vote"),
        fan("same", "same", mode="concat"),
        fan("same", "same", after=[text("m", "more", "g1"), Gen(id="h", context="m")]),
        Graph(
            [text("a", "x"), Gen(id="g", context="a", sampling=GREEDY, model="m"), Fork(id="f", context="a", size=1)]
        ),
    ],
    ids=["chance", "other prompt", "race", "vote", "concat", "continued", "alone"],
)
def test_share_equal_calls_leaves_calls_that_may_differ_or_are_continued(graph):
    assert share_equal_calls(graph) == graph


def test_share_equal_calls_explicit_seed_and_sample_make_calls_equal():
    seeded = SamplingSpec(temperature=1, seed=7)
    assert share_equal_calls(fan("same", "same", sampling=seeded))["g1"].kind == "text"
    other = Graph(
        [
            n if n.id != "g1" else Gen(id="g1", context="t1", name="x", sampling=seeded, sample=1)
            for n in fan("same", "same", sampling=seeded)
        ]
    )
    assert share_equal_calls(other) == other


def test_share_equal_calls_arguments_one_and_true_differ():
    op = lambda value: (Reference("g", (Operation("item", (value,)),)),)  # noqa: E731
    nodes = [Gen(id="g", sampling=GREEDY), Fork(id="f", context="g", size=2)]
    for i, value in enumerate((1, True)):
        nodes += [
            Text(id=f"t{i}", context="f", branch=i, pieces=op(value)),
            Gen(id=f"h{i}", context=f"t{i}", sampling=GREEDY),
        ]
    assert share_equal_calls(Graph(nodes)) == Graph(nodes)


def test_rewrite_records_each_pass_and_can_leave_one_out():
    graph = fan("same", "same")
    done = rewrite(graph)
    assert [p.name for p in done.passes] == list(PASSES)
    assert done.passes[0].before is graph
    assert done.passes[-1].after is done.graph
    assert done.passes[-1].gone == ("g1",)
    assert rewrite(graph, without=PASSES).graph is graph
    with pytest.raises(SpecError, match="no pass is called fold"):
        rewrite(graph, without=["fold"])


def test_moved_graph_follows_references_everywhere():
    ref = Reference("a")
    inner = Graph([Text(id="i", pieces=(ref,))])
    graph = Graph(
        [
            Select(id="s", choices=("x", ref), control=("a",)),
            Tool(id="t", tool="f", arguments=DictOf((("k", ListOf((ref, Concat((ref,))))),))),
            Switch(id="w", on=ref, arms=(Arm(None, inner, ref),)),
            Return(id="r", value=ref),
        ]
    )
    moved = moved_graph(graph, {"a": "b"})
    assert "'a'" not in repr(list(moved)) + repr(list(moved["w"].arms[0].graph))
    assert moved["s"].control == ("b",)
    assert moved_graph(graph, {}) == graph


def test_rewrite_five_thousand_nodes_is_quick():
    import time

    chain = [text("t0", "x")]
    for i in range(1, 5000):
        chain.append(
            text(f"t{i}", "x", f"t{i - 1}") if i % 2 else Gen(id=f"t{i}", context=f"t{i - 1}", sampling=GREEDY)
        )
    started = time.perf_counter()
    assert len(rewrite(Graph(chain)).graph) == 4999
    assert time.perf_counter() - started < 5
