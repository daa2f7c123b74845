"""The kit checks what it is given, and says what was prepared and not used (cases 311, 406)."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from sglang_dsl import RunOptions, gen, program, tool
from sglang_dsl.errors import GoldenError, ScriptError, SpecError
from sglang_dsl.runtime.backends.mock.script import CallNumbers
from sglang_dsl.runtime.schedule.request import Lineage
from sglang_dsl.testing import (
    Fault,
    Piece,
    Rule,
    cassette,
    check_golden,
    compare,
    cut_off,
    fails,
    mock,
    pieces,
    stalls,
    with_faults,
)

pytest_plugins = ["pytester"]
REPEATS = 12


@program
def one(s):
    s += gen("x")
    return s["x"]


@tool
def slow(item: int) -> int:
    time.sleep(random.random() * 0.01)
    return item


def results(run) -> set[str]:
    return {repr(run()) for _ in range(REPEATS)}


# --- a list is bound to branch order -----------------------------------------------------------------------------------


def test_list_of_replies_goes_by_branch_though_tools_delay_some():
    @program
    def fan(s):
        branches = s.fork(4)
        for index, branch in enumerate(branches):
            branch += branch.call(slow, index)
            branch += gen("x")
        return list(branches.join("x"))

    for script in (["a", "b", "c", "d"], {"x": ["a", "b", "c", "d"]}):
        assert results(lambda s=script: fan.run(options=RunOptions(backend=mock(s))).value) == {"['a', 'b', 'c', 'd']"}


def test_list_of_replies_goes_by_branch_in_rounds_though_coroutines_sleep():
    @program
    async def fan(s):
        async def body(branch):
            await asyncio.sleep(random.random() * 0.01)
            branch += gen("x")
            first = await branch.get("x")
            await asyncio.sleep(random.random() * 0.01)
            branch += gen("y")
            return first + await branch.get("y")

        return list(await s.fork(3).map(body))

    assert results(lambda: fan.run(options=RunOptions(backend=mock(list("abcdef")))).value) == {"['ad', 'be', 'cf']"}


@pytest.mark.parametrize("concurrency", [1, 3, 32])
def test_list_of_replies_goes_by_batch_item(concurrency):
    @program
    def item(s, number: int):
        s += s.call(slow, number)
        s += gen("x")
        return s["x"]

    def run():
        options = RunOptions(backend=mock({"x": list("abcde")}))
        return [result.value for result in item.run_batch(range(5), options=options, concurrency=concurrency)]

    assert results(run) == {"['a', 'b', 'c', 'd', 'e']"}


def test_list_of_replies_goes_by_item_in_an_awaited_batch():
    @program
    async def item(s, number: int):
        await asyncio.sleep(random.random() * 0.01)
        s += gen("x")
        return await s.get("x")

    def run():
        options = RunOptions(backend=mock(list("abcde")))
        return [result.value for result in asyncio.run(item.arun_batch(range(5), options=options))]

    assert results(run) == {"['a', 'b', 'c', 'd', 'e']"}


@pytest.mark.parametrize(
    ("replies", "values"),
    [(["bad", "bad", "c", "d"], ["c", "d"]), (["a", "bad", "c"], ["a", "c"]), (["bad", "b", "c"], ["c", "b"])],
)
def test_retries_take_the_replies_behind_the_first_round(replies, values):
    @program
    def fan(s):
        branches = s.fork(2)
        for branch in branches:
            branch += gen("x", validate=lambda value: value != "bad", retries=1)
        return list(branches.join("x"))

    assert results(lambda: fan.run(options=RunOptions(backend=mock({"x": replies}))).value) == {repr(values)}


def test_nested_maps_take_replies_by_their_path_and_what_follows_comes_behind():
    @program
    def nested(s):
        def leaf(branch):
            branch += branch.call(slow, 1)
            branch += gen("x")
            return branch["x"]

        found = list(s.fork(2).map(lambda branch: list(branch.fork(2).map(leaf))))
        s += gen("x")
        return found, s["x"]

    run = lambda: nested.run(options=RunOptions(backend=mock({"x": list("abcde")}))).value  # noqa: E731
    assert results(run) == {"([['a', 'b'], ['c', 'd']], 'e')"}


def test_items_of_a_map_node_take_replies_in_their_order():
    @program
    def mapped(s, items):
        def body(t, item):
            t += t.call(slow, item)
            t += gen("x")
            return t["x"]

        return list(s.map(items, body))

    run = lambda: mapped.run([3, 1, 2], options=RunOptions(backend=mock(list("abc")))).value  # noqa: E731
    assert results(run) == {"['a', 'b', 'c']"}


def test_runs_one_after_the_other_continue_the_list():
    backend = mock(list("abcdef"))
    options = RunOptions(backend=backend)
    assert [one.run(options=options).value for _ in range(3)] == ["a", "b", "c"]
    assert [result.value for result in one.run_batch([() for _ in range(3)], options=options)] == ["d", "e", "f"]
    backend.verify()


def test_places_are_those_of_the_picture():
    places, run = CallNumbers(), Lineage("run", 0, 1)
    branches = [Lineage("fork", index, 3, run) for index in range(3)]
    assert places.next(run) == 0
    assert [places.next(branches[index]) for index in (2, 0, 1)] == [3, 1, 2]
    assert [places.next(branches[index]) for index in (1, 0)] == [5, 4]
    assert places.next(run) == 7
    assert places.next(Lineage("another run", 0, 1)) == 8


# --- arguments are checked ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fault("explode"), "kind='explode' is unknown"),
        (lambda: Fault("refus"), "did you mean 'refuse'"),
        (lambda: Fault("cut", after=-1), "after=-1"),
        (lambda: Fault("cut", after="2"), "after='2'"),
        (lambda: Fault("refuse", times=0), "times=0"),
        (lambda: Fault("fail", error="down"), "error='down' is no exception"),
        (lambda: Fault("malformed", text=3), "text=3"),
        (lambda: mock(policy="cyclic"), "policy='cyclic' is unknown"),
        (lambda: mock(policy=["last"]), "policy="),
        (lambda: mock(unscripted="schem"), "did you mean 'schema'"),
        (lambda: mock(emits="abc"), "emits='abc'"),
        (lambda: mock(emits=[1]), "emits="),
        (lambda: mock(fail_if=3), "fail_if=3"),
        (lambda: mock(scores=[1.0]), "scores="),
        (lambda: mock(masked="yes"), "masked='yes'"),
        (lambda: mock(page_size=0), "page_size=0"),
        (lambda: mock(num_pages=True), "num_pages=True"),
        (lambda: mock(context_tokens=1.5), "context_tokens=1.5"),
        (lambda: mock(cost=3), "cost=3 is no CostModel"),
        (lambda: mock(config={}), "config={} is no EngineConfig"),
        (lambda: mock(language_model=3), "language_model=3"),
        (lambda: mock(template="chatml"), "template='chatml'"),
        (lambda: with_faults(mock(["x"]), [Fault("fail")]), "is no dict of faults"),
        (lambda: with_faults(mock(["x"]), {"x": "fail"}), "is no fault by name"),
        (lambda: mock(["x"]).calls(3), "not a name, a node id or a function"),
        (lambda: cassette("x.jsonl", mode="reply"), "is unknown"),
        (lambda: cassette("x.jsonl", redact=["("]), "not a regular expression"),
        (lambda: cassette("x.jsonl", redact="abc"), "is not a list"),
        (lambda: compare(3, 4), "is no Graph"),
        (lambda: check_golden("graph", "x"), "is no Graph"),
    ],
)
def test_wrong_argument_is_refused_at_once_by_name(make, message):
    with pytest.raises(SpecError) as caught:
        make()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: mock(3),
        lambda: mock(object()),
        lambda: mock("yes"),
        lambda: mock({3: "x"}),
        lambda: mock({"x": []}),
        lambda: mock([]),
        lambda: mock([Rule(lambda call: True, "x"), "y"]),
        lambda: mock(["y", Rule(lambda call: True, "x")]),
        lambda: Rule("x", "y"),
        lambda: pieces(3),
        lambda: Piece(None),
        lambda: fails(3),
    ],
)
def test_wrong_script_is_refused_at_once(make):
    with pytest.raises(ScriptError):
        make()


@pytest.mark.parametrize("make", [lambda: cut_off("x", after="2"), lambda: stalls(tokens=-1), lambda: fails(after=-1)])
def test_wrong_number_of_a_reply_is_refused_at_once(make):
    with pytest.raises(SpecError):
        make()


def test_question_about_calls_that_were_not_made_is_refused_with_near_names():
    with mock({"x": "yes"}) as backend:
        one.run(options=RunOptions(backend=backend))
    assert backend.calls("y").count == 0
    for question in ("prefilled_once", "max_parallel"):
        with pytest.raises(
            ScriptError, match=f"{question} was asked of the calls of 'xx', and there is none; did you mean"
        ):
            getattr(backend.calls("xx"), question)


# --- what was not used -------------------------------------------------------------------------------------------------


def test_fault_that_never_struck_is_an_error_by_name():
    with pytest.raises(ScriptError, match=r"1 faults never struck: .typo."):  # noqa: SIM117
        with with_faults(mock({"x": "yes"}), {"typo": Fault("fail")}) as backend:
            one.run(options=RunOptions(backend=backend))
    inner = mock({"x": "yes"})
    one.run(options=RunOptions(backend=with_faults(inner, {"typo": Fault("fail")})))
    with pytest.raises(ScriptError, match="'typo'"):
        inner.verify()


def test_backend_with_faults_answers_what_the_mock_answers():
    with with_faults(mock({"x": "yes"}), {"x": Fault("malformed", text="no")}) as backend:
        assert one.run(options=RunOptions(backend=backend)).value == "no"
    assert backend.calls("x").count == 1


PASSING = """
from sglang_dsl import program, gen, RunOptions
from sglang_dsl.testing import Fault, with_faults

@program
def one(s):
    s += gen("x")
    return s["x"]
"""


@pytest.mark.parametrize(
    ("body", "outcome", "shows"),
    [
        ("    mock_backend(['a', 'b'])\n", {"passed": 1, "errors": 1}, "2 scripted replies were not used"),
        ("    mock_backend(['a', 'b'])\n    assert 1 == 2\n", {"failed": 1}, "assert 1 == 2"),
        ("    one.run(options=RunOptions(backend=mock_backend({'y': 'a'})))\n", {"failed": 1}, "is not scripted"),
        (
            "    b = with_faults(mock_backend({'x': 'a'}), {'z': Fault('fail')})\n    one.run(options=RunOptions(backend=b))\n",
            {"passed": 1, "errors": 1},
            "faults never struck: 'z'",
        ),
    ],
)
def test_failing_test_is_one_failure_without_the_librarys_frames(pytester, body, outcome, shows):
    pytester.makepyfile(PASSING + "\ndef test_it(mock_backend):\n" + body)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(**outcome)
    text = result.stdout.str()
    assert shows in text
    assert "sglang_dsl/runtime" not in text
    assert "sglang_dsl/frontend" not in text


def test_fixture_refuses_a_name_that_is_no_file_name(golden, cassette_file):
    for name in ("../x", "", "a/b", 3):
        with pytest.raises(SpecError, match="is no file name"):
            golden(one.trace(), name)
        with pytest.raises(SpecError, match="is no file name"):
            cassette_file(name)
    with pytest.raises(GoldenError, match="no golden graph"):
        golden(one.trace(), "nothing_there")
