"""Typed values: what is known of them before they exist."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict

import pytest
from annotated_types import Ge
from pydantic import BaseModel, Field, field_validator
from trial_runs import assert_same, breaks, everything, kinds

from sglang_dsl import State, gen, program, select, tool
from sglang_dsl.frontend.tracing.shapes import (
    DataShape,
    FiniteShape,
    NumberShape,
    OpaqueShape,
    OptionalShape,
    TextShape,
    of_schema,
    of_type,
    whole,
)
from sglang_dsl.frontend.tracing.values import Unknown
from sglang_dsl.ir.nodes import Operation, Plain, Reference, Return, Switch
from sglang_dsl.ir.nodes import Text as TextNode


class Kind(Enum):
    BUG = "bug"
    ASK = "ask"


class Sub(BaseModel):
    name: str
    size: int


class Answer(BaseModel):
    tool: Literal["refund", "reply"]
    urgency: Annotated[int, Ge(0)]
    share: float
    summary: str
    parts: list[str]
    sub: Sub
    note: str | None


class Defaulted(BaseModel):
    a: str
    b: str = "x"


class Checked(BaseModel):
    a: str

    @field_validator("a")
    @classmethod
    def shorter(cls, value: str) -> str:
        return value[:3]


@dataclass
class Point:
    x: int
    label: str


@dataclass
class Loose:
    x: int
    tags: list[str] = field(default_factory=list)


class Row(TypedDict):
    key: str
    count: int


@pytest.mark.parametrize(
    ("wanted", "shape"),
    [
        (str, TextShape()),
        (int, NumberShape()),
        (float, NumberShape(float, convert=True)),
        (bool, FiniteShape(((True, True), (False, False)))),
        (Literal["a", 1], FiniteShape((("a", "a"), (1, 1)))),
        (Kind, FiniteShape((("bug", Kind.BUG), ("ask", Kind.ASK)))),
        (str | None, OptionalShape(TextShape())),
        (Row, DataShape(dict, (("key", TextShape()), ("count", NumberShape())))),
        (Point, DataShape(Point, (("x", NumberShape()), ("label", TextShape())), attributes=True)),
    ],
)
def test_shape_of_a_type(wanted, shape) -> None:
    assert of_type(wanted) == shape


@pytest.mark.parametrize("wanted", [date, Checked, int | str, dict[int, str]])
def test_shape_of_what_only_python_can_make_is_opaque(wanted) -> None:
    assert isinstance(of_type(wanted), OpaqueShape)


def test_shape_knows_which_values_are_whole_as_json() -> None:
    assert whole(of_type(Sub))
    assert whole(of_type(Point))
    assert not whole(of_type(Defaulted))  # a default is not in the JSON
    assert not whole(of_type(Loose))
    assert not whole(of_type(Answer))  # "3" is no "3.0"


def test_shape_of_a_schema() -> None:
    schema = {"type": "object", "required": ["a"], "properties": {"a": {"enum": ["x"]}, "b": {"type": "string"}}}
    assert of_schema(schema) == DataShape(dict, (("a", FiniteShape((("x", "x"),))),), plain=True)


def _traced(body, call):
    @program
    def p(s: State):
        s += call
        return body(s, s["v"])

    return p


@pytest.mark.parametrize(
    ("call", "body"),
    [
        (gen("v", type=int), lambda s, v: s.append(f"n={v} {v:>6} {v!r} {v:+d}") and None),
        (gen("v", type=float), lambda s, v: s.append(f"n={v} {v:.2f} {v!r}") and None),
        (gen("v", type=float), lambda s, v: [v, {"k": v}]),
        (gen("v", type=bool), lambda s, v: "yes" if v is True else "no"),
        (gen("v", type=bool), lambda s, v: f"{v}"),
        (gen("v", type=Kind), lambda s, v: "bug!" if v is Kind.BUG else f"{v.value}"),
        (gen("v", type=Literal["a", "b", 3]), lambda s, v: v if v == 3 else v.upper()),
        (gen("v", choices=["a b", "c"]), lambda s, v: v.split()[0]),
        (gen("v", schema=Answer), lambda s, v: v.tool if v.tool == "refund" else v.summary.strip()),
        (gen("v", schema=Answer), lambda s, v: s.append(f"{v.urgency}{v.share}{v.sub.name}{v.sub.size:3}") and v.sub),
        (gen("v", schema=Answer), lambda s, v: "none" if v.note is None else v.note.title()),
        (gen("v", schema=Row), lambda s, v: s.append(v["key"].lower() + f"{v['count']}") and None),
        (gen("v", schema=Point), lambda s, v: s.append(v.label) and v),
        (gen("v", schema={"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}), lambda s, v: f"{v} {v['a']}"),
        (gen("v", n=3, type=int), lambda s, v: s.append(f"{v[0]} {v[-1]} {len(v)} {v}") and v),
        (gen("v", n=2), lambda s, v: s.append(" or ".join(v)) and [x.strip() for x in v]),
        (gen("v", n=2, choices=["a", "b"]), lambda s, v: "same" if v[0] == v[1] else "different"),
        (gen("v", schema=list[str]), lambda s, v: v),
    ],
)  # fmt: skip
def test_typed_value_in_an_exported_graph_is_right(call, body) -> None:
    traced = _traced(body, call)
    assert breaks(traced.trace(strict=True)) == []
    assert_same(traced, traced.export())


@pytest.mark.parametrize(
    ("call", "body"),
    [
        (gen("v", type=int), lambda s, v: v + 1),
        (gen("v", type=int), lambda s, v: v > 3),
        (gen("v", type=int), lambda s, v: range(v)),
        (gen("v", type=int), lambda s, v: "ab"[v]),
        (gen("v", type=int), lambda s, v: {v: 1}),
        (gen("v", type=int), lambda s, v: v if v else 0),
        (gen("v", type=int), lambda s, v: v.bit_length()),
        (gen("v", type=float), lambda s, v: round(v)),
        (gen("v", type=float), lambda s, v: int(v)),
        (gen("v", schema=Answer), lambda s, v: f"{v}"),
        (gen("v", schema=Answer), lambda s, v: v),
        (gen("v", schema=Answer), lambda s, v: v.model_dump()),
        (gen("v", schema=Answer), lambda s, v: len(v.parts)),
        (gen("v", schema=Answer), lambda s, v: [p.upper() for p in v.parts]),
        (gen("v", schema=Defaulted), lambda s, v: v.b),
        (gen("v", schema=Checked), lambda s, v: v.a),
        (gen("v", schema=list[str]), lambda s, v: len(v)),
        (gen("v", schema=list[str]), lambda s, v: "x" in v),
        (gen("v", schema=Row), lambda s, v: v.keys()),
        (gen("v", schema={"anyOf": [{"type": "null"}, {"type": "string"}]}), lambda s, v: v is None),
    ],
)  # fmt: skip
def test_question_about_a_typed_value_breaks(call, body) -> None:
    graph = _traced(body, call).trace()
    assert len(breaks(graph)) == 1
    assert not any(isinstance(n, Return) for n in graph)


@pytest.mark.parametrize(
    ("call", "python"),
    [
        (gen("v", type=int), int),
        (gen("v", type=float), float),
        (gen("v", schema=list[int]), list),
        (gen("v", schema=Sub), Sub),
    ],
)
def test_unknown_value_passes_isinstance_of_its_type(call, python) -> None:
    found: list[Any] = []
    _traced(lambda s, v: found.extend((isinstance(v, python), type(v) is Unknown)), call).trace(strict=True)
    assert found == [True, True]


def test_text_of_a_typed_value_is_python_text() -> None:
    graph = _traced(lambda s, v: s.append(f"{v}") and None, gen("v", type=float)).trace()
    (text,) = [n for n in graph if isinstance(n, TextNode)]
    assert text.pieces == (Reference("1", (Operation("float"), Operation("format", ("",)))),)


def test_bool_is_decided_when_it_is_read_and_not_before() -> None:
    @program
    def p(s: State):
        flag = gen("v", type=bool)
        s += flag
        s += s.ref(flag)
        s += "!"

    assert kinds(p.trace()) == ["gen", "text", "text"]


def test_join_of_a_known_fork_is_a_list() -> None:
    @program
    def p(s: State):
        fk = s.fork(3)
        for b in fk:
            b += gen("v", type=int)
        found = fk.join("v")
        assert len(found) == 3
        a, b, c = found
        s += f"{a}{b}{c}"
        return found[1:]

    graph = p.trace(strict=True)
    text = [n for n in graph if isinstance(n, TextNode)][-1]
    spec = Operation("format", ("",))
    assert text.pieces == tuple(Reference("3", (Operation("item", (i,)), spec)) for i in range(3))
    assert_same(p, p.export())


@pytest.mark.parametrize("mode", ["first", "vote"])
def test_join_that_chooses_gives_a_value_of_the_branches(mode) -> None:
    @program
    def p(s: State):
        fk = s.fork(3)
        fk += select("v", ["a", "b"])
        found = fk.first("v", 2)[0] if mode == "first" else fk.vote("v").value
        s += "A" if found == "a" else "B"

    graph = p.trace(strict=True)
    assert any(isinstance(n, Switch) for n in graph)
    assert_same(p, p.export())


def test_join_that_settles_breaks_when_it_is_read() -> None:
    @program
    def p(s: State):
        fk = s.fork(2)
        fk += gen("v")
        found = fk.settle("v")
        s += found
        return list(found)

    assert len(breaks(p.trace())) == 1


def test_tool_result_is_what_its_annotation_says() -> None:
    @tool
    def flag(x: str) -> bool:
        raise AssertionError

    @tool
    def word(x: str) -> str:
        raise AssertionError

    @tool
    def anything(x: str):
        raise AssertionError

    @program
    def p(s: State):
        s += "T" if s.call(flag, "x").value else "F"
        s += s.call(word, "x").value.upper()
        s += f"{s.call(anything, 'x')}"

    graph = p.trace(strict=True)
    assert sum(isinstance(n, Switch) for n in everything(graph)) == 1
    assert_same(p, p.export(registry=[flag.key, word.key, anything.key]))
    assert Plain("T") in [piece for n in everything(graph) if isinstance(n, TextNode) for piece in n.pieces]


def test_model_with_plain_fields_needs_no_python_check() -> None:
    graph = _traced(lambda s, v: v.summary, gen("v", schema=Answer, validate=None)).trace()
    assert graph["1"].validator is None
    checked = _traced(lambda s, v: v, gen("v", schema=Checked)).trace()
    assert "Checked" in checked["1"].validator
    assert Field  # the import is part of the models above
