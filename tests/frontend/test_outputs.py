"""`type=` and `schema=`: what constrains a call, and what is read back."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Literal, TypedDict

import pytest
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, field_validator

from sglang_dsl import RunOptions, State, gen, program
from sglang_dsl.errors import ConstraintError, InvalidValueError, SpecError
from sglang_dsl.frontend.outputs import FLOAT_REGEX, INT_REGEX, output_of


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(Enum):
    A = "a"
    B = 2


class Model(BaseModel):
    name: Annotated[str, Field(max_length=5)]
    level: Level = Level.LOW

    @field_validator("name")
    @classmethod
    def no_x(cls, name: str) -> str:
        if "x" in name:
            raise ValueError("x is not allowed")
        return name


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    properties: int = 0


@dataclass
class Point:
    x: int
    y: float


class Pair(TypedDict):
    left: str
    right: Point


def read(fake, text, **options):
    @program
    def body(s: State) -> Any:
        handle = gen("v", **options)
        s += handle
        return s[handle]

    return body.run(options=RunOptions(backend=fake({"v": [text]}))).value


@pytest.mark.parametrize(
    ("wanted", "text", "value"),
    [
        (int, "-42", -42),
        (float, "2", 2.0),
        (bool, "true", True),
        (str, " as it is ", " as it is "),
        (Literal["a", "b"], "b", "b"),
        (Literal[1, "x", None, True], "null", None),
        (Colour, "blue", Colour.BLUE),
        (Level, "2", Level.HIGH),
        (Mixed, '"a"', Mixed.A),
        (list[int], "[1, 2]", [1, 2]),
        (int | None, "null", None),
        (Point, '{"x": 1, "y": 2}', Point(1, 2.0)),
        (Pair, '{"left": "l", "right": {"x": 1, "y": 2}}', {"left": "l", "right": Point(1, 2.0)}),
        (Model, '{"name": "bob", "level": 2}', Model(name="bob", level=Level.HIGH)),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
    ],
    ids=str,
)
def test_value_read_has_the_type_asked_for(fake, wanted, text, value):
    for option in ("type", "schema"):
        found = read(fake, text, **{option: wanted})
        assert found == value
        assert type(found) is type(value)


def test_numbers_are_bounded_and_canonical():
    for text in ("0", "-1", "123456789012345678"):
        assert re.fullmatch(INT_REGEX, text)
        assert re.fullmatch(FLOAT_REGEX, text[:16])
    for text in ("", "01", "+1", "1234567890123456789", "1 ", "-"):
        assert not re.fullmatch(INT_REGEX, text)
    assert re.fullmatch(FLOAT_REGEX, "-3.25")
    assert not re.fullmatch(FLOAT_REGEX, "3.")


def test_objects_are_closed_unless_they_say_otherwise():
    schema = json.loads(output_of(Pair).constraint.text)
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Point"]["additionalProperties"] is False
    assert json.loads(output_of(Open).constraint.text)["additionalProperties"] is True


def test_schema_keeps_the_order_of_properties():
    schema = {"type": "object", "properties": {"z": {}, "a": {}}, "required": ["z", "a"]}
    assert list(json.loads(output_of(schema).constraint.text)["properties"]) == ["z", "a"]


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


@dataclass
class Chain:
    value: int
    following: Chain | None = None


@pytest.mark.parametrize(
    ("wanted", "text", "value"),
    [
        (Tree, '{"value":1,"children":[{"value":2}]}', Tree(value=1, children=[Tree(value=2)])),
        (Chain, '{"value":1,"following":{"value":2,"following":null}}', Chain(1, Chain(2))),
    ],
)
def test_class_inside_itself_is_read_and_traced(fake, wanted, text, value):
    assert read(fake, text, type=wanted) == value

    @program
    def body(s: State) -> int:
        handle = gen("v", type=wanted)
        s += handle
        return s[handle].value

    assert [node.kind for node in body.trace()] == ["gen", "return"]


def test_value_the_model_class_refuses_is_an_invalid_value(fake):
    with pytest.raises(InvalidValueError, match=r"Model does not accept it: name: .*x is not allowed") as caught:
        read(fake, '{"name": "xx"}', schema=Model)
    assert caught.value.text == '{"name": "xx"}'


def test_refused_value_is_tried_again(fake):
    @program
    def body(s: State) -> Any:
        handle = gen("v", schema=Model, retries=2)
        s += handle
        return s[handle].name, s.meta(handle).attempts

    backend = fake({"v": ['{"name": "xx"}', '{"name": "abcdefgh"}', '{"name": "ok"}']})
    assert body.run(options=RunOptions(backend=backend)).value == ("ok", 3)


@pytest.mark.parametrize("refuse", [lambda n: n > 5, lambda n: None if n > 5 else int("five or less")])
def test_validate_refuses_by_false_or_by_raising(fake, refuse):
    @program
    def body(s: State) -> int:
        handle = gen("v", type=int, retries=1, validate=refuse)
        s += handle
        return s[handle]

    assert body.run(options=RunOptions(backend=fake({"v": ["3", "8"]}))).value == 8
    with pytest.raises(InvalidValueError):
        body.run(options=RunOptions(backend=fake({"v": ["3", "4"]})))


def test_samples_are_a_list_and_append_nothing(fake):
    @program
    def body(s: State) -> Any:
        s += "q"
        handle = gen("v", type=int, n=3)
        s += handle
        return s[handle], s["v"], s.text

    assert body.run(options=RunOptions(backend=fake({"v": ["1", "2", "3"]}))).value == ([1, 2, 3], [1, 2, 3], "q")


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 0},
        {"max_tokens": "5"},
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"stop": ""},
        {"stop": ["a", ""]},
        {"stop_token_ids": [-1]},
        {"min_tokens": 9, "max_tokens": 3},
        {"logit_bias": {1: 200}},
        {"max_tokens": [5]},
        {"stop": 5},
        {"stop": [["a"]]},
        {"logit_bias": 5},
        {"n": 0},
        {"n": True},
        {"retries": -1},
        {"timeout_s": 0},
        {"name": ""},
        {"type": int, "regex": "a"},
        {"choices": "abc"},
        {"choices": []},
        {"type": object()},
        {"schema": {"a": {1, 2}}},
        {"type": Literal[1.5]},
    ],
    ids=lambda options: " ".join(options),
)
def test_option_out_of_range_is_refused_at_the_line(options):
    with pytest.raises(SpecError) as caught:
        gen(**options)
    assert caught.value.origin.statement == "gen(**options)"


@pytest.mark.parametrize("options", [{"regex": "("}, {"stop_regex": ["a", "["]}])
def test_regex_that_is_none_is_a_constraint_error(options):
    with pytest.raises(ConstraintError, match="not a regular expression"):
        gen("v", **options)


def test_options_of_the_caller_are_not_changed_nor_shared():
    stop = ["END"]
    first = gen("v", stop=stop)
    stop.append("more")
    assert first.fields["sampling"].stop == ("END",)
    assert stop == ["END", "more"]


@pytest.mark.parametrize("keyword", ["const", "enum", "default", "examples"])
def test_data_that_looks_like_a_schema_is_left_alone(keyword):
    """Only schemas are closed: what `const` and its like hold is a value, and a closed one would be another value."""
    value = {"type": "object", "properties": {"a": {"type": "object", "properties": {}}}}
    held = value if keyword in ("const", "default") else [value]

    class Holder(BaseModel):
        data: Annotated[Any, WithJsonSchema({keyword: held})]

    schema = json.loads(output_of(Holder).constraint.text)
    assert schema["additionalProperties"] is False
    assert schema["properties"]["data"][keyword] == held
