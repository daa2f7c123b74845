from __future__ import annotations

from typing import Any

import pytest
from fake_target import FakeTarget

from sglang_dsl.errors import SpecError
from sglang_dsl.ir.execution import RunSpec
from sglang_dsl.ir.nodes import Gen, Plain, RoleBegin, Text
from sglang_dsl.ir.specs import ConstraintSpec, RunOptions, SamplingSpec
from sglang_dsl.runtime.backends.mock import mock, pieces
from sglang_dsl.runtime.constrain.compile import compile_constraint
from sglang_dsl.runtime.interpret.run import InterpretedRun


def nodes(said: str = "see http:", **more: Any) -> list[Any]:
    sampling = SamplingSpec(**{k: more.pop(k) for k in list(more) if k == "stop"})
    return [
        Text(id="t", pieces=(Plain(said),)),
        Gen(id="g", name="g", context="t", heal=True, sampling=sampling, **more),
        Text(id="u", pieces=(Plain(" ok"),), context="g"),
        Gen(id="h", name="h", context="u"),
    ]


def test_healed_call_chooses_the_last_token_anew_and_its_text_is_not_the_outputs() -> None:
    with mock({"g": pieces("://", "x"), "h": "y"}) as backend:
        run = backend.open(RunSpec(options=RunOptions(seed=1)))
        run.extend(nodes())
        run.seal()
        assert run.value("g").result(10).value == "//x"
        assert backend.calls("g").prompts == ["see http"]
        assert run.value("h").result(10).value == "y"
        assert backend.calls("h").prompts == ["see http://x ok"]
        assert "".join(e.text for e in run.events() if e.kind == "text" and e.node_id == "g") == "//x"


@pytest.mark.parametrize(
    ("constraint", "source"),
    [
        (None, r":[\s\S]*"),
        (ConstraintSpec(kind="regex", text="a|b"), ":(?:a|b)"),
        (ConstraintSpec.choices(("//x", "none")), '["://x", ":none"]'),
    ],
)
def test_healed_output_has_to_begin_with_the_dropped_text(constraint: ConstraintSpec | None, source: str) -> None:
    target = FakeTarget()
    InterpretedRun(RunSpec(), {None: target}).extend(nodes(constraint=constraint))
    [request] = target.requests
    assert request.constraint.text == source


def test_nothing_is_healed_after_a_control_token_at_the_start_or_where_a_stop_could_match() -> None:
    target = FakeTarget()
    run = InterpretedRun(RunSpec(), {None: target})
    run.extend([RoleBegin(id="r", role="user"), Text(id="c", pieces=(), context="r")])
    run.extend([Gen(id="a", context="c", heal=True), *nodes("x")[:2]])
    assert [request.constraint for request in target.requests][1:] == [None]
    other = FakeTarget()
    InterpretedRun(RunSpec(), {None: other}).extend(nodes("one two", stop=("two three",))[:2])
    assert other.requests[0].constraint is None
    far = FakeTarget()
    InterpretedRun(RunSpec(), {None: far}).extend(nodes("one two", stop=("three",))[:2])
    assert far.requests[0].constraint is not None
    third = FakeTarget()
    InterpretedRun(RunSpec(), {None: third}).extend(nodes("line:", stop=(":",))[:2])
    assert third.requests[0].constraint is None


def test_healing_before_structured_output_is_refused() -> None:
    run = InterpretedRun(RunSpec(), {None: FakeTarget()})
    with pytest.raises(SpecError, match="heal=True"):
        run.extend(nodes(constraint=ConstraintSpec.json_schema({"type": "integer"})))


@pytest.mark.parametrize("last", ["(", ".", "[", "*", "\\"])
@pytest.mark.parametrize(
    "constraint", [None, ConstraintSpec(kind="regex", text="a|b"), ConstraintSpec.choices(("a", "b"))]
)
def test_healed_prefix_is_the_dropped_text_itself_whatever_it_means_in_a_pattern(
    last: str, constraint: ConstraintSpec | None
) -> None:
    target = FakeTarget()
    InterpretedRun(RunSpec(), {None: target}).extend(nodes(f"see{last}", constraint=constraint)[:2])
    [request] = target.requests
    assert target.prompt(request) == "see"
    compiled = compile_constraint(request.constraint)
    assert compiled.matches(f"{last}a")
    assert compiled.matches(f"{last}b")
    assert not compiled.matches("a")
    assert not compiled.matches(f"x{last}a")


@pytest.mark.parametrize(
    ("said", "deltas", "streamed"),
    [
        ("see http:", (":", "/", "/", "x"), ["/", "/", "x"]),
        ("see http", (" ", "ht", "tp", ":x"), [":x"]),
        ("see http", (" ", "ht", "tp:", "x"), [":", "x"]),
    ],
)
def test_healed_prefix_is_left_out_of_the_stream_however_it_is_cut(
    said: str, deltas: tuple[str, ...], streamed: list[str]
) -> None:
    with mock({"g": pieces(*deltas), "h": "y"}) as backend:
        run = backend.open(RunSpec(options=RunOptions(seed=1)))
        run.extend(nodes(said))
        run.seal()
        assert run.value("g").result(10).value == "".join(streamed)
        assert [e.text for e in run.events() if e.kind == "text" and e.node_id == "g"] == streamed
