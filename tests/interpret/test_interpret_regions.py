from __future__ import annotations

from typing import Any

import pytest
from fake_target import FakeTarget

from sglang_dsl.errors import GraphError, RunError
from sglang_dsl.ir.execution import RunSpec
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.nodes import Arm, Fork, Gen, Input, Loop, Map, Plain, Reference, Select, Switch, Text
from sglang_dsl.ir.specs import RunOptions
from sglang_dsl.runtime.interpret.run import InterpretedRun
from sglang_dsl.runtime.schedule.request import Request, ScoreRequest


def open_run(target: FakeTarget) -> InterpretedRun:
    return InterpretedRun(RunSpec(options=RunOptions(seed=7)), {None: target})


def text(id_: str, *said: Any, context: str | None = None, branch: int | None = None) -> Text:
    pieces = tuple(Plain(p) if isinstance(p, str) else p for p in said)
    return Text(id=id_, pieces=pieces, context=context, branch=branch)


def gen(id_: str, context: str | None = None, branch: int | None = None) -> Gen:
    return Gen(id=id_, name=id_, context=context, branch=branch)


def echo(request: Request) -> Any:
    if isinstance(request, ScoreRequest):
        return [[-2.0], [-1.0]]
    return f"<{request.label.name}>"


def switch(*arms: Arm, on: str = "k") -> list[Any]:
    return [
        text("t", "Pick "),
        Select(id="k", name="k", choices=("a", "b"), context="t"),
        Switch(id="w", on=Reference(on), context="k", arms=arms),
    ]


def test_switch_runs_the_arm_of_the_value_and_what_follows_continues_its_text() -> None:
    target = FakeTarget(echo)
    run = open_run(target)
    arm_a = Arm(("a",), Graph([text("n", " no"), gen("x", "n")]), Reference("x"))
    arm_b = Arm(("b",), Graph([text("n", " yes"), gen("y", "n")]), Reference("y"))
    run.extend([*switch(arm_a, arm_b), text("u", "; then ", context="w"), gen("z", "u")])
    assert run.value("w").result(1).value == "<y>"
    assert target.prompts == ["Pick ", "Pick b yes", "Pick b yes<y>; then "]
    assert run.value("w/1/y").result(1).value == "<y>"
    with pytest.raises(GraphError):
        run.value("w/0/x")


def test_switch_without_an_arm_for_the_value_fails_by_name() -> None:
    run = open_run(FakeTarget(echo))
    run.extend(switch(Arm(("a",), Graph([gen("x")]))))
    with pytest.raises(GraphError, match="no arm of switch 'w' takes the value 'b'"):
        run.value("w").result(1)


def test_switch_default_arm_that_is_empty_adds_nothing() -> None:
    target = FakeTarget(echo)
    run = open_run(target)
    run.extend([*switch(Arm(("a",), Graph([gen("x")])), Arm(None, Graph())), gen("z", "w")])
    assert target.prompts == ["Pick ", "Pick b"]


def test_switch_arm_that_fails_fails_what_follows() -> None:
    boom = RunError("BOOM")
    target = FakeTarget(lambda r: boom if r.label.name == "x" else echo(r))
    run = open_run(target)
    run.extend(switch(Arm(None, Graph([gen("x")]))))
    assert run.value("w").exception(1) is boom
    assert run.seal().result(1).error is boom


def test_switch_arm_may_mention_values_from_outside() -> None:
    target = FakeTarget(echo)
    run = open_run(target)
    run.extend(switch(Arm(None, Graph([text("n", " as ", Reference("k")), gen("x", "n")]))))
    assert target.prompts[1] == "Pick b as b"


def test_loop_repeats_until_its_value_and_its_text_goes_on() -> None:
    replies = iter(["no", "no", "stop", "end"])
    target = FakeTarget(lambda r: next(replies))
    run = open_run(target)
    body = Graph([text("n", " again "), gen("x", "n")])
    run.extend([text("t", "Go")])
    run.extend(
        [Loop(id="l", body=body, until=Reference("x"), stop_value="stop", limit=9, result=Reference("x"), context="t")]
    )
    run.extend([gen("z", "l")])
    assert run.value("l").result(1).value == "stop"
    assert target.prompts[-1] == "Go again no again no again stop"
    assert run.value("l/2/x").result(1).value == "stop"


def test_loop_stops_at_its_limit() -> None:
    target = FakeTarget(echo)
    run = open_run(target)
    run.extend([text("t", "Go"), Loop(id="l", body=Graph([gen("x")]), limit=3, context="t")])
    run.value("l").result(1)
    assert len(target.requests) == 3


def test_loop_of_a_thousand_text_only_iterations_needs_no_recursion() -> None:
    run = open_run(FakeTarget(echo))
    run.extend([text("t", "Go"), Loop(id="l", body=Graph([text("x", ".")]), limit=3000, context="t"), gen("z", "l")])
    assert run.value("z").result(1).value == "<z>"


def test_loop_with_an_empty_body_ends() -> None:
    run = open_run(FakeTarget(echo))
    run.extend([text("t", "Go"), Loop(id="l", body=Graph(), limit=3000, context="t"), gen("z", "l")])
    assert run.value("z").result(1).value == "<z>"


def test_map_runs_its_items_together_in_branches_of_their_own() -> None:
    target = FakeTarget()
    run = open_run(target)
    body = Graph([Input(id="item", name="item"), text("n", "item ", Reference("item"), ": "), gen("x", "n")])
    run.extend(
        [
            text("t", "Do "),
            Map(id="m", items=_items("p", "q"), item="item", body=body, result=Reference("x"), context="t"),
        ]
    )
    assert target.prompts == ["Do item p: ", "Do item q: "]
    assert len(target.submits) == 1
    assert target.leases == {}
    target.finish(target.held[1], "Q")
    target.finish(target.held[0], "P")
    assert run.value("m").result(1).value == ["P", "Q"]
    run.extend([text("u", "so ", Reference("m"), context="m"), gen("z", "u")])
    assert target.prompts[-1] == 'Do so ["P", "Q"]'


def test_map_over_nothing_is_an_empty_list() -> None:
    run = open_run(FakeTarget(echo))
    run.extend([text("t", "Do "), Map(id="m", items=_items(), item="i", body=Graph([gen("x")]), context="t")])
    assert run.value("m").result(1).value == []


def test_region_cancelled_ends_what_runs_inside() -> None:
    target = FakeTarget()
    run = open_run(target)
    run.extend([text("t", "Go"), Loop(id="l", body=Graph([gen("x")]), limit=3, context="t")])
    run.cancel(["l"])
    assert len(target.cancelled) == 1
    run.seal().result(1)


def test_region_in_a_losing_branch_is_ended_with_it() -> None:
    from sglang_dsl.ir.nodes import Join

    target = FakeTarget()
    run = open_run(target)
    loop = Loop(id="l", body=Graph([gen("x")]), limit=3, context="f", branch=1)
    run.extend([text("t", "Go"), Fork(id="f", size=2, context="t"), gen("a", "f", 0), loop])
    run.extend(
        [
            Join(
                id="j",
                context="f",
                fork="f",
                mode="first",
                k=1,
                tips=("a", "l"),
                values=(Reference("a"), Reference("l")),
            )
        ]
    )
    target.answer("a", "won")
    assert run.value("j").result(1).value == ["won"]
    assert len(target.cancelled) == 1
    run.seal().result(1)


def _items(*items: str) -> Any:
    from sglang_dsl.ir.nodes import Constant

    return Constant(list(items))
