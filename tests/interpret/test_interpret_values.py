"""What ends a node and with what: validators, texts of regions, claims, seeds; at the border of a run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_target import FakeTarget

from sglang_dsl.errors import (
    BranchError,
    CancelledError,
    DeadlineError,
    GraphError,
    InvalidValueError,
    RoleError,
    RunError,
    SpecError,
    ToolError,
    TruncatedError,
)
from sglang_dsl.ir.execution import RunSpec
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.nodes import (
    Arm,
    Constant,
    DictOf,
    Fork,
    Gen,
    Input,
    Join,
    ListOf,
    Loop,
    Map,
    Node,
    Plain,
    Reasoning,
    Reference,
    RoleBegin,
    RoleEnd,
    Select,
    Switch,
    Text,
    ToolNode,
)
from sglang_dsl.ir.specs import ConstraintSpec, RunOptions, SamplingSpec
from sglang_dsl.runtime.interpret.run import InterpretedRun
from sglang_dsl.runtime.schedule.request import ScoreRequest

SOON_S = 10  # only a hang takes longer


def open_run(target: FakeTarget, *, registry: Any = None, **options: Any) -> InterpretedRun:
    spec = RunSpec(program="p", options=RunOptions(seed=7, **options), registry=registry or {})
    return InterpretedRun(spec, {None: target})


def text(id_: str, *said: Any, context: str | None = None, branch: int | None = None) -> Text:
    pieces = tuple(Plain(p) if isinstance(p, str) else p for p in said)
    return Text(id=id_, pieces=pieces, context=context, branch=branch)


def gen(id_: str, context: str | None = None, **more: Any) -> Gen:
    return Gen(id=id_, name=id_, context=context, **more)


def echo(request: Any) -> Any:
    if isinstance(request, ScoreRequest):
        return [[-2.0], [-1.0]]
    return f"<{request.label.name}>"


# validators


def raising(error: Exception) -> Any:
    def validator(value: Any) -> Any:
        raise error

    return validator


async def later(verdict: Any) -> Any:
    await asyncio.sleep(0)
    if isinstance(verdict, Exception):
        raise verdict
    return verdict


REFUSALS = [
    (lambda value: False, InvalidValueError, "returned False"),
    (raising(ValueError("too long")), InvalidValueError, "too long"),
    (raising(ValueError()), InvalidValueError, "ValueError"),
    (raising(KeyError("x")), RunError, "raised"),
    (raising(SpecError("own")), InvalidValueError, "own"),  # it is a ValueError, too
    (raising(ToolError("own")), ToolError, "own"),
    (raising(CancelledError("else")), RunError, "raised"),
    (raising(InvalidValueError("inner")), RunError, "raised InvalidValueError"),
    (lambda value: later(False), InvalidValueError, "returned False"),
    (lambda value: later(ValueError("late")), InvalidValueError, "late"),
    (lambda value: later(KeyError("x")), RunError, "raised"),
]


@pytest.mark.parametrize(("validator", "kind", "said"), REFUSALS)
def test_what_a_validator_raises_or_returns_decides_how_its_gen_fails(validator: Any, kind: Any, said: str) -> None:
    run = open_run(FakeTarget(lambda r: "ok"), registry={"v": validator})
    run.extend([text("t", "x "), gen("a", "t", validator="v")])
    error = run.value("a").exception(SOON_S)
    assert type(error) is kind
    assert said in str(error)


@pytest.mark.parametrize(
    "validator", [lambda value: True, lambda value: None, lambda value: later(True), lambda value: 0]
)
def test_validator_that_does_not_refuse_accepts(validator: Any) -> None:
    run = open_run(FakeTarget(lambda r: "ok"), registry={"v": validator})
    run.extend([text("t", "x "), gen("a", "t", validator="v"), gen("b", "a")])
    assert run.value("a").result(SOON_S).value == "ok"
    assert run.value("b").result(SOON_S).value == "ok"


def test_validator_is_asked_again_for_every_attempt_and_the_attempts_are_counted() -> None:
    replies = iter(["bad", "worse", "good"])
    asked: list[str] = []

    def validator(value: str) -> bool:
        asked.append(value)
        return value == "good"

    target = FakeTarget(lambda r: next(replies))
    run = open_run(target, registry={"v": validator})
    run.extend([text("t", "x "), gen("a", "t", validator="v", retries=2)])
    outcome = run.value("a").result(SOON_S)
    assert (outcome.value, asked) == ("good", ["bad", "worse", "good"])
    assert outcome.meta is not None
    assert outcome.meta.attempts == 3
    assert len({request.sampling.seed for request in target.requests}) == 3
    assert [request.label.attempt for request in target.requests] == [0, 1, 2]


def test_validator_unknown_is_refused_when_it_is_appended() -> None:
    run = open_run(FakeTarget(echo))
    with pytest.raises(SpecError, match="v"):
        run.extend([text("t", "x "), gen("a", "t", validator="v")])
    run.extend([text("t", "x "), gen("a", "t")])
    assert run.value("a").result(1).value == "<a>"


# what a constraint admits is checked however the model wrote it


@pytest.mark.parametrize(
    ("constraint", "decode", "said", "value"),
    [
        (ConstraintSpec(kind="regex", text="[0-9]+"), "json", "12", 12),
        (ConstraintSpec(kind="regex", text="[0-9]+"), "json", "1a", None),
        (ConstraintSpec.choices(("red", "blue")), "text", "blue", "blue"),
        (ConstraintSpec.choices(("red", "blue")), "text", "green", None),
        (ConstraintSpec.json_schema({"type": "integer", "minimum": 3}), "json", "3", 3),
        (ConstraintSpec.json_schema({"type": "integer", "minimum": 3}), "json", "2", None),
        (ConstraintSpec.json_schema({"type": "array", "items": {"type": "string"}}), "json", '["a"]', ["a"]),
        (ConstraintSpec.json_schema({"type": "array", "items": {"type": "string"}}), "json", "[1]", None),
        (ConstraintSpec.json_schema({"type": "object"}), "json", "{", None),
        (None, "json", '{"a": [1]}', {"a": [1]}),
        (None, "json", "nonsense", None),
        (None, "text", "anything", "anything"),
    ],
)
def test_value_is_what_the_text_says_where_the_constraint_admits_it(
    constraint: Any, decode: Any, said: str, value: Any
) -> None:
    run = open_run(FakeTarget(lambda r: said))
    run.extend([text("t", "x "), gen("a", "t", constraint=constraint, decode=decode)])
    if value is None:
        error = run.value("a").exception(SOON_S)
        assert isinstance(error, InvalidValueError)
        assert error.text == said
    else:
        assert run.value("a").result(SOON_S).value == value
        assert run.value("a").result(SOON_S).text == said


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_constrained_output_that_was_cut_is_truncated_and_free_text_is_not(reason: str) -> None:
    target = FakeTarget(lambda r: ('{"a": [1', reason))
    run = open_run(target)
    run.extend(
        [text("t", "x "), gen("a", "t", constraint=ConstraintSpec.json_schema({"type": "object"}), decode="json")]
    )
    error = run.value("a").exception(SOON_S)
    assert isinstance(error, TruncatedError if reason == "length" else (TruncatedError, InvalidValueError))
    other = open_run(target)
    other.extend([text("t", "x "), gen("a", "t")])
    assert other.value("a").result(SOON_S).value == '{"a": [1'


# roles


def test_turn_inside_an_open_turn_is_refused_and_so_is_the_end_of_another() -> None:
    begin = RoleBegin(id="r", role="user")
    for wrong, said in (
        ([begin, RoleBegin(id="q", role="assistant", context="r")], "inside an open 'user' turn"),
        ([begin, RoleEnd(id="e", role="assistant", context="r")], "the open turn is 'user'"),
        ([RoleEnd(id="e", role="user")], "no turn is open"),
    ):
        with pytest.raises(RoleError, match=said):
            open_run(FakeTarget(echo)).extend(wrong)
    run = open_run(FakeTarget(echo))
    run.extend([begin, text("t", "hi", context="r"), RoleEnd(id="e", role="user", context="t")])
    run.extend([RoleBegin(id="s", role="assistant", context="e"), gen("a", "s")])
    assert run.value("a").result(1).value == "<a>"


# regions: their values, and the text that they have added


def test_text_of_a_switch_is_what_its_arm_said() -> None:
    run = open_run(FakeTarget(echo))
    arm = Arm(None, Graph([text("n", " as "), gen("x", "n"), text("m", "!", context="x")]), Reference("x"))
    run.extend([text("t", "Pick "), Select(id="k", choices=("a", "b"), context="t")])
    run.extend([Switch(id="w", on=Reference("k"), context="k", arms=(arm,))])
    outcome = run.value("w").result(1)
    assert (outcome.value, outcome.text) == ("<x>", " as <x>!")


def test_text_of_a_loop_is_that_of_all_its_iterations() -> None:
    replies = iter(["a", "b", "c"])
    run = open_run(FakeTarget(lambda r: next(replies)))
    body = Graph([text("n", " "), gen("x", "n")])
    run.extend([text("t", "Go"), Loop(id="l", body=body, limit=3, result=Reference("x"), context="t")])
    outcome = run.value("l").result(1)
    assert (outcome.value, outcome.text) == ("c", " a b c")


def test_loop_waits_for_what_its_end_depends_on_even_where_it_is_in_a_branch() -> None:
    target = FakeTarget()
    run = open_run(target)
    fork: list[Node] = [
        text("n", "."),
        Fork(id="f", size=2, context="n"),
        gen("x", "f", branch=0),
        gen("y", "f", branch=1),
    ]
    run.extend(
        [text("t", "Go"), Loop(id="l", body=Graph(fork), until=Reference("x"), stop_value="s", limit=5, context="t")]
    )
    target.answer("y", "1")
    assert not run.value("l").done()
    target.answer("x", "s")
    target_calls = len(target.requests)
    run.value("l").result(SOON_S)
    assert target_calls == len(target.requests) == 2


@pytest.mark.parametrize(("limit", "calls"), [(1, 1), (2, 2), (5, 3)])
def test_loop_ends_at_its_limit_or_at_its_value_whichever_is_first(limit: int, calls: int) -> None:
    replies = iter(["a", "b", "stop", "d", "e", "f"])
    target = FakeTarget(lambda r: next(replies))
    run = open_run(target)
    body = Graph([text("n", " "), gen("x", "n")])
    loop = Loop(id="l", body=body, until=Reference("x"), stop_value="stop", limit=limit, context="t")
    run.extend([text("t", "Go"), loop])
    run.value("l").result(1)
    assert len(target.requests) == calls


def test_map_over_what_is_no_list_fails_by_name() -> None:
    run = open_run(FakeTarget(echo))
    with pytest.raises(GraphError, match="map 'm' needs a list of items, not str"):
        run.extend([text("t", "Do "), Map(id="m", items=Constant("pq"), item="i", body=Graph([gen("x")]), context="t")])


def test_map_leases_its_prompt_until_every_item_has_called() -> None:
    target = FakeTarget()
    run = open_run(target)
    body = Graph(
        [Input(id="i", name="i"), text("n", "first "), gen("x", "n"), text("m", " then ", context="x"), gen("y", "m")]
    )
    items = ListOf(tuple(Constant(x) for x in "pqr"))
    run.extend([text("t", "Do "), Map(id="m", items=items, item="i", body=body, result=Reference("y"), context="t")])
    assert [request.lease for request in target.requests] == [1, 1, 1]
    assert target.leases == {}
    for held in list(target.held):
        target.finish(held, "X")
    assert [request.lease for request in target.requests[3:]] == [None] * 3
    for held in target.held[3:]:
        target.finish(held, "Y")
    assert run.value("m").result(1).value == ["Y"] * 3


def test_map_whose_item_fails_fails_with_its_error() -> None:
    boom = RunError("BOOM")
    target = FakeTarget()
    run = open_run(target)
    items = ListOf((Constant(1), Constant(2)))
    run.extend(
        [
            text("t", "Do "),
            Map(id="m", items=items, item="i", body=Graph([gen("x")]), result=Reference("x"), context="t"),
        ]
    )
    target.answer("x", boom)
    assert run.value("m").exception(SOON_S) is boom


# forks, joins and claims


def test_fork_of_nothing_leases_nothing() -> None:
    target = FakeTarget()
    run = open_run(target)
    run.extend([Fork(id="f", size=2), text("a", "x ", context="f", branch=0), gen("b", "a")])
    assert target.leases == {}
    assert target.requests[0].lease is None
    one = open_run(target)
    one.extend([text("t", "x "), Fork(id="f", size=1, context="t"), gen("a", "f", branch=0)])
    assert target.leases == {}


def test_cancelled_branch_gives_its_share_of_the_lease_back() -> None:
    target = FakeTarget()
    run = open_run(target)
    run.extend([text("t", "x "), Fork(id="f", size=2, context="t"), text("a", "y ", context="f", branch=0)])
    run.extend([gen("b", "f", branch=1)])
    assert target.leases[1][1] == 1
    run.cancel(["a"])
    run.seal()
    assert target.leases == {}


def test_run_cancelled_ends_its_leases() -> None:
    target = FakeTarget()
    run = open_run(target)
    run.extend([text("t", "x "), Fork(id="f", size=3, context="t")])
    assert target.leases[1][1] == 3
    run.cancel()
    run.seal().result(SOON_S)
    assert target.leases == {}


@pytest.mark.parametrize(
    ("join", "error", "said"),
    [
        ({"fork": "t", "tips": ("a", "b")}, BranchError, "no fork"),
        ({"tips": ("a",)}, BranchError, "1 of the 2"),
        ({"skipped": (2,)}, BranchError, r"skips \[2\]"),
        ({"mode": "first", "k": 3}, SpecError, "k=3"),
        ({"mode": "first", "k": 0}, SpecError, "k=0"),
        ({"mode": "first", "k": 2, "skipped": (0,)}, SpecError, "give 1 to 1"),
        ({"mode": "best", "key": "nobody"}, SpecError, "registered as 'nobody'"),
    ],
)
def test_join_that_cannot_be_is_refused_when_it_is_appended(join: Any, error: Any, said: str) -> None:
    target = FakeTarget(echo)
    run = open_run(target)
    run.extend([text("t", "x "), Fork(id="f", size=2, context="t"), gen("a", "f", branch=0), gen("b", "f", branch=1)])
    given = {"fork": "f", "tips": ("a", "b"), **join}
    values = tuple(Reference(tip) for tip in given["tips"])
    with pytest.raises(error, match=said):
        run.extend([Join(id="j", context="f", values=values, **given)])
    run.extend([Join(id="j", context="f", fork="f", tips=("a", "b"), values=(Reference("a"), Reference("b")))])
    assert run.value("j").result(1).value == ["<a>", "<b>"]


def test_fork_into_nothing_is_refused() -> None:
    with pytest.raises(BranchError, match="0 branches"):
        open_run(FakeTarget()).extend([text("t", "x "), Fork(id="f", size=0, context="t")])


def test_join_without_cancelling_leaves_the_others_running() -> None:
    target = FakeTarget()
    run = open_run(target)
    run.extend([text("t", "x "), Fork(id="f", size=2, context="t"), gen("a", "f", branch=0), gen("b", "f", branch=1)])
    values = (Reference("a"), Reference("b"))
    run.extend(
        [Join(id="j", context="f", fork="f", mode="first", k=1, tips=("a", "b"), values=values, cancel_rest=False)]
    )
    target.answer("b", "B")
    joined = run.value("j").result(SOON_S)
    assert (joined.value, joined.winners) == (["B"], (1,))
    assert target.cancelled == []
    target.answer("a", "A")
    assert run.value("a").result(SOON_S).value == "A"


# options of a call


def test_call_carries_what_the_run_and_the_gen_say() -> None:
    target = FakeTarget()
    target.clock_s = 100.0
    run = open_run(target, deadline_s=9.0, priority=4)
    sampling = SamplingSpec(temperature=0.5, max_tokens=3, seed=11)
    run.extend([text("t", "x "), gen("a", "t", sampling=sampling, timeout_s=2.0), gen("b", "t", timeout_s=50.0)])
    a, b = target.requests
    assert (a.deadline_s, b.deadline_s) == (102.0, 109.0)
    assert (a.priority, b.priority) == (4, 4)
    assert (a.sampling.max_tokens, a.sampling.temperature) == (3, 0.5)
    assert a.namespace == target.info.namespace
    assert a.label.name == "a"


def test_gen_without_any_limit_has_no_deadline() -> None:
    target = FakeTarget()
    run = open_run(target)
    run.extend([text("t", "x "), gen("a", "t")])
    assert target.requests[0].deadline_s is None


def test_deadline_passed_is_an_error_that_names_the_node() -> None:
    target = FakeTarget(echo)
    run = open_run(target, deadline_s=5.0)
    target.clock_s += 5.0
    with pytest.raises(DeadlineError, match="passed before 'a' began"):
        run.extend([text("t", "x "), gen("a", "t")])
    early = open_run(target, deadline_s=5.0)
    target.clock_s += 4.9
    early.extend([text("t", "x "), gen("a", "t")])
    assert early.value("a").result(SOON_S).value == "<a>"


def test_reasoning_within_max_tokens_leaves_a_part_for_the_answer() -> None:
    target = FakeTarget(lambda r: "thought" if "/reasoning" in r.request_id else "answer")
    run = open_run(target)
    run.extend([text("t", "x "), gen("a", "t", sampling=SamplingSpec(max_tokens=40), reasoning=Reasoning())])
    outcome = run.value("a").result(SOON_S)
    thinking, answer = target.requests
    assert 0 < thinking.sampling.max_tokens < 40
    assert thinking.sampling.max_tokens + 1 <= 40
    assert answer.sampling.max_tokens == 40 - 2  # a token of thought and its end were generated
    assert outcome.value == "answer"
    assert outcome.meta is not None
    assert outcome.meta.reasoning == "thought"
    assert outcome.meta.reasoning_cut is False
    assert answer.prompt_ids[: len(thinking.prompt_ids)] == thinking.prompt_ids.tokens()


def test_reasoning_that_ran_into_its_budget_is_said_to_be_cut() -> None:
    target = FakeTarget(lambda r: ("thought", "length") if "/reasoning" in r.request_id else "answer")
    run = open_run(target)
    run.extend([text("t", "x "), gen("a", "t", reasoning=Reasoning(budget_tokens=5))])
    outcome = run.value("a").result(SOON_S)
    assert target.requests[0].sampling.max_tokens == 5
    assert outcome.meta is not None
    assert outcome.meta.reasoning_cut is True


# tools that are awaited


@pytest.mark.parametrize(("idempotent", "calls"), [(True, 3), (False, 1)])
@pytest.mark.parametrize("fails_at_once", [True, False])
def test_awaited_tool_that_raises_is_called_again_only_if_idempotent(
    idempotent: bool, calls: int, fails_at_once: bool
) -> None:
    seen: list[int] = []

    async def flaky() -> str:
        seen.append(1)
        if not fails_at_once:
            await asyncio.sleep(0)
        if len(seen) < 3:
            raise OSError("try again")
        return "ok"

    run = open_run(FakeTarget(echo), registry={"flaky": flaky})
    run.extend([ToolNode(id="x", name="x", arguments=DictOf(()), tool="flaky", idempotent=idempotent)])
    error = run.value("x").exception(SOON_S)
    assert (error is None) is idempotent
    assert len(seen) == calls
    if idempotent:
        assert run.value("x").result(SOON_S).value == "ok"


def test_idempotent_tool_that_always_raises_fails_with_its_last_error() -> None:
    seen: list[int] = []

    async def broken() -> str:
        seen.append(1)
        raise OSError(f"fault {len(seen)}")

    run = open_run(FakeTarget(echo), registry={"broken": broken})
    run.extend([ToolNode(id="x", name="x", arguments=DictOf(()), tool="broken", idempotent=True)])
    error = run.value("x").exception(SOON_S)
    assert isinstance(error, ToolError)
    assert f"fault {len(seen)}" in str(error)


def test_fork_whose_branches_were_joined_before_its_prompt_was_known_leases_for_those_that_still_call() -> None:
    """The join closes a branch without a call while the text above the fork still waits: its share goes back at once."""
    target = FakeTarget()
    run = open_run(target)
    fork = [text("t", "x ", Reference("a"), context="a"), Fork(id="f", size=2, context="t")]
    run.extend(
        [text("s", "s "), gen("a", "s"), *fork, text("b", "zinc", context="f", branch=0), gen("c", "f", branch=1)]
    )
    join = Join(id="j", context="f", fork="f", tips=("b", "c"), values=(Constant(1), Reference("c")))
    run.extend([join])
    target.answer("a", "A")
    assert target.leases == {}, "one branch never calls, the other has called"
    target.answer("c", "C")
    assert run.value("j").result(SOON_S).value == [1, "C"]


def test_turn_inside_an_open_turn_fails_once_the_text_before_it_is_there() -> None:
    target = FakeTarget()
    run = open_run(target)
    run.extend([RoleBegin(id="r", role="user"), gen("a", "r"), text("t", " more", context="a")])
    run.extend([RoleBegin(id="q", role="assistant", context="t")])
    target.answer("a", "A")
    assert isinstance(run.value("q").exception(SOON_S), RoleError)
