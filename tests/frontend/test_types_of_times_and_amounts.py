"""Times, amounts and sets: every value in its type's canonical form can be written, and none is forced into another (case 112)."""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from sglang_dsl import RunOptions, gen, program
from sglang_dsl.errors import DslError
from sglang_dsl.frontend.outputs import _DURATION
from sglang_dsl.testing import mock

timedeltas = st.timedeltas(min_value=timedelta(days=-300_000_000), max_value=timedelta(days=300_000_000))


def written(wanted: object, text: str) -> object:
    """What a call of this type gives where the model writes `text` under its mask."""

    @program
    def one(s):
        s += gen("x", type=wanted, max_tokens=400)
        return s["x"]

    return one.run(options=RunOptions(backend=mock([text]))).value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("PT1H", timedelta(hours=1)),
        ("P1DT30M", timedelta(days=1, minutes=30)),
        ("PT0.5S", timedelta(milliseconds=500)),
        ("PT0S", timedelta()),
        ("-PT1H", -timedelta(hours=1)),
        ("P2Y70D", timedelta(days=800)),
        ("P2W", timedelta(weeks=2)),
        ("PT1H1.25S", timedelta(hours=1, seconds=1.25)),
    ],
)
def test_duration_is_what_was_written(text, value):
    assert written(timedelta, json.dumps(text)) == value


@pytest.mark.parametrize("text", ["P", "PT", "P1DT", "PT1M1H", "1H", "PT1", "P1H", "PT1D", "P1W2D", "PT.5S"])
def test_what_is_no_duration_cannot_be_written(text):
    with pytest.raises(DslError):
        written(timedelta, json.dumps(text))


@settings(max_examples=60, deadline=None)
@given(timedeltas)
def test_every_duration_in_pydantics_form_can_be_written(value):
    assert written(timedelta, TypeAdapter(timedelta).dump_json(value).decode()) == value


@settings(max_examples=200, deadline=None)
@given(st.from_regex(_DURATION.removesuffix("$"), fullmatch=True))
def test_every_duration_that_can_be_written_is_one(text):
    TypeAdapter(timedelta).validate_python(text)


@pytest.mark.parametrize(("text", "value"), [('"1.10"', "1.10"), ('"12345678901234567.89"', "12345678901234567.89")])
def test_amount_keeps_its_digits(text, value):
    assert written(Decimal, text) == Decimal(value)
    assert str(written(Decimal, text)) == value


class Tags(BaseModel):
    tags: set[str]
    ids: frozenset[int] = frozenset()


def test_set_takes_a_list_in_any_order_also_with_an_item_twice():
    assert written(set[str], '["b", "a", "b"]') == {"a", "b"}
    assert written(frozenset[int], "[2, 1]") == frozenset({1, 2})
    assert written(Tags, '{"tags": ["x", "x"], "ids": [3]}') == Tags(tags={"x"}, ids=frozenset({3}))
