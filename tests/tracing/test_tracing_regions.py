"""Paths that part and meet: Switches, what hangs on them, and what is read of them."""

from __future__ import annotations

import pytest
from trial_runs import assert_same, breaks, everything, kinds

from sglang_dsl import State, gen, program, select
from sglang_dsl.errors import ExportError
from sglang_dsl.frontend.tracing.explore import MAX_PATHS
from sglang_dsl.frontend.tracing.items import ArmItems, Item, Region
from sglang_dsl.ir.nodes import Constant, Gen, Operation, Plain, Reference, Return, Switch, Text
from sglang_dsl.ir.semantics import mapped, references_of, renaming
from sglang_dsl.ir.verify import findings, verify


def _switches(graph):
    return [n for n in everything(graph) if isinstance(n, Switch)]


def test_equal_continuations_merge_and_hang_on_the_switch() -> None:
    @program
    def p(s: State):
        s += select("k", ["a", "b", "c"])
        if s["k"] == "a":
            s += "one" + gen("x")
        s += "after" + gen("y")
        return s["y"]

    graph = p.trace()
    assert kinds(graph) == ["select", "switch", "text", "gen", "return"]
    switch, after = list(graph)[1:3]
    assert after.context == switch.id
    assert [(arm.values, len(arm.graph)) for arm in switch.arms] == [(("a",), 2), (("b", "c"), 0)]
    assert not switch.assumed
    assert_same(p, p.export())


def test_arms_that_do_the_same_make_no_switch() -> None:
    @program
    def p(s: State):
        s += select("k", ["a", "b"])
        if s["k"] == "a":
            note = "first"
        else:
            note = "second"
        s += "x"
        assert note

    assert kinds(p.trace()) == ["select", "text"]


def test_what_differs_around_common_nodes_becomes_several_switches() -> None:
    @program
    def p(s: State):
        s += select("k", ["a", "b"])
        first = s["k"] == "a"
        s += "1" if first else "2"
        s += gen("same")
        s += "3" if first else "4"

    assert kinds(p.trace()) == ["select", "switch", "gen", "switch"]
    assert_same(p, p.export())


def test_value_made_in_an_arm_is_read_through_the_switch() -> None:
    @program
    def p(s: State):
        s += select("k", ["a", "b"])
        if s["k"] == "a":
            s += "A" + gen("x")
        else:
            s += gen("x")
        s += "<" + s["x"].upper() + ">"
        return s["x"]

    graph = p.trace()
    switch = next(n for n in graph if isinstance(n, Switch))
    end = next(n for n in graph if isinstance(n, Return))
    assert isinstance(end.value, Reference)
    assert end.value.node_id == switch.id
    text = [n for n in graph if isinstance(n, Text)][-1]
    assert text.pieces == (Plain("<"), Reference(switch.id, (Operation("item", ("4.0",)),)), Plain(">"))
    results = [dict(arm.result.items)["4.0"] for arm in switch.arms]
    assert results == [Reference("2.1", (Operation("upper"),)), Reference("3", (Operation("upper"),))]
    verify(graph)
    assert_same(p, p.export())


def test_returns_that_differ_are_one_return() -> None:
    @program
    def p(s: State):
        s += select("k", ["a", "b"])
        s += gen("x")
        if s["k"] == "a":
            return s["x"]
        return None

    graph = p.trace()
    assert kinds(graph) == ["select", "gen", "switch", "return"]
    assert_same(p, p.export())


def test_branches_decide_each_for_itself() -> None:
    @program
    def p(s: State):
        fk = s.fork(3)
        for b in fk:
            b += select("k", ["a", "b"])
            if b["k"] == "a":
                b += "x" + gen("v")
            else:
                b += gen("v")
        return fk.join("v")

    graph = p.trace()
    top = [n for n in graph if isinstance(n, Switch)]
    assert len(top) == len(_switches(graph)) == 3  # not 2 ** 3 paths
    assert [n.context for n in top] == ["2[0]", "2[1]", "2[2]"]
    verify(graph)
    assert_same(p, p.export())


def test_one_decision_about_two_lines_is_a_switch_on_each() -> None:
    @program
    def p(s: State):
        s += select("k", ["a", "b"])
        one, two = s.fork(2)
        if s["k"] == "a":
            one += "x" + gen("v")
            two += "y"
        else:
            two += "z" + gen("v")
        one += gen("e1")
        two += gen("e2")
        one += "."

    graph = p.trace()
    switches = [n for n in graph if isinstance(n, Switch)]
    assert [s.branch for s in switches] == [0, 1]
    assert len({s.on for s in switches}) == 1
    verify(graph)
    assert_same(p, p.export())


def test_fork_inside_an_arm_stays_in_it() -> None:
    @program
    def p(s: State):
        s += select("k", ["a", "b"])
        if s["k"] == "a":
            fk = s.fork(2)
            fk += gen("v")
            s += " ".join(fk.join("v"))
        else:
            s += gen("v")
        s += gen("end")

    graph = p.trace()
    assert kinds(graph) == ["select", "switch", "gen"]
    verify(graph)
    assert_same(p, p.export())


def test_forks_of_different_size_stay_apart() -> None:
    @program
    def p(s: State):
        s += select("k", ["a", "b"])
        fk = s.fork(2 if s["k"] == "a" else 3)
        for b in fk:
            b += gen("v")
        found = fk.join("v")
        s += gen("end")
        return len(found)

    graph = p.trace()
    verify(graph)
    assert kinds(graph) == ["select", "switch", "gen", "return"]
    assert_same(p, p.export())


def test_join_that_only_one_arm_makes_stands_in_it() -> None:
    @program
    def p(s: State):
        s += select("k", ["a", "b"])
        fk = s.fork(2)
        fk += gen("v")
        if s["k"] == "a":
            s += fk.join("v")[0]
        s += gen("end")

    graph = p.trace()
    assert kinds(graph) == ["select", "fork", "gen", "gen", "switch", "gen"]
    verify(graph)
    assert_same(p, p.export())


def test_turn_opened_in_both_arms_is_opened_once() -> None:
    @program
    def p(s: State):
        s += select("k", ["a", "b"])
        with s.user():
            s += "x" if s["k"] == "a" else "y"

    graph = p.trace()
    assert kinds(graph) == ["select", "role_begin", "switch", "role_end"]
    verify(graph)


def test_turn_in_one_arm_does_not_keep_the_rest_apart() -> None:
    @program
    def p(s: State):
        s += select("k", ["a", "b"])
        if s["k"] == "a":
            with s.user():
                s += "x"
        s += gen("end")
        return s["k"]

    graph = p.trace()
    assert kinds(graph) == ["select", "switch", "gen", "return"]
    verify(graph)
    assert_same(p, p.export())


def test_second_question_about_a_value_asks_only_what_is_left() -> None:
    @program
    def p(s: State):
        s += select("k", ["a", "b", "c"])
        if s["k"] == "a":
            s += "1"
        elif s["k"] == "b":
            s += "2"
        else:
            s += "3"

    (switch,) = _switches(p.trace())
    assert [arm.values for arm in switch.arms] == [("a",), ("b",), ("c",)]


def test_order_of_questions_does_not_multiply() -> None:
    asked = []

    @program
    def p(s: State):
        s += select("k", ["a", "b", "c", "d"])
        asked.append(1)
        s += {"a": "1", "b": "2"}.get(s["k"], "3")

    graph = p.trace()
    assert len(asked) == 4  # by value, because a dict hashes
    (switch,) = _switches(graph)
    assert [arm.values for arm in switch.arms] == [("a",), ("b",), ("c", "d")]


def test_loop_on_a_select_is_followed_to_its_end() -> None:
    @program
    def p(s: State):
        for _ in range(3):
            s += select("more", ["yes", "no"])
            if s["more"] == "no":
                break
            s += gen("x")
        s += "end" + gen("end")

    graph = p.trace()
    verify(graph)
    assert breaks(graph) == []
    assert not any(s.assumed for s in _switches(graph))
    assert_same(p, p.export())


def test_endless_loop_ends_and_is_assumed() -> None:
    @program
    def p(s: State):
        s += select("more", ["yes", "no"])
        while s["more"] == "yes":
            s += gen("x")
            s += select("more", ["yes", "no"])
        s += "end"

    graph = p.trace()
    assert any(s.assumed for s in _switches(graph))
    assert kinds(graph)[-1] == "text"
    with pytest.raises(ExportError, match="not every path"):
        p.export()


def _questions(count: int):
    @program
    def p(s: State):
        for _ in range(count):
            s += select("k", ["a", "b"])
            s += "x" if s["k"] == "a" else "y" + gen("z")
        s += gen("end")

    return p


def test_all_paths_are_followed_up_to_the_limit() -> None:
    graph = _questions(8).trace()
    assert MAX_PATHS == 2**8
    assert len(_switches(graph)) == 8
    assert not any(s.assumed for s in _switches(graph))


def test_above_the_limit_every_arm_is_visited_once_and_said_to_be_assumed() -> None:
    graph = _questions(9).trace()
    switches = _switches(graph)
    # the same line of a loop is one place: its later rounds are not visited on their own
    assert switches
    assert all(s.assumed for s in switches)
    assert [len(s.arms) for s in switches] == [2] * len(switches)


def test_many_places_above_the_limit_each_have_both_arms() -> None:
    @program
    def p(s: State):
        s += select("k0", ["a", "b"]) + select("k1", ["a", "b"]) + select("k2", ["a", "b"]) + select("k3", ["a", "b"])
        s += select("k4", ["a", "b"]) + select("k5", ["a", "b"]) + select("k6", ["a", "b"]) + select("k7", ["a", "b"])
        s += select("k8", ["a", "b"])
        for i in range(9):
            if s[f"k{i}"] == "b":
                s += f"{i}" + gen("x")
            s += f"-{i}"

    graph = p.trace()
    top = [n for n in graph if isinstance(n, Switch)]
    assert [n.on.node_id for n in top] == [
        "1",
        *(f"1.{i}" for i in (1, 2, 3)),
        "2",
        *(f"2.{i}" for i in (1, 2, 3)),
        "3",
    ]
    assert all(n.assumed for n in top)
    assert all([len(arm.graph) for arm in n.arms] == [0, 2] for n in top)
    assert findings(graph) == []


def test_arm_that_breaks_leaves_the_other_whole() -> None:
    @program
    def p(s: State):
        s += select("k", ["a", "b"])
        if s["k"] == "a":
            s += gen("v")
            if s["v"] == "x":
                s += "never"
        s += "after" + gen("end")

    graph = p.trace()
    assert kinds(graph) == ["select", "switch", "text", "gen"]
    (end,) = breaks(graph)
    assert end.on == Reference("2")
    with pytest.raises(ExportError, match="breaks off"):
        p.export()


def test_arm_that_raises_is_a_break_with_its_line() -> None:
    @program
    def p(s: State):
        s += select("k", ["a", "b"])
        if s["k"] == "b":
            raise ValueError("no b today")
        s += "fine"

    (end,) = breaks(p.trace())
    assert "no b today" in end.reason
    assert end.origin is not None
    assert end.origin.statement == 'raise ValueError("no b today")'


def test_ids_inside_arms_are_those_of_a_run() -> None:
    from sglang_dsl import RunOptions
    from sglang_dsl.runtime.backends.mock import mock

    @program
    def p(s: State):
        s += select("k", ["a", "b"])
        if s["k"] == "a":
            s += "one" + gen("x")
        s += gen("y")

    ran = p.run(options=RunOptions(backend=mock({"k": "a", "x": "1", "y": "2"}))).graph
    assert {n.id for n in ran} <= {n.id for n in everything(p.trace())}


def test_edit_elsewhere_leaves_ids_alone() -> None:
    def made(extra: str):
        from program_strategy import compiled

        return compiled(
            "from sglang_dsl import gen, program, select\n"
            "@program\ndef generated(s):\n"
            "    s += select('k', ['a', 'b'])\n"
            f"    {extra}\n"
            "    if s['k'] == 'a':\n        s += gen('x')\n    s += gen('y')\n"
        ).trace()

    assert made("pass") == made("n = 1 + 2  # and a comment")


def test_phi_of_a_mention_needs_no_arm_nodes() -> None:
    @program
    def p(s: State):
        s += gen("a")
        s += gen("b")
        s += select("k", ["a", "b"])
        chosen = s["a"] if s["k"] == "a" else s["b"]
        s += f"<{chosen}>"
        return chosen

    graph = p.trace()
    (switch,) = _switches(graph)
    assert all(len(arm.graph) == 0 for arm in switch.arms)
    assert_same(p, p.export())


def test_constants_that_differ_stand_in_the_arms() -> None:
    @program
    def p(s: State):
        s += select("k", ["a", "b"])
        return 1 if s["k"] == "a" else 2

    graph = p.trace()
    (switch,) = _switches(graph)
    results = [dict(arm.result.items) for arm in switch.arms]
    assert [list(r.values()) for r in results] == [[Constant(1)], [Constant(2)]]
    assert Plain("x") != Plain("y")
    assert [n.name for n in graph if isinstance(n, Gen)] == []
    assert_same(p, p.export())


def test_what_a_region_refers_to_is_found_and_replaced_in_its_arms() -> None:
    text = Text(id="t", pieces=(Reference("inner"), Plain("x")))
    arm = ArmItems(("a",), (Item(None, text),), (("r", Reference("result")),))
    region = Region(id="w", on=Reference("on"), ways=(arm,), control=("decided",))
    assert {found.node_id for found in references_of(region)} == {"on", "inner", "result", "decided"}
    moved = mapped(region, renaming({"inner": "other"}))
    assert {found.node_id for found in references_of(moved)} == {"on", "other", "result", "decided"}
