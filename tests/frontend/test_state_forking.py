"""Fork and join: every place a fork can stand, every way branches can come together or fail to."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time

import pytest

from sglang_dsl import MISSING, RunOptions, State, gen, program, select, user
from sglang_dsl.errors import BranchError, CancelledError, ForkError, JoinError, SpecError, UnknownNameError
from sglang_dsl.ir.nodes import Fork, Gen, Join
from sglang_dsl.ir.verify import findings


def run(body, backend, *args):
    return program(body).run(*args, options=RunOptions(backend=backend))


@pytest.mark.parametrize("n", [0, -1, "3", 2.0, None, True])
def test_fork_into_no_branches_is_refused_at_the_line(fake, n):
    def body(s: State):
        s.fork(n)

    with pytest.raises(ForkError) as caught:
        run(body, fake())
    assert caught.value.origin.statement == "s.fork(n)"


def test_fork_before_any_text_starts_from_the_empty_prefix(fake):
    backend = fake()

    def body(s: State):
        s += ""
        v = gen("v")
        branches = s.fork(3)
        for i, branch in enumerate(branches):
            branch += f"q{i} " + v
        return branches.join(v)

    assert run(body, backend).value == ["v1", "v2", "v3"]
    assert [prompt for _, prompt in backend.calls] == ["q0 ", "q1 ", "q2 "]


def test_branches_have_length_iteration_index_and_slices(fake):
    def body(s: State):
        branches = s.fork(4)
        a, *_, d = branches
        return len(branches), a is branches[0], d is branches[-1], branches[1:3] == list(branches)[1:3], d.index

    assert run(body, fake()).value == (4, True, True, True, 3)


def test_append_to_all_branches_takes_a_function_of_the_index(fake):
    def body(s: State):
        branches = s.fork(3)
        branches += lambda i: f"{i}:"
        branches += gen("v")
        branches[1] += "!"
        return [b.text for b in branches]

    assert run(body, fake()).value == ["0:v1", "1:v2!", "2:v3"]


def test_branch_reads_what_the_parent_bound_before_the_fork_only(fake):
    def body(s: State):
        s += gen("a")
        (branch,) = s.fork(1)
        s += gen("a")
        return branch["a"], s["a"]

    assert run(body, fake()).value == ("a1", "a2")


def test_second_round_of_a_name_replaces_the_first(fake):
    def body(s: State):
        for r in (0, 1):
            branches = s.fork(2)
            for branch in branches:
                branch += f"r{r} " + gen("v")
            branches.join()
        return s["v"], s.all("v")

    value, every = run(body, fake()).value
    assert value == ["v3", "v4"]
    assert every == [["v1", "v2"], ["v3", "v4"]]


def test_only_what_branches_bound_since_the_fork_shows_in_the_join(fake):
    def body(s: State):
        s += gen("v")
        branches = s.fork(2)
        branches[0] += gen("v")
        branches.join("v")
        return s["v"]

    assert run(body, fake()).value == ["v2", MISSING]


def test_join_of_everything_gives_one_list_per_name(fake):
    def body(s: State):
        branches = s.fork(2)
        branches += gen("a")
        branches[1] += gen("b")
        lists = branches.join()
        return lists, s["a"], s["b"]

    result = run(body, fake())
    assert result.value[0] == {"a": ["a1", "a2"], "b": [MISSING, "b3"]}
    assert result.value[1:] == (["a1", "a2"], [MISSING, "b3"])


def test_join_of_branches_that_bound_nothing_still_waits_for_them(fake):
    backend = fake()

    def body(s: State):
        branches = s.fork(2)
        branches += gen() + "x"
        return branches.join()

    assert run(body, backend).value is None
    assert backend.joins == 1


def test_join_is_typed_like_its_handle(fake):
    def body(s: State):
        v = gen("v", type=int)
        branches = s.fork(2)
        branches += v
        return branches.join(v), s["v"]

    assert run(body, fake({"v": ["7", "-3"]})).value == ([7, -3], [7, -3])


def test_joined_behaves_like_its_list(fake):
    def body(s: State):
        v = gen("v")
        branches = s.fork(3)
        branches += v
        joined = branches.join(v)
        return [
            len(joined), list(joined), joined[1], joined[-1:], "v2" in joined, bool(joined), str(joined),
            f"{joined}", joined == ["v1", "v2", "v3"], joined.index("v2"), joined.value, joined.get(1),
        ]  # fmt: skip

    full = ["v1", "v2", "v3"]
    assert run(body, fake()).value == [
        3, full, "v2", ["v3"], True, True, str(full), str(full), True, 1, full, full,
    ]  # fmt: skip


def test_join_does_not_wait(fake):
    backend = fake(held=["v"])

    def body(s: State):
        branches = s.fork(2)
        branches += gen("v")
        joined = branches.join("v")
        order = ["joined"]
        backend.runs[0].release("v")
        return [*order, *joined]

    assert run(body, backend).value == ["joined", "v1", "v2"]


def test_join_runs_once_after_branches_of_different_length(fake):
    backend = fake()

    def body(s: State):
        a, b = branches = s.fork(2)
        a += "A" + gen("v")
        b += "B" + gen("w")
        inner = b.fork(2)
        inner += gen("x")
        inner.join("x")
        b += gen("v")
        branches.concat()
        return s.text

    assert run(body, backend).value == "Av1Bw2v5"
    assert backend.joins == 2


def test_nested_joins_give_one_flat_list(fake):
    def body(s: State):
        v = gen("v")
        outer = s.fork(2)
        for branch in outer:
            inner = branch.fork(2)
            inner += v
            inner.join(v)
        return outer.join("v"), outer.join("v", nested=True)

    flat, nested = run(body, fake()).value
    assert flat == ["v1", "v2", "v3", "v4"]
    assert nested == [["v1", "v2"], ["v3", "v4"]]


def test_recursion_of_forks_two_hundred_deep_reads_its_leaf(fake):
    def dig(s: State, depth: int) -> None:
        if depth == 0:
            s += gen("leaf", type=int)
            return
        branches = s.fork(1)
        dig(branches[0], depth - 1)
        branches.join("leaf")

    def body(s: State):
        dig(s, 200)
        return s["leaf"]

    assert run(body, fake({"leaf": ["7"]})).value == [7]


def test_fork_five_hundred_deep_keeps_every_text(fake):
    def body(s: State):
        here = s
        for i in range(500):
            here = here.fork(1)[0]
            here += f"{i},"
        return here.text

    result = run(body, fake())
    assert result.value == "".join(f"{i}," for i in range(500))


def test_fork_two_thousand_wide_adds_no_thread(fake):
    seen = []

    def body(s: State):
        v = gen("v", max_tokens=1)
        branches = s.fork(2000)
        branches += v
        seen.append(threading.active_count())
        return branches.join(v)

    before = threading.active_count()
    assert len(run(body, fake()).value) == 2000
    assert seen[0] <= before  # threads of earlier tests may have ended meanwhile


# join modes ----------------------------------------------------------------------------------------------------------


def joined_by(fake, join, **script):
    def body(s: State):
        v = gen("v", type=int)
        branches = s.fork(3)
        branches += v
        return join(branches, v)

    return run(body, fake({"v": list(script["v"])})).value


@pytest.mark.parametrize(
    ("join", "expected"),
    [
        (lambda b, v: b.first(v), [5]),
        (lambda b, v: b.first(v, k=2), [5, 8]),
        (lambda b, v: b.settle(v), [5, 8, 5]),
        (lambda b, v: b.vote(v), 5),
        (lambda b, v: b.quorum(v, 2), 5),
        (lambda b, v: b.best(v, key=lambda n: n + 0), 8),
        (lambda b, v: b.join(v, mode="best", key=lambda n: -n), 5),
    ],
)
def test_join_modes_give_typed_values(fake, join, expected):
    assert joined_by(fake, join, v=["5", "8", "5"]) == expected


def test_lazy_value_of_a_vote_acts_like_its_value(fake):
    def use(branches, v):
        won = branches.vote(v)
        return [
            won == 5,
            won + 1 if False else won.value + 1,
            won < 6,
            int(won),
            f"{won:03}",
            [10, 20][won > 9],
            hash(won),
        ]

    assert joined_by(fake, use, v=["5", "8", "5"]) == [True, 6, True, 5, "005", 10, hash(5)]


@pytest.mark.parametrize(
    "join",
    [
        lambda b, v: b.first(v, k=4),
        lambda b, v: b.first(v, k=0),
        lambda b, v: b.quorum(v, k=True),
        lambda b, v: b.join(v, mode="quorum"),
        lambda b, v: b.join(v, mode="all", k=2),
        lambda b, v: b.join(v, mode="best"),
        lambda b, v: b.join(v, key=abs),
    ],
)
def test_join_options_that_do_not_fit_the_mode_are_refused(fake, join):
    with pytest.raises(SpecError):
        joined_by(fake, join, v=["5", "8", "5"])


# failures ------------------------------------------------------------------------------------------------------------


def boom(s: State, join):
    v = gen("v")
    branches = s.fork(3)
    branches += lambda i: "BOOM " if i == 1 else "fine "
    branches += v
    return join(branches, v)


def test_join_of_a_failed_branch_raises_with_index_cause_and_siblings(fake):
    with pytest.raises(JoinError, match="branch 1") as caught:
        run(lambda s: boom(s, lambda b, v: b.join(v)), fake(fail_if="BOOM"))
    first, error, last = caught.value.results
    assert (first, last) == ("v1", "v3")
    assert "BOOM" in str(error)
    assert caught.value.__cause__ is error


def test_settle_keeps_values_errors_and_positions(fake):
    values = run(lambda s: boom(s, lambda b, v: b.settle(v)), fake(fail_if="BOOM")).value
    assert [type(v) for v in values] == [str, RuntimeError, str]


def test_failed_join_that_nobody_read_fails_the_run(fake):
    def body(s: State):
        boom(s, lambda b, v: b.join(v))
        return "done"

    with pytest.raises(JoinError):
        run(body, fake(fail_if="BOOM"))


def test_failed_join_that_the_program_dealt_with_does_not_fail_the_run(fake):
    def body(s: State):
        joined = boom(s, lambda b, v: b.join(v))
        try:
            return joined.value
        except JoinError as error:
            return [r if isinstance(r, str) else "-" for r in error.results]

    assert run(body, fake(fail_if="BOOM")).value == ["v1", "-", "v3"]


def test_failed_join_followed_by_text_fails_the_run_all_the_same(fake):
    def body(s: State):
        boom(s, lambda b, v: b.join(v))
        s += "goes on"

    with pytest.raises(JoinError):
        run(body, fake(fail_if="BOOM"))


def test_failed_branch_that_nobody_looked_at_fails_the_run(fake):
    def body(s: State):
        s.fork(2).append("BOOM" + gen("v"))

    with pytest.raises(RuntimeError, match="BOOM"):
        run(body, fake(fail_if="BOOM"))


def test_failed_branch_whose_failure_was_read_does_not_fail_the_run(fake):
    def body(s: State):
        (branch,) = s.fork(1)
        branch += "BOOM" + gen("v")
        with pytest.raises(RuntimeError):
            branch["v"]
        return "fine"

    assert run(body, fake(fail_if="BOOM")).value == "fine"


def test_append_after_a_failure_raises_the_first_cause_at_once(fake):
    def body(s: State):
        s += "BOOM " + gen("v")
        s += gen("w")

    with pytest.raises(RuntimeError, match="BOOM"):
        run(body, fake(fail_if="BOOM"))


def test_append_to_a_branch_after_its_join_says_where_it_was_joined(fake):
    def body(s: State):
        branches = s.fork(2)
        branches += gen("v")
        branches.join("v")
        value = branches[0]["v"]
        branches[0] += gen("x")
        return value

    with pytest.raises(BranchError, match="joined already, at") as caught:
        run(body, fake())
    assert caught.value.origin.statement == 'branches[0] += gen("x")'


def test_replacing_a_branch_is_refused(fake):
    def body(s: State):
        branches = s.fork(2)
        branches[0] = s

    with pytest.raises(BranchError, match="cannot be replaced"):
        run(body, fake())


def test_join_below_a_joined_state_is_refused(fake):
    def body(s: State):
        outer = s.fork(1)
        inner = outer[0].fork(2)
        inner += gen("v")
        outer.join()
        inner.join("v")

    with pytest.raises(BranchError, match="itself joined"):
        run(body, fake())


def test_join_of_something_that_no_branch_bound_is_refused(fake):
    def body(s: State):
        s.fork(2).join("nothing")

    with pytest.raises(UnknownNameError, match="no branch has bound 'nothing'"):
        run(body, fake())


def test_cancelled_branch_ends_its_calls_and_keeps_its_siblings(fake):
    backend = fake(held=["v"])

    def body(s: State):
        v = gen("v")
        branches = s.fork(2)
        branches += v
        branches[0].cancel("enough")
        with pytest.raises(CancelledError, match="enough"):
            branches[0] += "more"
        backend.runs[0].release("v")
        return branches.settle(v)

    error, value = run(body, backend).value
    assert isinstance(error, CancelledError)
    assert value == "v1"


# map -----------------------------------------------------------------------------------------------------------------


def test_map_lets_one_branch_go_on_while_another_waits(fake):
    backend = fake(held=["slow"])
    order = []

    def body(s: State):
        def work(branch: State):
            name = "slow" if branch.index == 0 else "fast"
            branch += gen(name)
            if branch.index == 2:
                backend.runs[0].release("slow")
            order.append((branch.index, branch[name]))
            return branch.index

        return s.fork(3).map(work)

    assert run(body, backend).value == [0, 1, 2]
    assert [index for index, _ in order] == [1, 2, 0] or [index for index, _ in order] == [2, 1, 0]


def test_map_adds_no_thread_and_bounds_how_many_have_begun(fake):
    backend = fake(held=["v"])
    live, most, threads = set(), [], set()

    def body(s: State):
        def work(branch: State):
            live.add(branch.index)
            most.append(len(live))
            threads.add(threading.get_ident())
            branch += gen("v")
            if len(live) == 2:
                backend.runs[0].release("v")
            value = branch["v"]
            live.discard(branch.index)
            return value

        return s.fork(6).map(work, concurrency=2)

    assert len(run(body, backend).value) == 6
    assert max(most) == 2
    assert len(threads) == 1


def test_map_begins_no_more_bodies_than_it_may_while_all_wait(fake):
    backend = fake(held=["v"])
    live, most = set(), []

    def body(s: State):
        threading.Timer(0.05, lambda: backend.runs[0].release("v")).start()

        def work(branch: State):
            live.add(branch.index)
            most.append(len(live))
            branch += gen("v")
            value = branch["v"]
            live.discard(branch.index)
            return value

        return s.fork(6).map(work, concurrency=2)

    assert len(run(body, backend).value) == 6
    assert max(most) == 2


def test_map_inside_map_with_concurrency_one_finishes(fake):
    backend = fake(held=["v"])

    def body(s: State):
        timer = threading.Timer(0.05, lambda: backend.runs[0].release("v"))
        timer.start()

        def inner(branch: State):
            branch += gen("v")
            return branch["v"]

        def outer(branch: State):
            return branch.fork(2).map(inner, concurrency=1)

        return s.fork(2).map(outer, concurrency=1)

    assert run(body, backend).value == [["v1", "v2"], ["v3", "v4"]]


def test_map_lets_siblings_finish_and_raises_the_first_error(fake):
    def body(s: State):
        def work(branch: State):
            branch += gen("v")
            if branch.index == 1:
                raise ValueError("no")
            return branch["v"]

        return s.fork(3).map(work)

    with pytest.raises(JoinError, match="branch 1 of 3 failed") as caught:
        run(body, fake())
    assert isinstance(caught.value.__cause__, ValueError)
    assert [type(r) for r in caught.value.results] == [str, ValueError, str]


def test_map_body_sees_the_context_variables_of_the_caller(fake):
    variable = contextvars.ContextVar("variable", default="none")

    def body(s: State):
        variable.set("A")
        return s.fork(8).map(lambda branch: variable.get())

    assert run(body, fake()).value == ["A"] * 8


def test_map_waits_with_a_timeout(fake):
    backend = fake(held=["v"])

    def body(s: State):
        def work(branch: State):
            branch += gen("v")
            try:
                branch.read("v", timeout_s=0.02)
            except Exception as error:  # noqa: BLE001
                return type(error).__name__

        names = s.fork(2).map(work)
        backend.runs[0].release("v")
        return names

    assert run(body, backend).value == ["DeadlineError", "DeadlineError"]


def test_map_interrupted_ends_the_other_bodies(fake):
    backend = fake(held=["v"])
    ended = []

    def body(s: State):
        def work(branch: State):
            try:
                branch += gen("v")
                if branch.index == 1:
                    raise KeyboardInterrupt
                branch["v"]
            finally:
                ended.append(branch.index)

        s.fork(3).map(work)

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(body, backend)
    assert time.monotonic() - began < 2
    assert sorted(ended) == [0, 1]


def test_async_map_runs_bodies_as_tasks(fake):
    backend = fake(held=["v"])

    async def body(s: State):
        async def work(branch: State):
            branch += gen("v")
            if branch.index == 2:
                backend.runs[0].release("v")
            return await branch.get("v")

        return await s.fork(3).map(work)

    result = asyncio.run(program(body).arun(options=RunOptions(backend=backend)))
    assert sorted(result.value) == ["v1", "v2", "v3"]


# node ids ------------------------------------------------------------------------------------------------------------


def test_node_ids_name_site_part_branch_and_occurrence(fake):
    def helper(s: State) -> None:
        s += gen("h")

    def body(s: State):
        for _ in range(2):
            s += "x" + gen("a")
            branches = s.fork(2)
            branches += gen("b")
            branches.join("b")
        helper(s)
        helper(s)

    graph = run(body, fake()).graph
    assert [n.id for n in graph] == [
        "1", "1.1", "2", "3[0]", "3[1]", "4",
        "1#2", "1.1#2", "2#2", "3[2:0]", "3[2:1]", "4#2",
        "helper.1", "helper.1#2",
    ]  # fmt: skip


def test_node_ids_survive_edits_elsewhere(fake):
    one = "def body(s):\n    s += gen('a')\n    b = s.fork(2)\n    b += gen('b')\n    b.join('b')\n"
    two = "# a comment\nX = 1\n\ndef other(s):\n    s += 'x'\n\n" + one.replace(
        "    b =", "    # why\n    x = len('y')\n    b ="
    )
    ids = []
    for source in (one, two):
        names = {"gen": gen}
        exec(compile(source, "<written here>", "exec"), names)
        ids.append([n.id for n in run(names["body"], fake()).graph])
    assert ids[0] == ids[1]


def test_node_ids_of_branches_do_not_depend_on_the_order_of_other_branches(fake):
    def ids_in(order):
        def body(s: State):
            branches = s.fork(3)
            for i in order:
                branches[i] += gen("a")
                branches[i] += gen("a")

        return {n.id for n in run(body, fake()).graph}

    assert ids_in([0, 1, 2]) == ids_in([2, 0, 1])


def test_graph_of_every_construct_obeys_the_rules(fake):
    def inner(s: State):
        s += user("q", gen("a"))
        return s["a"]

    sub = program(inner)

    def body(s: State):
        sub(s)
        kind = select("kind", ["x", "y"])
        s += user("text") + kind
        branches = s.fork(2)
        branches += gen("v", n=2)
        for branch in branches:
            deeper = branch.fork(2)
            deeper += gen("w")
            deeper.join("w")
        branches.join()
        branches.concat()
        return s["w"]

    graph = run(body, fake()).graph
    assert findings(graph) == []
    assert {Fork, Gen, Join} < {type(n) for n in graph}


def test_map_of_async_bodies_bounds_how_many_have_begun(fake):
    live, most = set(), []

    async def body(s: State):
        async def work(branch: State):
            live.add(branch.index)
            most.append(len(live))
            for _ in range(3):
                await asyncio.sleep(0)
            live.discard(branch.index)
            return branch.index

        return await s.fork(6).map(work, concurrency=2)

    result = asyncio.run(program(body).arun(options=RunOptions(backend=fake())))
    assert result.value == list(range(6))
    assert max(most) == 2
