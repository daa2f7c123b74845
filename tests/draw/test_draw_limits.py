"""Mermaid's own limits are kept, and what differs is never folded away (cases: 313)."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
from drawn_graphs import Line, text, wide
from drawn_graphs import long as long_chain

from sglang_dsl import State, gen, program
from sglang_dsl.errors import CancelledError, ToolError
from sglang_dsl.ir.draw import draw
from sglang_dsl.ir.draw.markup import MAX_CHARACTERS, MAX_EDGES
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.nodes import Fork, Gen, Join, Reference
from sglang_dsl.ir.outcome import Meta, Outcome


def chain(calls: int) -> Graph:
    line = Line("chain")
    for number in range(calls):
        line.add(text(f"Step {number}: "))
        line.add(Gen(id=f"g{number}", name="step"))
    return line.graph


def rounds(size: int, times: int, odd: tuple[int, int] | None = None) -> Graph:
    """`times` forks of `size` branches one after the other. odd: (round, branch) with one call more."""
    line = Line("rounds")
    line.add(text("Begin "))
    for number in range(times):
        fork = line.add(Fork(id=f"f{number}", size=size))
        tips, values = [], []
        for branch in range(size):
            line.add(text(f"Item {branch} of {number}: "), after=fork, branch=branch)
            values.append(line.add(Gen(id=f"g{number}.{branch}", name="x")))
            if (number, branch) == odd:
                line.add(Gen(id="extra", name="extra"))
            tips.append(line.tip)
        join = Join(id=f"j{number}", name="x", fork=fork, tips=tuple(tips), values=tuple(map(Reference, values)))  # type: ignore[arg-type]
        line.add(join, after=fork)
    return line.graph


def links(drawn: str) -> int:
    return len(re.findall(r"^  n\d+ (?:-->|-\.->|==>)", drawn, re.M))


@program
def inner(s: State, n: int) -> None:
    for i in range(n):
        s += f"inner {i} " + gen("a", max_tokens=4)


@program
def outer(s: State, times: int, n: int) -> None:
    for _ in range(times):
        s += "outer " + gen("o", max_tokens=4)
        inner(s, n)


@pytest.mark.parametrize(
    "graph",
    [
        chain(251), chain(3000), rounds(12, 25), rounds(40, 60), rounds(3, 400), rounds(2, 900), wide(5000), long_chain(5000),
        outer.trace(40, 12), outer.trace(300, 1),
    ],
    ids=["chain", "long chain", "12x25", "40x60", "3x400", "2x900", "wide", "long", "nested", "often nested"],
)  # fmt: skip
def test_mermaid_stays_below_its_limits(graph: Graph) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = draw(graph, "mermaid")
    assert links(drawn) <= MAX_EDGES
    assert len(drawn) <= MAX_CHARACTERS
    connected = {key for ends in re.findall(r"^  (n\d+) \S+?(?:\|.*?\|)? (n\d+)$", drawn, re.M) for key in ends}
    assert connected == set(re.findall(r"^ +(n\d+)\W*\"", drawn, re.M)), "every box is linked"


def test_mermaid_folds_nested_programs_into_one_box_each() -> None:
    drawn = draw(outer.trace(40, 12), "mermaid")
    assert "inner" in drawn
    assert drawn.count("gen o") == 40
    assert "gen a" not in drawn
    assert "12 calls" in drawn


def test_mermaid_small_graph_is_drawn_whole() -> None:
    drawn = draw(outer.trace(3, 4), "mermaid")
    assert drawn.count("gen a") == 12
    assert "more" not in drawn


def test_mermaid_without_folding_says_what_its_limits_are() -> None:
    with pytest.warns(UserWarning, match="maxEdges"):
        drawn = draw(chain(300), "mermaid", fold=None)
    assert drawn.startswith("%% 599 edges")
    assert drawn.count("gen step") == 300


def test_mermaid_that_cannot_be_folded_says_so() -> None:
    line = Line("unlike")
    fork = line.add(Fork(id="fork", size=300))
    for branch in range(300):
        line.add(text("x"), after=fork, branch=branch)
        line.add(Gen(id=f"g{branch}", name=f"unlike {branch}"))
    with pytest.warns(UserWarning, match="html or svg"):
        assert draw(line.graph, "mermaid").startswith("%% ")


def shown(graph: Graph, form: Any, what: str, **more: Any) -> bool:
    drawn = draw(graph, form, **more)
    if form == "html":  # all nodes are in it; what is shown while folded is said of the fork
        return '"fold":{"shown":[0,1,13]' in drawn
    return what in drawn


@pytest.mark.parametrize("form", ["terminal", "mermaid", "dot", "svg", "html"])
def test_branch_that_differs_is_never_folded_away(form: str) -> None:
    assert shown(rounds(20, 1, odd=(0, 13)), form, "gen extra")
    outcomes = {node.id: Outcome(text="ok", meta=Meta()) for node in rounds(20, 1)}
    for error in (ToolError("it broke"), CancelledError("too late")):
        lacking = {key: outcome for key, outcome in outcomes.items() if key != "g0.13"}
        words = "it broke" if isinstance(error, ToolError) else "too late"
        assert shown(rounds(20, 1), form, words, outcomes=lacking, errors={"g0.13": error})


def test_branch_that_differs_is_drawn_in_the_middle_of_many_rounds_too() -> None:
    drawn = draw(rounds(20, 60, odd=(31, 13)), "mermaid")
    assert "gen extra" in drawn
    assert links(drawn) <= MAX_EDGES


def test_failure_is_drawn_in_the_middle_of_a_long_chain() -> None:
    outcomes = {node.id: Outcome(text="ok", meta=Meta() if isinstance(node, Gen) else None) for node in chain(400)}
    del outcomes["g200"]
    drawn = draw(chain(400), "mermaid", outcomes=outcomes, errors={"g200": ToolError("it broke")})
    assert "it broke" in drawn
    assert links(drawn) <= MAX_EDGES


def test_groups_of_like_branches_are_folded_each_by_itself() -> None:
    line = Line("halves")
    fork = line.add(Fork(id="fork", size=40))
    for branch in range(40):
        line.add(Gen(id=f"g{branch}", name="even" if branch % 2 == 0 else "odd"), after=fork, branch=branch)
    drawn = draw(line.graph, "terminal")
    assert drawn.count("gen even") == drawn.count("gen odd") == 2
    assert "… 18 more branches like [0]" in drawn
    assert "… 18 more branches like [1]" in drawn
