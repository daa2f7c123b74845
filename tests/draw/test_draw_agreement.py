"""The five formats say the same: nodes, edges, states and errors, of graphs and of runs (cases: 402)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from drawn_graphs import every_kind, router, scored, support_agent, support_outcomes, tree_of_thought
from hypothesis import HealthCheck, given, settings
from picture_facts import Facts, facts_of

from sglang_dsl import RunOptions, State, gen, program, select, system, tool, user
from sglang_dsl.errors import CancelledError, ToolError
from sglang_dsl.ir.draw import draw
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.nodes import Gen, Join
from sglang_dsl.ir.outcome import Meta, Outcome
from sglang_dsl.testing import mock

sys.path.insert(0, str(Path(__file__).parents[1] / "interpret"))
from random_programs import programs

FORMS = ("mermaid", "dot", "svg", "html", "terminal")


def agreed(graph: Graph, outcomes: Any = None, errors: Any = None) -> Facts:
    """What all formats say."""
    said = {form: facts_of(form, draw(graph, form, outcomes=outcomes, errors=errors, fold=None)) for form in FORMS}
    for form in FORMS[1:]:
        for kind, a, b in zip(Facts._fields, said["mermaid"], said[form], strict=True):
            assert a == b, f"{kind}: mermaid alone {a - b}, {form} alone {b - a}"
    return said["mermaid"]


@tool
def broken(x: str) -> str:
    """Fails."""
    raise ValueError("no such order")


@program
def mixed(s: State) -> Any:
    s += system("You write poems.")
    s += "Draft " + gen("draft", max_tokens=4)
    (judge,) = s.fork(1)
    judge += "Judge" + gen("verdict", max_tokens=4)
    s += "Next" + gen("next", max_tokens=4)
    racers = s.fork(3)
    for index, racer in enumerate(racers):
        racer += f"Way {index}:" + gen("way", max_tokens=2 + 20 * index)
    s += "Meanwhile " + gen("meanwhile", max_tokens=5)
    racers.first("way")
    s += user("Pick")
    s += "It is " + select("pick", ["yes", "no"])
    s += " of " + s.ref("draft")
    voters = s.fork(3)
    for voter in voters:
        voter += "vote" + gen("ballot", max_tokens=3)
    voters.vote("ballot")
    s += "Scored" + gen("scored", max_tokens=3, logprobs=1)
    found = s.call(broken, x=s["draft"])
    return found.value


@pytest.fixture(scope="module")
def failed() -> Any:
    with mock(unscripted="echo") as backend, pytest.raises(ToolError) as caught:
        mixed.run(options=RunOptions(backend=backend, seed=1))
    return caught.value.result


@pytest.mark.parametrize(
    ("graph", "outcomes"),
    [
        (every_kind(), None),
        (router(), None),
        (router(), scored()),
        (tree_of_thought(), None),
        (support_agent(5), support_outcomes(support_agent(5))),
    ],
    ids=["kinds", "router", "router ran", "tree", "agent"],
)
def test_formats_agree_on_hand_built_graphs(graph: Graph, outcomes: Any) -> None:
    assert agreed(graph, outcomes).nodes


def test_formats_agree_on_a_run_that_failed(failed: Any) -> None:
    facts = agreed(failed.graph, failed.record.outcomes, failed.errors)
    states = {(title.split(" (")[0], state) for title, state, _ in facts.nodes if state}
    assert ("gen way", "cancelled") in states
    assert ("tool test_draw_agreement.broken", "failed") in states or any(
        title.startswith("tool") and state == "failed" for title, state in states
    )
    errors = [error for _, state, error in facts.nodes if state == "failed"]
    assert len(errors) == 1
    assert errors[0].startswith("E305: tool")


def test_side_branch_stands_beside_the_line(failed: Any) -> None:
    flow = agreed(failed.graph, failed.record.outcomes, failed.errors).flow
    assert flow["gen draft", "fork × 1"] == 1
    assert flow["fork × 1", "Judge"] == 1
    assert flow["fork × 1", "Next"] == 1
    assert not [edge for edge in flow if edge[0] == "gen verdict"]
    assert flow["gen meanwhile", "join way (first 1)"] == 1


@pytest.mark.parametrize("form", ["terminal", "mermaid", "dot", "svg", "html"])
def test_scores_votes_probabilities_and_attempts_are_told(failed: Any, form: str) -> None:
    text = failed.draw(form)
    for words in ("scores ", "votes ", "token probability ", "taken: branch "):
        assert words in text
    graph = Graph([Gen(id="a", name="a")])
    assert "3 attempts" in draw(graph, form, outcomes={"a": Outcome(text="x", meta=Meta(attempts=3))})  # type: ignore[arg-type]
    assert "not joined" in text or '"aside":true' in text


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(nodes=programs())
def test_formats_agree_on_random_programs_and_runs(nodes: list[Any]) -> None:
    graph = Graph(nodes)
    agreed(graph)
    outcomes: dict[str, Outcome] = {}
    errors: dict[str, BaseException] = {}
    for number, node in enumerate(nodes):  # a run in which every few nodes something went wrong
        inherited = errors.get(node.context or "")
        if inherited is not None:
            errors[node.id] = inherited
        elif isinstance(node, Gen) and number % 7 == 3:
            errors[node.id] = ToolError(f"it broke at {node.id}")
        elif isinstance(node, Gen) and number % 7 == 5:
            errors[node.id] = CancelledError(f"{node.id} was cancelled")
        elif isinstance(node, Join):
            outcomes[node.id] = Outcome(value="x", winners=(0,))
        else:
            outcomes[node.id] = Outcome(value="x", text="x", meta=Meta() if isinstance(node, Gen) else None)
    agreed(graph, outcomes, errors)
