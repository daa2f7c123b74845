"""Unions, Literals and Enums as outputs. cases: 106"""

from __future__ import annotations

from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Literal, TypedDict

import pytest
from pydantic import BaseModel, Field

from sglang_dsl import RunOptions, State, gen, program
from sglang_dsl.errors import InvalidValueError, SpecError
from sglang_dsl.testing import malformed, mock


class Apple(BaseModel):
    kind: Literal["apple"] = "apple"
    size: int


class Pear(BaseModel):
    kind: Literal["pear"] = "pear"
    size: int
    soft: bool


class Plain(TypedDict):
    n: int


class Ratio(Enum):
    HALF = 0.5
    WHOLE = 1.0


class Mixed(Enum):
    ONE = 1
    TEXT = "1"
    NONE = None


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Name(StrEnum):
    A = "a"


Fruit = Annotated[Apple | Pear, Field(discriminator="kind")]
APPLE, PEAR = '{"kind": "apple", "size": 1}', '{"kind": "pear", "size": 2, "soft": true}'


def _value(wanted: Any, said: Any, **options: Any) -> Any:
    @program
    def p(s: State):
        s += gen("x", type=wanted, **options)
        return s["x"]

    with mock({"x": said}) as backend:
        return p.run(options=RunOptions(backend=backend)).value


@pytest.mark.parametrize("union", [Fruit, Apple | Pear])
def test_union_gives_the_right_class_and_an_unknown_kind_is_an_attempt(union) -> None:
    assert _value(union, PEAR) == Pear(size=2, soft=True)
    assert _value(list[union], f"[{APPLE}, {PEAR}]") == [Apple(size=1), Pear(size=2, soft=True)]
    assert _value(union | None, "null") is None
    assert _value(union | int, "3") == 3
    wrong = malformed('{"kind": "cherry"}')
    with pytest.raises(InvalidValueError):
        _value(union, wrong)
    assert _value(union, [wrong, APPLE], retries=1) == Apple(size=1)


def test_typed_dict_in_a_union_is_taken_on_every_python() -> None:
    assert _value(Plain | int, '{"n": 1}') == {"n": 1}
    assert _value(list[Plain | None], '[{"n": 1}, null]') == [{"n": 1}, None]
    assert _value(Annotated[Plain, "a note"], '{"n": 1}') == {"n": 1}


@pytest.mark.parametrize(
    ("wanted", "said", "value"),
    [
        (Ratio, "0.5", Ratio.HALF),
        (Mixed, "1", Mixed.ONE),
        (Mixed, '"1"', Mixed.TEXT),
        (Mixed, "null", Mixed.NONE),
        (Level, "2", Level.HIGH),
        (Name, "a", Name.A),
        (Literal[1, "1", True, None], "1", 1),
        (Literal[1, "1", True, None], "true", True),
        (Literal[1, "1", True, None], '"1"', "1"),
        (Literal[Name.A, "b"], "a", Name.A),
        (Literal[Name.A, "b"], "b", "b"),
        (Literal[Ratio.HALF, 3], "0.5", Ratio.HALF),
        (Literal[Level.LOW], "1", Level.LOW),
    ],
)
def test_enums_and_literals_of_all_kinds(wanted, said, value) -> None:
    found = _value(wanted, said)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "wanted",
    [Literal[Name.A, "a"], Literal[1.5], Enum("Odd", {"A": (1, 2)}), Enum("No", {})],
    ids=lambda value: type(value).__name__,
)
def test_literals_and_enums_that_json_cannot_tell_apart_are_refused(wanted) -> None:
    with pytest.raises(SpecError):
        gen("x", type=wanted)
