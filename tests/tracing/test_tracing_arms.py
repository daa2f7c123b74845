"""Which arm of a switch a value takes is one rule: the same in a run, a trace, an exported graph, a replay and a picture."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from sglang_dsl import RunOptions, State, gen, program
from sglang_dsl.ir.draw.labels import ways_taken
from sglang_dsl.ir.execution import RunSpec, execute
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.nodes import Arm, Gen, Plain, Reference, Switch, Text
from sglang_dsl.ir.outcome import Outcome
from sglang_dsl.ir.semantics import arm_of, same, same_key
from sglang_dsl.ir.verify import findings
from sglang_dsl.runtime.backends.mock import mock
from sglang_dsl.runtime.backends.replay import RecordedExecutor

CASES = [
    pytest.param(int, 5.0, "5", True, id="5.0 for 5"),
    pytest.param(float, 5, "5.0", True, id="5 for 5.0"),
    pytest.param(float, 5.0, "5", True, id="5.0 for 5 read as a float"),
    pytest.param(float, 0, "-0.0", True, id="0 for -0.0"),
    pytest.param(float, -0.0, "0", True, id="-0.0 for 0"),
    pytest.param(bool, 1, "true", False, id="1 for true"),
    pytest.param(bool, True, "true", True, id="True for true"),
    pytest.param(int, True, "1", False, id="True for 1"),
    pytest.param(int, "5", "5", False, id="text 5 for 5"),
    pytest.param(int, None, "5", False, id="None for 5"),
    pytest.param(int, 10**17, str(10**17), True, id="a big number"),
    pytest.param(int, float(10**17), str(10**17), True, id="a big number as a float"),
    pytest.param(int, 10**17 + 1, str(10**17), False, id="a big number and one more"),
    pytest.param(Literal[5, 6], 5.0, "5", True, id="5.0 for one of few"),
    pytest.param(None, "5", "5", True, id="text 5 for text 5"),
    pytest.param(None, 5, "5", False, id="5 for text 5"),
    pytest.param(float | None, None, "null", True, id="None for null"),
]


@pytest.mark.parametrize(("wanted", "key", "reply", "hit"), CASES)
def test_arm_that_a_value_takes_is_the_same_everywhere(wanted: Any, key: Any, reply: str, hit: bool) -> None:
    @program
    def p(s: State) -> str:
        n = gen("n", type=wanted) if wanted is not None else gen("n")
        s += n
        return s.switch(n, {key: lambda s: "hit"}, default=lambda s: "rest")

    expected = "hit" if hit else "rest"
    ran = p.run(options=RunOptions(backend=mock({"n": reply})))
    assert ran.value == expected
    assert p.run(options=RunOptions(backend=RecordedExecutor(ran.record))).value == expected

    graph = p.trace()
    assert findings(graph) == []
    exported = p.export()
    backend = mock({"n": reply})
    run = execute(exported, backend, RunSpec(options=RunOptions(backend=backend)))
    assert run.seal().result(10).error is None
    assert run.value("return").result(10).value == expected


VALUES = [
    5,
    5.0,
    True,
    1,
    1.0,
    False,
    0,
    -0.0,
    None,
    "5",
    "",
    [5],
    [5.0],
    [True],
    {"a": 1},
    {"a": 1.0},
    {"a": True},
    [],
    {},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_picture_and_rules_of_a_graph_follow_the_rule(value: Any) -> None:
    for other in VALUES:
        assert (same_key(value) == same_key(other)) == same(value, other)
        body = Graph([Text(id="t", pieces=(Plain("x"),))])
        arms = (Arm((other,), body), Arm(None, Graph()))
        switch = Switch(id="w", context="g", on=Reference("g"), arms=arms)
        taken = arm_of(arms, value)
        assert ways_taken(switch, {"g": Outcome(value=value)}) == [taken == 0, taken == 1]
        twice = Switch(id="w", context="g", on=Reference("g"), arms=(*arms, Arm((value,), Graph())))
        found = [finding.rule for finding in findings(Graph([Gen(id="g", decode="json"), twice]))]
        assert found == (["switch"] if same(value, other) else [])
