"""`switch`, `loop`, `map`: what a run does, and what a trace records; both say the same."""

from __future__ import annotations

import pytest

from sglang_dsl import RunOptions, State, gen, program, select
from sglang_dsl.errors import ProgramError, SpecError
from sglang_dsl.ir.nodes import Loop, Map, Switch
from sglang_dsl.ir.verify import findings


@program
def answer(s: State):
    kind = select("kind", ["yes", "no"])
    s += "Yes or no? " + kind

    def explain(s: State):
        s += " because " + gen("why")
        return s["why"]

    return s.switch(kind, {"yes": explain, "no": lambda s: "plain"})


@program
def polish(s: State, limit: int):
    s += "Draft: "

    def once(s: State):
        s += gen("draft")
        s += select("done", ["yes", "no"])
        return s["draft"]

    return s.loop(once, until="done", stop_value="yes", limit=limit)


@program
def each(s: State, items: list[str]):
    s += "common "

    def one(branch: State, item: str):
        branch += item + gen("v")
        return branch["v"]

    return s.map(items, one)


def on(backend):
    return RunOptions(backend=backend)


def test_switch_runs_the_arm_of_the_value_and_notes_what_decided(fake):
    result = answer.run(options=on(fake({"kind": ["yes"], "why": ["so"]})))
    assert result.value == "so"
    assert [n.control for n in result.graph][1:4] == [(), ("1.1",), ("1.1",)]
    assert answer.run(options=on(fake({"kind": ["no"]}))).value == "plain"
    assert findings(result.graph) == []


def test_switch_without_an_arm_for_the_value_is_refused(fake):
    @program
    def p(s: State):
        s += gen("a", type=int)
        return s.switch("a", {2: lambda s: "two", True: lambda s: "true"})

    assert p.run(options=on(fake({"a": ["2"]}))).value == "two"
    for value in ("5", "1"):  # 1 is not True
        with pytest.raises(ProgramError, match=f"no arm of the switch takes {value}"):
            p.run(options=on(fake({"a": [value]})))


def test_switch_default_takes_every_other_value(fake):
    @program
    def p(s: State):
        s += gen("a", type=int)
        return s.switch("a", {1: lambda s: "one"}, default=lambda s: "other")

    assert p.run(options=on(fake({"a": ["7"]}))).value == "other"


def test_loop_ends_at_its_value_or_its_limit(fake):
    script = {"draft": ["1", "2", "3"], "done": ["no", "yes"]}
    result = polish.run(5, options=on(fake(script)))
    assert result.value == "2"
    assert [n.control for n in result.graph][2:4] == [("helper",)] * 2 or result.graph["once.1#2"].control == (
        "once.2",
    )
    assert polish.run(2, options=on(fake({"draft": ["1", "2"], "done": ["no", "no"]}))).value == "2"
    with pytest.raises(SpecError):
        polish.run(0, options=on(fake()))


def test_map_runs_a_branch_per_item(fake):
    backend = fake()
    assert each.run(["a", "b"], options=on(backend)).value == ["v1", "v2"]
    assert [prompt for _, prompt in backend.calls] == ["common a", "common b"]
    assert each.run([], options=on(fake())).value == []


def test_trace_records_regions_with_their_bodies():
    switch = next(n for n in answer.trace() if isinstance(n, Switch))
    assert [arm.values for arm in switch.arms] == [("yes",), ("no",)]
    assert [n.kind for n in switch.arms[0].graph] == ["text", "gen"]
    loop = next(n for n in polish.trace(4) if isinstance(n, Loop))
    assert (loop.limit, loop.stop_value, loop.until.node_id) == (4, "yes", [n.id for n in loop.body][1])
    mapped = next(n for n in each.trace(symbolic=["items"]) if isinstance(n, Map))
    assert [n.kind for n in mapped.body] == ["input", "text", "gen"]
    for graph in (answer.trace(), polish.trace(4), each.trace(symbolic=["items"]), each.trace(["a", "b"])):
        assert findings(graph) == []
