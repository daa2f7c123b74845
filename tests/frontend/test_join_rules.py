"""What a branch has to offer a join, and which branches take part (cases: 301, 305, 409, 503, 704)."""

from __future__ import annotations

import json
import time

import pytest

from sglang_dsl import MISSING, RunOptions, State, gen, program, tool
from sglang_dsl.errors import (
    CancelledError,
    ForkError,
    GraphError,
    JoinError,
    ProgramError,
    SpecError,
    UnknownNameError,
)
from sglang_dsl.ir.execution import RunSpec, resolve
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.json_format import dumps, loads
from sglang_dsl.ir.nodes import Fork, Gen, Join, Operation, Reference, Return
from sglang_dsl.testing import mock


def run(body, script, *args):
    return program(body).run(*args, options=RunOptions(backend=mock(script))).value


# since the fork --------------------------------------------------------------------------------------------------------

SECOND_ROUND = {
    "join": (lambda f, v: f.join(v).value, ["D", MISSING, MISSING]),
    "settle": (lambda f, v: f.settle(v).value, ["D", MISSING, MISSING]),
    "first": (lambda f, v: f.first(v).value, ["D"]),
    "vote": (lambda f, v: f.vote(v).value, "D"),
    "quorum": (lambda f, v: f.quorum(v, 1).value, "D"),
    "best": (lambda f, v: f.best(v, key=lambda value: value == "a").value, "D"),
    "everything": (lambda f, v: f.join().value, ["D", MISSING, MISSING]),
}


@pytest.mark.parametrize("by", ["name", "handle"])
@pytest.mark.parametrize("mode", SECOND_ROUND)
def test_second_round_sees_only_what_its_own_branches_bound(mode, by):
    join, expected = SECOND_ROUND[mode]

    def body(s: State):
        v = gen("v")
        first = s.fork(3)
        first += v
        first.join(v)
        second = s.fork(3)
        second[0] += v
        return join(second, "v" if by == "name" else v), len(s.metas("v"))

    value, metas = run(body, {"v": ["a", "b", "c", "D"]})
    assert value == expected
    assert metas == 1


@pytest.mark.parametrize("join", ["first", "vote", "join", "settle"])
def test_name_that_only_the_parent_has_is_no_value_of_a_branch(join):
    def body(s: State):
        s += gen("v")
        branches = s.fork(2)
        branches += "x"
        getattr(branches, join)("v")

    with pytest.raises(UnknownNameError, match="since the fork"):
        run(body, {"v": "old"})


def test_branch_offers_what_it_gathered_itself_also_of_a_handle_without_a_name():
    def body(s: State):
        v = gen(max_tokens=4)
        outer = s.fork(2)
        inner = outer[0].fork(2)
        inner += v
        inner.join(v)
        outer[1] += v
        return outer.join(v).value

    assert run(body, ["a", "b", "c"]) == ["a", "b", "c"]


def test_names_bound_in_every_way_count(fake):
    @tool
    def weigh(x: str) -> int:
        return len(x)

    def body(s: State):
        branches = s.fork(3)
        branches[0].call(weigh, "four")
        with branches[1].var_scope("weigh"):
            branches[1] += "text " + gen("v")
        return branches.join("weigh").value

    assert run(body, {"v": "x"}) == [4, "text x", MISSING]


def test_names_in_many_rounds_are_found_in_their_layers():
    def body(s: State):
        for i in range(40):
            for branch in (branches := s.fork(2)):
                branch += gen(f"v{i % 7}")
            branches.join(f"v{i % 7}")
        return [s[f"v{i}"] for i in range(7)], len(s.all("v3")), s.fork(1)[0]["v6"]

    found, rounds, inherited = run(
        body, {f"v{i}": [str(i)] * 14 for i in range(7)} | {"v5": ["5"] * 10, "v6": ["6"] * 10}
    )
    assert found == [[str(i)] * 2 for i in range(7)]
    assert rounds == 6
    assert inherited == ["6", "6"]


# cancelled branches ----------------------------------------------------------------------------------------------------

CANCELLED_1 = {
    "join": (lambda f: f.join("v").value, ["a", "c"]),
    "vote": (lambda f: f.vote("v").value, "a"),
    "quorum": (lambda f: f.quorum("v", 1).value, "a"),
    "first": (lambda f: f.first("v", 2).value, ["a", "c"]),
    "best": (lambda f: f.best("v", key=lambda v: v == "b").value, "a"),
    "accept": (lambda f: f.join("v", accept=[2, 0]).value, ["a", "c"]),
}


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("mode", CANCELLED_1)
def test_cancelled_branch_takes_no_part_finished_or_not(mode, finished):
    join, expected = CANCELLED_1[mode]

    def body(s: State):
        branches = s.fork(3)
        branches += gen("v")
        if finished:
            assert branches[1]["v"] == "b"
        branches[1].cancel()
        return join(branches)

    assert run(body, {"v": ["a", "b", "c"]}) == expected


@pytest.mark.parametrize("finished", [True, False])
def test_settle_has_the_cancelled_branch_as_an_error_and_concat_has_not_its_text(finished):
    def body(s: State):
        branches = s.fork(3)
        branches += gen("v")
        if finished:
            assert branches[1]["v"] == "b"
        branches[1].cancel()
        settled = branches.settle("v").value
        branches.concat()
        return settled, s.text

    settled, text = run(body, {"v": ["a", "b", "c"]})
    assert (settled[0], type(settled[1]), settled[2]) == ("a", CancelledError, "c")
    assert text == "ac"


def test_accepted_branches_are_all_that_count_also_in_the_stored_graph():
    def body(s: State):
        branches = s.fork(3)
        branches += gen("v")
        branches.concat(accept=[1])
        return branches.join("v", accept={0, 1}).value, s.text

    result = program(body).run(options=RunOptions(backend=mock({"v": ["a", "b", "c"]})))
    assert result.value == (["a", "b"], "b")
    joins = [node for node in loads(dumps(result.graph)) if isinstance(node, Join)]
    assert [node.skipped for node in joins] == [(0, 2), (2,)]


@pytest.mark.parametrize("accept", [[3], [-1], [True], "01", 1, ["0"]])
def test_accept_names_branches(accept):
    def body(s: State):
        branches = s.fork(3)
        branches += gen("v")
        branches.join("v", accept=accept)

    with pytest.raises(SpecError, match="accept="):
        run(body, {"v": ["a", "b", "c"]})


def test_all_branches_cancelled_leave_an_empty_list_and_no_winner():
    def body(s: State):
        branches = s.fork(2)
        branches += gen("v")
        branches.cancel()
        with pytest.raises(SpecError, match="all were cancelled"):
            branches.first("v")
        found = branches.join("v").value
        with pytest.raises(JoinError):
            branches.vote("v").get()
        return found

    assert run(body, {"v": ["a", "b"]}) == []


# several joins of one fork ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("race", ["vote", "quorum", "first"])
def test_race_leaves_alone_what_may_be_wanted_still(race):
    def body(s: State):
        branches = s.fork(3)
        branches += gen("v") + gen("w")
        branches[2] += gen("x")
        won = {"vote": lambda: branches.vote("v", cancel_rest=False), "first": lambda: branches.first("v", cancel_rest=False),
               "quorum": lambda: branches.quorum("v", 2, cancel_rest=False)}[race]()  # fmt: skip
        won.get()
        return branches.join("w").value, branches.join("x").value

    script = {"v": ["a", "a", "a"], "w": ["1", "2", "3"], "x": "a long text that takes many more steps than the rest"}
    assert run(body, script) == (["1", "2", "3"], [MISSING, MISSING, script["x"]])


# one value -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nested", [False, True])
def test_nested_join_is_one_value_however_it_is_used(nested):
    seen = []

    @tool
    def take(x: list) -> int:
        seen.append(x)
        return len(x)

    def body(s: State):
        v = gen("v")
        outer = s.fork(3)
        for branch in outer[:2]:
            inner = branch.fork(2)
            inner += v
            inner.join(v)
        outer[2] += v
        joined = outer.join("v", nested=nested)
        s += joined
        s += "\n"
        s += s.ref("v")
        s.call(take, joined).get()
        s.call(take, s.ref("v")).get()
        s.call(take, s["v"]).get()
        return joined

    found = program(body).run(options=RunOptions(backend=mock({"v": ["a", "b", "c", "d", "e"]})))
    expected = [["a", "b"], ["c", "d"], "e"] if nested else ["a", "b", "c", "d", "e"]
    assert found.value == expected
    assert [json.loads(line) for line in found.text.splitlines()] == [expected, expected]
    assert seen == [expected] * 3
    assert found.state["v"] == expected
    assert list(found.state.all("v")[-1]) == expected


def test_typed_values_of_races_inside_joins_are_objects_of_their_type():
    def body(s: State):
        v = gen("v", type=int)
        outer = s.fork(2)
        for branch in outer:
            inner = branch.fork(3)
            inner += v
            inner.vote(v)
        return outer.join("v").value, outer.settle("v").value, outer.first("v", 2).value

    found = run(body, {"v": ["1", "1", "1", "4", "4", "4"]})
    assert found == ([1, 4], [1, 4], [1, 4])
    assert {type(value) for values in found for value in values} == {int}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("depth", [600, 2000])
def test_joins_nest_as_deep_as_a_program_likes(depth, nested):
    def body(s: State):
        states, groups = [s], []
        for _ in range(depth):
            groups.append(states[-1].fork(1))
            states.append(groups[-1][0])
        states[-1] += gen("leaf", type=int)
        for branches in reversed(groups):
            branches.join("leaf", nested=nested)
        value, levels = s["leaf"], 0
        while isinstance(value, list):
            (value,), levels = value, levels + 1
        return value, levels, len(s.metas("leaf"))

    assert run(body, {"leaf": "7"}) == (7, depth if nested else 1, 1)


def test_failure_below_many_joins_is_named_in_one_line():
    def body(s: State):
        states, groups = [s], []
        for _ in range(300):
            groups.append(states[-1].fork(1))
            states.append(groups[-1][0])
        states[-1] += gen("leaf", type=int)
        for branches in reversed(groups):
            branches.join("leaf")
        return s["leaf"]

    with pytest.raises(JoinError) as caught:
        run(body, {"leaf": "no number at all"})
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("race", ["vote", "quorum", "first"])
def test_joins_written_before_the_program_waits_do_not_depend_on_when_the_race_was_decided(race, ended):
    """What the race needs is there before it is written, or not: it ends no branch before the program rests."""

    def body(s: State):
        branches = s.fork(3)
        branches += gen("v")
        if ended:
            for branch in branches:
                branch["v"]
        branches += gen("w")
        won = getattr(branches, race)("v", *([2] if race == "quorum" else []))
        time.sleep(0.05)
        rest = branches.join("w")
        return won.value, rest.value

    script = {"v": ["a", "a", "a"], "w": ["1", "2", "three is longer than the others by far"]}
    won, rest = run(body, script)
    assert rest == script["w"]
    assert won == (["a"] if race == "first" else "a")


def test_losers_end_when_the_program_waits_or_returns():
    def body(s: State, reads: bool):
        branches = s.fork(2)
        branches[0] += gen("v")
        branches[0]["v"]
        branches[1] += gen("v")
        won = branches.first("v")
        return won.value if reads else 1

    for reads in (True, False):
        result = program(body).run(reads, options=RunOptions(backend=mock({"v": ["a", "b" * 500]})))
        assert any(isinstance(error, CancelledError) for error in result.errors.values())


@pytest.mark.parametrize("mode", ["vote", "quorum"])
def test_values_too_deep_to_be_compared_are_named(mode):
    @tool
    def deep(x: int) -> list:
        value: object = x
        for _ in range(3000):
            value = [value]
        return value

    def body(s: State):
        branches = s.fork(2)
        for branch in branches:
            branch.call(deep, 1)
        return getattr(branches, mode)("deep", *([2] if mode == "quorum" else [])).value

    with pytest.raises(JoinError) as caught:
        run(body, {})
    assert isinstance(caught.value.__cause__, GraphError)
    assert "deeply" in str(caught.value.__cause__)


@pytest.mark.parametrize("wrong", [0, -1, True, "2", 1.5])
def test_concurrency_of_a_map_is_a_whole_number(wrong):
    def body(s: State):
        return s.fork(2).map(lambda branch: branch.index, concurrency=wrong)

    with pytest.raises(ForkError, match="concurrency="):
        run(body, {})


@pytest.mark.parametrize("wrong", [5, 2.5, ["v"], object()])
def test_branches_are_joined_on_a_name_or_a_handle(wrong):
    def body(s: State):
        branches = s.fork(2)
        branches += gen("v")
        branches.join(wrong)

    with pytest.raises(ProgramError, match="a name or a handle"):
        run(body, {"v": ["a", "b"]})


@pytest.mark.parametrize("wrong", ["len", 5, [len]])
def test_key_of_best_is_a_function(wrong):
    def body(s: State):
        branches = s.fork(2)
        branches += gen("v")
        branches.best("v", key=wrong)

    with pytest.raises(SpecError, match="cannot be called"):
        run(body, {"v": ["a", "b"]})


def test_value_of_a_branch_that_cannot_be_mentioned_is_that_branchs_failure():
    """An operation that does not fit fails where the value comes late, too: never the run, never its siblings."""
    graph = Graph(name="g")
    graph.extend([
        Fork(id="f", size=2),
        Gen(id="a", context="f", branch=0), Gen(id="b", context="f", branch=1),
        Join(id="j", context="f", fork="f", mode="settle", tips=("a", "b"),
             values=(Reference("a"), Reference("b", (Operation("item", ("no",)),)))),
        Return(id="r", context="j", value=Reference("j")),
    ])  # fmt: skip
    backend = mock(["a", "a much longer text"])
    opened = resolve(backend).open(RunSpec(options=RunOptions(backend=backend)))
    opened.extend(list(graph))
    value = opened.value("j").result(20).value
    opened.seal().result(20)
    assert value[0] == "a"
    assert isinstance(value[1], GraphError)


def test_two_lambdas_written_in_one_place_are_two_keys(fake):
    """Both are called `<lambda>` of the same function: each join has to be decided by its own."""
    backend = fake({"v": ["b", "a", "c"]})
    values = {}

    @program
    def p(s: State):
        for branch in (branches := s.fork(3)):
            branch += gen("v")
        first, last = branches.best("v", key=lambda v: -ord(v)), branches.best("v", key=lambda v: ord(v))
        values.update(first=first.value, last=last.value)

    p.run(options=RunOptions(backend=backend))
    assert values == {"first": "a", "last": "c"}
    [run] = backend.runs
    keys = [node.key for node in run.nodes.values() if isinstance(node, Join)]
    assert len(set(keys)) == 2
    assert [run.registry[key]("b") for key in keys] == [-ord("b"), ord("b")]


def test_one_function_used_twice_is_one_key(fake):
    backend = fake({"v": ["b", "a", "c"]})

    @program
    def p(s: State):
        for branch in (branches := s.fork(3)):
            branch += gen("v")
        return branches.best("v", key=ord).value, branches.best("v", key=ord).value

    assert p.run(options=RunOptions(backend=backend)).value == ("c", "c")
    keys = {node.key for node in backend.runs[0].nodes.values() if isinstance(node, Join)}
    assert len(keys) == 1
