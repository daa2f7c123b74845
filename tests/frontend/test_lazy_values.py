# ruff: noqa: RUF005, UP031  each operator is used on purpose
"""The value of `s.call` is used like what the tool returned. cases: 303"""

from __future__ import annotations

import json
import math
from enum import Enum
from typing import Any

import pytest

from sglang_dsl import Lazy, State, gen, program, tool
from sglang_dsl.errors import ProgramError
from sglang_dsl.frontend.expressions import LazyText
from sglang_dsl.ir.specs import RunOptions
from sglang_dsl.testing import mock


class Kind(Enum):
    A = "a"


@tool
def give(value: Any) -> Any:
    return value


def run(body: Any, script: dict[str, Any] | None = None) -> Any:
    with mock(script or {}) as backend:
        return program(body).run(options=RunOptions(backend=backend))


SKIPPED = {
    "__class__", "__class_getitem__", "__delattr__", "__dir__", "__doc__", "__getattribute__", "__getnewargs__", "__getstate__",
    "__init__", "__init_subclass__", "__new__", "__reduce__", "__reduce_ex__", "__repr__", "__setattr__", "__sizeof__",
    "__subclasshook__", "__getformat__", "__setformat__", "__iadd__", "__imul__", "__ior__", "__rdivmod__",
}  # fmt: skip


@pytest.mark.parametrize("kind", [int, float, str, list, dict])
@pytest.mark.parametrize("lazy", [Lazy, LazyText])
def test_every_operator_of_the_plain_types_is_one_of_a_lazy_value(kind, lazy) -> None:
    wanted = {name for name in dir(kind) if name.startswith("__")} - SKIPPED
    own = {name for cls in lazy.__mro__ if cls is not object for name in vars(cls)}
    unsupported = {"__setitem__", "__delitem__", "__ne__"} if lazy is LazyText else set()
    assert wanted - own - unsupported == set()


@pytest.mark.parametrize(
    ("value", "use"),
    [
        (3, lambda x: (x + 1, 1 + x, x - 1, 10 - x, x * 2, 2 * x, x / 2, 7 // x, x % 2, 10 % x, x**2, 2**x, divmod(x, 2))),
        (3, lambda x: (x + 1 > 3, -x, +x, ~x, abs(x), x & 1, x | 8, x ^ 1, x << 2, x >> 1, int(x), float(x), complex(x))),
        (3, lambda x: ([0, 1, 2, 3][x], list(range(x)), round(x), math.floor(x), math.ceil(x), math.trunc(x), hash(x))),
        (3, lambda x: (x.bit_length(), f"{x:03d}", f"{x}", str(x), bool(x), x == 3, x != 3, x < 4, x <= 3, x >= 3)),
        (2.5, lambda x: (x.is_integer(), round(x, 1), f"{x:.2f}", x + 0.5, 1 - x)),
        ("a b", lambda x: (x.split(), x.upper(), x * 2, "b" in x, len(x), x[0], x[1:], list(x), x.replace("a", "c"), "%s" % x)),
        ("a b", lambda x: ((x + "!").upper(), ("<" + x + ">")[1], x + "!" == "a b!", len(x + "?"), x < "b", x == "a b")),
        ({"a": 1}, lambda x: (x.get("a"), x.get("b", 2), list(x.items()), list(x.keys()), dict(x), {**x}, "a" in x, x["a"])),
        ({"a": 1}, lambda x: (x | {"b": 2}, {"b": 2} | x, len(x), bool(x), [*x], x == {"a": 1}, json.dumps(x.value))),
        ([1, 2], lambda x: (x + [3], [0] + x, x * 2, x[0], x[-1:], list(reversed(x)), x.index(2), x.count(1), sum(x), [*x], sorted(x))),
        (Kind.A, lambda x: (x == Kind.A, x.name)),
        (None, lambda x: (x == None, bool(x))),  # noqa: E711
    ],
)  # fmt: skip
def test_value_of_a_call_is_used_like_what_the_tool_returned(value, use) -> None:
    expected = use(value) if not isinstance(value, (dict, type(None))) else None

    def body(s: State):
        return use(s.call(give, value))

    found = run(body).value
    if isinstance(value, dict):
        plain = dict(value)

        class Plain(dict):
            value = plain

        expected = use(Plain(value))
    elif value is None:
        expected = (True, False)
    assert found == expected


def test_sum_of_two_calls_is_the_sum_and_text_with_a_call_is_a_mention() -> None:
    def body(s: State):
        n, m = s.call(give, 3), s.call(give, 3)
        s += f"{n + m}"
        s += " items: " + n + ", " + m
        n += 1
        return n + m, n * m, s.text

    assert run(body).value == (7, 12, "6 items: 3, 3")


def test_none_is_found_by_value_and_by_await() -> None:
    def body(s: State):
        return s.call(give, None).value is None

    async def abody(s: State):
        return await s.call(give, None) is None

    assert run(body).value is True
    assert run(abody).value is True


def test_get_with_a_key_is_the_dicts_own_and_with_nothing_or_a_limit_the_value() -> None:
    def body(s: State):
        x, n = s.call(give, {"a": 1, 5: "five"}), s.call(give, 3)
        return (
            x.get("a"),
            x.get("b"),
            x.get("b", 7),
            x.get(5),
            x.get(),
            n.get(5),
            n.get(timeout_s=5),
            x.get(timeout_s=5),
        )

    data = {"a": 1, 5: "five"}
    assert run(body).value == (1, None, 7, "five", data, 3, 3, data)


def test_json_dumps_of_a_lazy_value_says_what_to_write() -> None:
    def body(s: State):
        return json.dumps({"a": s.call(give, 3)})

    with pytest.raises(ProgramError, match=r"json\.dumps\(x\.value\)") as caught:
        run(body)
    assert caught.value.origin.statement.startswith("return json.dumps(")


def test_joined_list_behaves_like_a_list() -> None:
    def body(s: State):
        branches = s.fork(2)
        branches += gen("v", choices=["a", "b"])
        joined = branches.join("v")
        return joined + ["c"], joined * 2, joined[0] + joined[1], joined.index("b"), joined == ["a", "b"]

    assert run(body, {"v": ["a", "b"]}).value == (["a", "b", "c"], ["a", "b"] * 2, "ab", 1, True)


def test_state_reads_the_value_of_a_call_by_the_call_itself():
    @tool
    def price(item: str) -> float:
        return 2.5

    @program
    def plan(s):
        cost = s.call(price, "tent")
        return s[cost]

    assert plan.run(options=RunOptions(backend="mock")).value == 2.5
