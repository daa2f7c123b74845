"""Data goes out and comes back: objects in a run, JSON where a record or a graph needs it. cases: 101, 102, 111, 309, 310"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

import pytest
from pydantic import BaseModel, Field, PrivateAttr, computed_field, field_validator
from typing_extensions import TypedDict

from sglang_dsl import RunOptions, State, gen, program, select, tool
from sglang_dsl.errors import DslError, FormatError, ProgramError, SpecError
from sglang_dsl.ir.json_format import dumps
from sglang_dsl.ir.record import dump_record, parse_record
from sglang_dsl.runtime.backends.replay import RecordedExecutor
from sglang_dsl.testing import mock

if TYPE_CHECKING:
    from nowhere import Unseen


class Order(BaseModel):
    count: int = Field(1, validation_alias="nItems")
    secret: str = Field("none", exclude=True)
    price: int = 0
    _note: str = PrivateAttr("plain")

    @field_validator("price", mode="before")
    @classmethod
    def in_cents(cls, value: Any) -> int:
        return int(value) * 100


@dataclass
class Box:
    width: int
    made: int = field(init=False, default=0)


class Kind(Enum):
    A = "a"
    B = "b"


class Point(NamedTuple):
    x: int
    y: int


def run(body: Any, script: dict[str, Any] | None = None, **options: Any) -> Any:
    with mock(script or {}) as backend:
        return program(body).run(options=RunOptions(backend=backend, **options))


@tool
def same(value: Any) -> Any:
    return value


@tool
def order_of(value: Order) -> Order:
    return value


def _odd_order() -> Order:
    order = Order.model_validate({"nItems": 5, "secret": "s", "price": 3})
    order._note = "private"
    return order


def _odd_box() -> Box:
    box = Box(2)
    box.made = 7
    return box


@pytest.mark.parametrize(
    "value",
    [_odd_order(), _odd_box(), Kind.A, Point(1, 2), date(2024, 1, 1), Decimal("1.10"), (1, (2,)), {1, 2}, b"x", {1: "a"},
     float("inf"), threading.Lock(), object(), [_odd_order()], {"a": _odd_box()}, len],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_a_tool_is_given_and_gives_is_the_object_itself(value) -> None:
    def body(s: State):
        once = s.call(same, value)
        return once, s.call(same, once), s.call(same, s.ref(once))

    for found in run(body).value:
        assert found == value
        assert type(found) is type(value)
        if not isinstance(value, (list, dict, set, tuple)):
            assert found is value


def test_an_object_and_a_reference_to_it_give_the_same() -> None:
    order = gen("order", type=Order)

    def body(s: State):
        s += order
        return (
            s.call(order_of, s[order]), s.call(order_of, s.ref(order)), s.call(order_of, order),
            s.call(same, s[order]), s.call(same, s.ref("order")), s[order], s.ref(order),
        )  # fmt: skip

    found = run(body, {"order": '{"nItems": 5, "price": 3}'}).value
    assert [(each.count, each.price) for each in found] == [(5, 300)] * 7
    assert all(each is found[0] for each in found)


def test_later_changes_of_a_list_do_not_reach_a_call_made_before() -> None:
    def body(s: State):
        seen: list[int] = []
        calls = []
        for number in range(3):
            seen.append(number)
            calls.append(s.call(same, seen))
        return calls

    assert run(body).value == [[0], [0, 1], [0, 1, 2]]


def test_model_text_becomes_what_the_annotation_says() -> None:
    @tool
    def takes(day: date, number: int, kind: Kind, points: list[Point], flag: bool = False) -> list[Any]:
        return [type(day), number, kind, points, flag]

    def body(s: State):
        s += gen("day") + gen("number")
        return s.call(takes, s.ref("day"), s["number"], "b", [[1, 2]])

    assert run(body, {"day": "2024-01-01", "number": "7"}).value == [date, 7, Kind.B, [Point(1, 2)], False]


def test_argument_that_the_annotation_refuses_fails_at_its_line_with_the_field() -> None:
    @tool
    def takes(box: list[Box]) -> int:
        return 1

    def body(s: State):
        s.call(takes, [{"width": "wide"}])

    with pytest.raises(ProgramError, match=r"argument 'box' of takes: .*0\.width") as caught:
        run(body)
    assert caught.value.origin.statement == 's.call(takes, [{"width": "wide"}])'


@pytest.mark.parametrize(
    ("value", "field_name"), [(_odd_order(), "_note|secret|count|price"), (_odd_box(), "made"), ([_odd_box()], "made")]
)
def test_record_of_what_json_does_not_hold_is_refused_by_field(value, field_name) -> None:
    @tool
    def give() -> type(value) if not isinstance(value, list) else list[Box]:
        return value

    give.hints["return"] = list[Box] if isinstance(value, list) else type(value)
    result = run(lambda s: s.call(give))
    assert result.value == value
    with pytest.raises(FormatError, match=field_name):
        dump_record(result.record)


def test_record_of_an_object_without_an_annotation_is_refused_and_plain_python_is_held_exactly() -> None:
    with pytest.raises(FormatError, match=r"Box.*no annotation"):
        dump_record(run(lambda s: s.call(same, 1) and s.call(same, Box(1))).record)
    value = {"t": (1, (2,)), "s": {1, 2}, 3: b"x", "d": Decimal("1.10"), "day": date(2024, 1, 1), "f": float("inf")}

    @tool
    def give() -> Any:
        return value

    result = run(lambda s: s.call(give))
    assert result.value == value
    again = parse_record(dump_record(result.record))
    (outcome,) = [o for i, o in again.outcomes.items() if again.graph[i].kind == "tool"]
    assert outcome.value == value


def test_replay_of_a_record_gives_equal_objects() -> None:
    @tool
    def widen(box: Box, by: tuple[int, ...]) -> Box:
        return Box(box.width + sum(by))

    @program
    def p(s: State):
        return s.call(widen, Box(1), (1, 2)), s.call(widen, s.call(widen, Box(5), (1,)), (1,))

    with mock({}) as backend:
        result = p.run(options=RunOptions(backend=backend))
    record = parse_record(dump_record(result.record))
    assert p.run(options=RunOptions(backend=RecordedExecutor(record))).value == result.value == (Box(4), Box(7))
    assert "Box" not in dumps(result.graph)


def test_pure_calls_are_one_only_where_their_arguments_are_equal() -> None:
    calls = []

    @tool(pure=True)
    def note(value: Any) -> int:
        calls.append(value)
        return len(calls)

    def body(s: State):
        odd = _odd_box()
        for value in (1, True, 1.0, "1", (1,), [1], {1: 1}, {"1": 1}, Box(2), odd, Box(2), [1], _odd_box()):
            s.call(note, value)

    run(body)
    assert len(calls) == 10


# --- methods ----------------------------------------------------------------------------------------------------------


class Base:
    __slots__ = ("stock",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, stock: int) -> None:
        self.stock = stock

    def __eq__(self, other: object) -> bool:
        return True

    @tool(pure=True)
    def count(self, item: str) -> int:
        """How many there are."""
        return self.stock

    @classmethod
    @tool
    def kind(cls) -> str:
        return cls.__name__

    @tool
    @classmethod
    def kind_too(cls) -> str:
        return cls.__name__

    @staticmethod
    @tool
    def plain(n: int) -> int:
        return n + 1

    @tool
    @staticmethod
    def plain_too(n: int) -> int:
        return n + 1

    @tool
    def another(self) -> Base:
        return type(self)(self.stock + 1)

    @program
    def ask(self, s: State, item: str):
        return s.call(self.count, item)

    @classmethod
    @program
    def ask_class(cls, s: State):
        return s.call(cls.kind), cls.__name__


class Derived(Base):
    __slots__ = ()

    @tool(pure=True)
    def count(self, item: str) -> int:
        return super().count(item) + 100

    @program
    def both(self, s: State):
        return s.call(super().count, "a"), s.call(self.count, "a")


def test_tool_on_a_method_is_that_objects_tool() -> None:
    one, two = Base(1), Base(2)

    def body(s: State):
        return [
            s.call(one.count, "a"), s.call(two.count, item="a"), s.call(one.count, "a"), s.call(Base.count, two, "a"),
            s.call(Base.kind), s.call(Derived(1).kind), s.call(Base.kind_too), s.call(Derived.kind_too),
            s.call(one.plain, 1), s.call(Base.plain, 1), s.call(one.plain_too, 1), s.call(Base.plain_too, 1),
            s.call(Derived(3).count, "a"), s.call(one.another).value.stock,
        ]  # fmt: skip

    assert run(body).value == [1, 2, 1, 2, "Base", "Derived", "Base", "Derived", 2, 2, 2, 2, 103, 2]
    with mock({}) as backend:
        options = RunOptions(backend=backend)
        assert one.ask.run("a", options=options).value == 1
        assert Derived(3).both.run(options=options).value == (3, 103)
        assert Derived.ask_class.run(options=options).value == ("Derived", "Derived")
    assert one.count("a") == 1


def test_signature_hints_and_help_are_those_of_the_function() -> None:
    assert list(inspect.signature(Base.count).parameters) == ["self", "item"]
    assert list(inspect.signature(Base(1).count).parameters) == ["item"]
    assert list(inspect.signature(Base(1).ask).parameters) == ["s", "item"]
    assert get_type_hints(Base.count) == {"item": str, "return": int}
    assert inspect.getdoc(Base(1).count) == Base.count.__doc__ == "How many there are."
    assert (Base.count.__name__, Base.count.__qualname__, Base.count.__module__) == ("count", "Base.count", __name__)
    assert inspect.unwrap(Base.count) is Base.count.function


@pytest.mark.parametrize(
    "thing",
    [functools.partial(same.function, 1), Base, len, same, (x for x in ())],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_function_is_refused_as_a_tool_by_name(thing) -> None:
    with pytest.raises(SpecError):
        tool(thing)


# --- annotations ------------------------------------------------------------------------------------------------------


def test_annotation_that_cannot_be_resolved_is_refused_where_it_is_decorated() -> None:
    with pytest.raises(SpecError, match=r"parameter 'tags' cannot be resolved: 'Unseen'"):

        @tool
        def f(day: date, tags: Sequence[Unseen] = ()) -> date:
            return day


def test_local_types_are_found_by_tools_and_by_gen() -> None:
    class Inner(TypedDict):
        n: int

    @dataclass
    class Outer:
        inner: Inner
        more: list[Inner]

    class Model(BaseModel):
        outer: Outer

    @tool
    def f(outer: Outer, day: date) -> Model:
        return Model(outer=outer)

    def body(s: State):
        s += gen("o", type=Outer) + gen("m", schema=Model) + gen("t", type=list[Inner])
        return s.call(f, s.ref("o"), "2024-01-01"), s["m"], s["t"]

    outer = '{"inner": {"n": 1}, "more": [{"n": 2}]}'
    called, model, plain = run(body, {"o": outer, "m": f'{{"outer": {outer}}}', "t": '[{"n": 3}]'}).value
    assert called == model == Model(outer=Outer({"n": 1}, [{"n": 2}]))
    assert plain == [{"n": 3}]


def test_program_with_an_unknown_annotation_keeps_the_others() -> None:
    @program
    def p(s: State, n: int, other: Unseen = None):
        s += f"{n + 1}" if n else "none"

    assert p.trace(symbolic=["n"])["n"].type_name == "int"


# --- mentions at any depth --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    title: Any
    parts: list[Any]


def test_mentions_inside_returned_and_passed_data_resolve_at_any_depth() -> None:
    handle = gen("v")

    def body(s: State):
        s += handle
        call = s.call(same, 5)
        report = Report(handle, [s.ref("v"), {"x": (call, Point(handle, 1))}])
        return {"a": handle, "b": [s.ref("v")], "r": report, "tool": s.call(same, report), "t": "<" + s.ref("v") + ">",
                "f": s.call(same, {"k": ["<" + s.ref("v") + ">" + call]})}  # fmt: skip

    report = Report("x", ["x", {"x": (5, Point("x", 1))}])
    assert run(body, {"v": "x"}).value == {
        "a": "x", "b": ["x"], "r": report, "tool": report, "t": "<x>", "f": {"k": ["<x>5"]}
    }  # fmt: skip

    async def abody(s: State):
        s += handle
        return {"a": [handle, Report(s.ref("v"), [])]}

    assert run(abody, {"v": "x"}).value == {"a": ["x", Report("x", [])]}


def test_mentions_in_what_bodies_of_maps_return_resolve() -> None:
    handle = gen("v")

    def body(s: State):
        def one(branch: State, item: str) -> Any:
            branch += item + handle
            return {"item": item, "v": handle, "r": [branch.ref("v")]}

        return s.map(["a", "b"], one)

    assert run(body, {"v": ["1", "2"]}).value == [
        {"item": "a", "v": "1", "r": ["1"]}, {"item": "b", "v": "2", "r": ["2"]}
    ]  # fmt: skip


def test_json_quotes_values_that_do_not_exist_yet() -> None:
    def body(s: State):
        s += gen("v")
        s += s.json({"v": s.ref("v"), "n": s.call(same, 3), "box": Box(1), "t": "<" + s.ref("v") + ">"})

    text = 'say "x"\n'
    assert run(body, {"v": text}).text == text + (
        '{"v": "say \\"x\\"\\n", "n": 3, "box": {"width": 1, "made": 0}, "t": "<say \\"x\\"\\n>"}'
    )


# --- traces, choices, options -----------------------------------------------------------------------------------------


def test_trace_changes_nothing_of_a_run() -> None:
    @program
    def p(s: State, rounds: list[int] = []):  # noqa: B006
        rounds.append(1)
        s += f"round {len(rounds)}"

    p.trace()
    with mock({}) as backend:
        p.explain(options=RunOptions(backend=backend))
        assert p.run(options=RunOptions(backend=backend)).text == "round 1"


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


class Loud(str, Enum):  # noqa: UP042  another kind, on purpose
    RED = "red"
    BLUE = "blue"


@pytest.mark.parametrize(
    ("choices", "expected"),
    [(Loud, Loud.RED), (Color, Color.BLUE), (list(Color), Color.BLUE), (Kind, Kind.B), ((c for c in ("red", "blue", "b")), "blue"),
     ({"red", "blue", "b"}, "blue"), (iter(["red", "blue", "b"]), "blue"), (["red", "blue", "b", "blue"], "blue"),
     ({"blue": 1, "b": 2}.keys(), "blue")],
)  # fmt: skip
def test_choices_are_taken_alike_by_gen_and_select(choices, expected) -> None:
    listed = choices if isinstance(choices, type) else list(choices)
    said = expected.value if isinstance(expected, Enum) else expected

    def body(s: State):
        s += gen("g", choices=(c for c in listed)) + select("s", listed)
        return s["g"], s["s"]

    found = run(body, {"g": said, "s": said}).value
    assert found == (expected, expected)
    assert [type(each) for each in found] == [type(expected)] * 2


@pytest.mark.parametrize(
    "choices",
    ["ab", [1, 2], {"a": 1}, 5, [], [None], [["a"]], b"ab", (c for c in ())],
    ids=lambda value: type(value).__name__,
)
def test_choices_that_are_no_texts_are_refused_with_what_to_write(choices) -> None:
    for make in (lambda: gen("x", choices=choices), lambda: select("x", choices)):
        with pytest.raises(SpecError) as caught:
            make()
        assert caught.value.hint
        assert caught.value.origin is not None


@pytest.mark.parametrize(
    "options",
    [{"schema": '{"type": "integer"}'}, {"schema": "Order"}, {"type": 3}, {"schema": [1]}, {"type": Box(1)}, {"type": Kind.A},
     {"validate": 3}, {"validate": "f"}, {"retries": "2"}, {"timeout_s": "5"}, {"partial_ok": "yes"}, {"heal": 1},
     {"reasoning": "on"}, {"model": 5}, {"regex": 5}, {"grammar": 5}, {"n": "3"}, {"max_token": 5}, {"temprature": 1}],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_option_of_a_wrong_kind_is_refused_by_name_at_its_line(options) -> None:
    with pytest.raises(SpecError) as caught:
        gen("x", **options)
    (name,) = options
    assert name in str(caught.value) or "type" in str(caught.value)
    assert caught.value.origin.file == __file__


@dataclass
class Unfinished:
    done: int
    missing: int = field(init=False)


class Raises(BaseModel):
    n: int

    @computed_field
    @property
    def odd(self) -> int:
        raise RuntimeError("no such thing")


def _holds_itself() -> list[Any]:
    items: list[Any] = [1]
    items.append(items)
    return items


@pytest.mark.parametrize("value", [Unfinished(1), Raises(n=1), _holds_itself()], ids=lambda value: type(value).__name__)
def test_object_that_cannot_be_written_stays_an_object_and_is_refused_by_name_where_it_is_written(value: Any) -> None:
    @tool
    def give() -> Any:
        return value

    @program
    def reads(s: State):
        return s.call(give).value is value

    @program
    def mentions(s: State):
        s += s.call(give)

    @program
    def quotes(s: State):
        s += s.json(value)

    with mock({}) as backend:
        result = reads.run(options=RunOptions(backend=backend))
        assert result.value is True
        with pytest.raises(DslError):
            dump_record(result.record)
        for body in (mentions, quotes):
            with pytest.raises(DslError) as caught:
                body.run(options=RunOptions(backend=backend))
            assert "unexpectedly" not in str(caught.value)


ODD: list[Any] = [0, -1, 1.5, float("nan"), 10**400, b"x", (), [], {}, object(), len, int]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
def test_odd_values_where_names_items_and_times_belong_are_refused_by_name(odd: Any) -> None:
    @program
    def joins(s: State):
        branches = s.fork(2)
        branches.join(odd)

    @program
    def reads(s: State):
        return s[odd]

    @program
    def means(s: State):
        return s.meta(odd)

    @program
    def maps(s: State):
        return s.map(odd, lambda branch, item: item)

    @program
    def nothing(s: State):
        return None

    with mock({}) as backend:
        options = RunOptions(backend=backend, deadline_s=5)
        for body in (joins, reads, means):
            with pytest.raises(DslError):
                body.run(options=options)
        if not isinstance(odd, (tuple, list, dict, bytes)):
            for call in (lambda: maps.run(options=options), lambda: nothing.run_batch(odd, options=options)):
                with pytest.raises(DslError):
                    call()
        with pytest.raises(SpecError, match="option"):
            gen("a", logit_bias="x")
        if not isinstance(odd, (int, float)) or odd != odd:
            with pytest.raises(SpecError, match="seconds"):
                nothing.start(options=options).result(odd)
        elif odd > 0:
            assert nothing.start(options=options).result(odd).value is None
