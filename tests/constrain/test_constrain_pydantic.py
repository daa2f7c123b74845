"""Whatever a typed output can ask for: samples of the grammar validate, and what validates in canonical form is allowed."""

import datetime
import enum
import json
import uuid
from random import Random
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter

from sglang_dsl.ir.specs import ConstraintSpec
from sglang_dsl.runtime.constrain.compile import compile_constraint


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: float
    y: float = 0.0


class Circle(BaseModel):
    kind: Literal["circle"]
    centre: Point
    radius: Annotated[float, Field(gt=0, le=10)]


class Label(BaseModel):
    kind: Literal["label"]
    text: Annotated[str, Field(min_length=1, max_length=12)]


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


class Node(BaseModel):
    value: int
    children: list["Node"] = []


class Everything(BaseModel):
    colour: Colour
    when: datetime.datetime
    day: datetime.date
    token: uuid.UUID
    maybe: int | None = None
    shape: Annotated[Circle | Label, Field(discriminator="kind")]
    pair: tuple[int, str]
    scores: dict[str, Annotated[int, Field(ge=0, le=100)]]
    tags: Annotated[list[Annotated[str, Field(pattern=r"^[a-z]+-\d{2}$")]], Field(min_length=1, max_length=3)]
    code: Annotated[str, Field(pattern=r"^[A-Z]+$", max_length=4)]


TYPES = [
    int,
    float,
    bool,
    str,
    Literal["a", "b", 3, None],
    Colour,
    list[int],
    dict[str, bool],
    tuple[int, ...],
    str | None,
    Annotated[int, Field(ge=1, le=5)],
    Annotated[int, Field(gt=-3, multiple_of=7, lt=90)],
    Annotated[float, Field(ge=-1.5, lt=2.5)],
    Annotated[str, Field(min_length=2, max_length=5)],
    datetime.time,
    datetime.timedelta,
    Point,
    Annotated[Cat | Dog, Field(discriminator="kind")],
    Cat | Dog | None,
    Node,
    Everything,
]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_samples_of_a_type_validate(kind):
    adapter = TypeAdapter(kind)
    compiled = compile_constraint(ConstraintSpec.json_schema(adapter.json_schema()))
    for seed in range(25):
        text = compiled.sample_text(Random(seed))
        json.loads(text)
        adapter.validate_json(text)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Node, Node(value=-3, children=[Node(value=4)])),
        (Point, Point(x=1e-5, y=-2.75)),
        (Circle, Circle(kind="circle", centre=Point(x=0), radius=10)),
        (list[str | None], ['a"b\\\n', None, "日本"]),
        (dict[str, list[bool]], {"k": [True], 'q"': []}),
    ],
)
def test_canonical_text_of_a_valid_value_is_allowed(kind, value):
    adapter = TypeAdapter(kind)
    compiled = compile_constraint(ConstraintSpec.json_schema(adapter.json_schema()))
    assert compiled.matches(adapter.dump_json(value).decode())
    assert compiled.matches(adapter.dump_json(value, indent=2).decode())
