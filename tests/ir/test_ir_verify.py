"""Each rule of the graph, broken once, names rule, node and the user's line."""

import pytest

from sglang_dsl.errors import GraphError, Origin
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.nodes import (
    Arm,
    Break,
    Constant,
    Fork,
    Gen,
    Input,
    Join,
    Loop,
    Map,
    Operation,
    Plain,
    Reasoning,
    Reference,
    Return,
    RoleBegin,
    RoleEnd,
    Select,
    Switch,
    Text,
    ToolNode,
)
from sglang_dsl.ir.verify import RULES, findings, verify

T = Text(id="t", pieces=(Plain("hello"),))
K = Select(id="k", context="t", choices=("x", "y"))
FORK = Fork(id="f", context="t", size=2)
A = Gen(id="a", context="f", branch=0, name="v")
B = Gen(id="b", context="f", branch=1, name="v")


def ref(node_id, *operations):
    return Reference(node_id, operations)


def arm(*values, nodes=(), result=None):
    return Arm(values=values or None, graph=Graph(nodes), result=result)


def join(**fields):
    return Join(
        **{"id": "j", "context": "t", "fork": "f", "tips": ("a", "b"), "values": (ref("a"), ref("b")), **fields}
    )


BROKEN = {
    "context": [
        ([Gen(id="g", context="nowhere")], "does not exist in this graph"),
        ([Gen(id="g", context="t"), T], "is later in the graph"),
        ([Gen(id="g", context="g")], "is later in the graph"),
    ],
    "root": [([T, Gen(id="g")], "begins with 't' already")],
    "branch": [
        ([T, Gen(id="g", context="t", branch=0)], "is not a fork"),
        ([T, FORK, Gen(id="g", context="f", branch=2)], "which has 2 branches"),
    ],
    "reference": [
        ([Text(id="t", pieces=(ref("a"),))], "does not exist"),
        ([T, Text(id="u", context="t", pieces=(ref("t"),))], "has no value"),
        ([Text(id="u", pieces=(ref("g"),)), Gen(id="g", context="u")], "comes later"),
        ([T, Gen(id="g", context="t", control=("zz",))], "does not exist"),
        ([T, Return(id="r", value=ref("zz"))], "does not exist"),
    ],
    "operation": [([T, Gen(id="g", context="t"), Text(id="u", pieces=(ref("g", Operation("exec")),))], "'exec'")],
    "role": [
        ([RoleBegin(id="r", role="user"), RoleBegin(id="s", context="r", role="system")], "inside the open role"),
        ([RoleEnd(id="r", role="user")], "no role is open"),
        ([RoleBegin(id="r", role="user"), RoleEnd(id="s", context="r", role="system")], "'user' is open"),
        ([RoleBegin(id="r", role="")], "has no name"),
        (
            [
                RoleBegin(id="r", role="user"),
                Select(id="k", context="r", choices=("x",)),
                Switch(id="w", context="k", on=ref("k"), arms=(arm(nodes=[RoleBegin(id="i", role="tool")]),)),
            ],
            "inside the open role",
        ),
    ],
    "arm-roles": [
        (
            [
                T,
                K,
                Switch(
                    id="w", context="k", on=ref("k"), arms=(arm("x", nodes=[RoleBegin(id="i", role="user")]), arm("y"))
                ),
            ],
            "different open roles",
        ),
        ([T, Loop(id="l", context="t", body=Graph([RoleBegin(id="i", role="user")]), limit=2)], "leaves a role open"),
    ],
    "fork": [([Fork(id="f", size=0)], "size is 0")],
    "join": [
        ([T, join(fork="t")], "is not a fork"),
        ([T, FORK, A, B, join(tips=("a",))], "1 tips for the 2 branches"),
        ([T, FORK, A, B, join(values=())], "0 values for the 2 branches"),
        ([T, FORK, A, B, join(tips=("b", "a"))], "does not lie on branch 0"),
        ([T, FORK, A, B, join(tips=("t", "b"))], "does not lie on branch 0"),
    ],
    "join-mode": [
        ([T, FORK, A, B, join(mode="first")], "needs k"),
        ([T, FORK, A, B, join(mode="quorum", k=3)], "needs k between 1 and 2"),
        ([T, FORK, A, B, join(k=1)], "takes no k"),
        ([T, FORK, A, B, join(mode="best")], "needs a key"),
        ([T, FORK, A, B, join(key="f")], "takes no key"),
    ],
    "select": [([T, Select(id="k", context="t", choices=())], "no choices")],
    "switch": [
        ([T, K, Switch(id="w", context="k", on=ref("k"), arms=())], "no arms"),
        ([T, K, Switch(id="w", context="k", on=ref("k"), arms=(arm("x"),))], "no arm takes 'y'"),
        ([T, K, Switch(id="w", context="k", on=ref("k"), arms=(arm("x", "y"), arm("y")))], "is in 2 arms"),
        ([T, K, Switch(id="w", context="k", on=ref("k"), arms=(arm(), arm()))], "more than one arm"),
    ],
    "loop": [
        ([T, Loop(id="l", context="t", body=Graph(), limit=0)], "limit is 0"),
        ([T, Loop(id="l", context="t", body=Graph(), until=ref("t"), limit=1)], "not in its body"),
    ],
    "map": [([T, Map(id="m", context="t", items=Constant([1]), item="i", body=Graph([Gen(id="i")]))], "not an input")],
    "result": [([T, Loop(id="l", context="t", body=Graph(), limit=1, result=ref("zz"))], "no value in sight")],
    "name": [
        ([T, Gen(id="g", context="t", name="")], "is empty"),
        ([Input(id="i", name="x"), Input(id="j", name="x")], "exists already"),
    ],
    "number": [
        ([T, Gen(id="g", context="t", retries=-1)], "retries is -1"),
        ([T, Gen(id="g", context="t", sample=-1)], "sample is -1"),
        ([T, ToolNode(id="g", context="t", tool="f", timeout_s=0)], "timeout_s is 0"),
        ([T, Gen(id="g", context="t", reasoning=Reasoning(begin=""))], "marker is empty"),
    ],
    "text": [([Text(id="t", pieces=(Plain("\ud800"),))], "lone surrogate")],
    "return": [([Return(id="r", value=Constant(1)), Return(id="s", value=Constant(2))], "return already")],
    "id": [
        ([T, K, Switch(id="w", context="k", on=ref("k"), arms=(arm(nodes=[Text(id="t", pieces=())]),))], "is taken"),
        ([Text(id="", pieces=())], "is empty"),
    ],
}


@pytest.mark.parametrize(
    ("rule", "nodes", "words"), [(rule, nodes, words) for rule, cases in BROKEN.items() for nodes, words in cases]
)
def test_verify_broken_rule_is_named_with_its_node(rule, nodes, words):
    found = findings(Graph(nodes))
    assert [f.rule for f in found if words in f.what] == [rule], found


def test_rules_are_all_covered_by_a_broken_graph():
    assert set(BROKEN) == set(RULES)


def test_verify_message_names_rule_node_line_and_how_many_more():
    origin = Origin("agent.py", 7, "agent")
    graph = Graph([Fork(id="f", size=0, origin=origin), RoleEnd(id="e", context="f", role="user")])
    with pytest.raises(GraphError) as caught:
        verify(graph)
    message = str(caught.value)
    assert "rule 'fork' at node 'f': its size is 0 (1 more" in message
    assert "in agent, agent.py:7" in message


def test_verify_sound_graphs_pass():
    switch = Switch(
        id="w",
        context="k",
        on=ref("k"),
        arms=(arm("x", nodes=[Gen(id="p", name="p")], result=ref("p")), arm(nodes=[Text(id="q", pieces=(ref("k"),))])),
    )
    graph = Graph([T, K, switch, Gen(id="g", context="w"), Break(id="z", context="g", reason="why", on=ref("g"))])
    verify(graph)
    verify(Graph([T, FORK, A, B, join(), Return(id="r", context="j", value=ref("j"))]))
    verify(Graph([T, FORK, join(tips=("f", "f"), values=(None, None))]))
    verify(Graph())


def test_verify_role_opened_before_a_fork_is_closed_on_each_branch():
    nodes = [RoleBegin(id="u", role="user"), Fork(id="f", context="u", size=2)]
    nodes += [RoleEnd(id=f"e{i}", context="f", branch=i, role="user") for i in range(2)]
    verify(
        Graph(
            [
                *nodes,
                Join(id="j", context="u", fork="f", tips=("e0", "e1"), values=(None, None)),
                RoleEnd(id="x", context="j", role="user"),
            ]
        )
    )


def test_verify_assumed_switch_may_leave_values_without_an_arm():
    verify(Graph([T, K, Switch(id="w", context="k", on=ref("k"), arms=(arm("x"),), assumed=True)]))
