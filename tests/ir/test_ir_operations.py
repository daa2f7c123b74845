"""Operations: what a graph may do to a value, and nothing else."""

import pytest

from sglang_dsl.errors import GraphError
from sglang_dsl.ir.nodes import Operation
from sglang_dsl.ir.operations import OPERATION_NAMES, TEXT_METHODS, apply, apply_all, describe


@pytest.mark.parametrize(
    ("value", "name", "args", "expected"),
    [
        ("  Paris \n", "strip", (), "Paris"),
        ("a-b-c", "replace", ("-", "+", 1), "a+b-c"),
        ("ß", "casefold", (), "ss"),
        ("7", "zfill", (3,), "007"),
        ("x", "center", (5, "*"), "**x**"),
        ("Dr. Who", "removeprefix", ("Dr. ",), "Who"),
        (3.14159, "format", (".2f",), "3.14"),
        ("q'q", "repr", (), '"q\'q"'),
        (["a", "b"], "item", (-1,), "b"),
        ({"team": "tech"}, "item", ("team",), "tech"),
        ({"team": "tech"}, "attr", ("team",), "tech"),
        ("abcdef", "slice", (1, None, 2), "bdf"),
    ],
)
def test_apply_known_operation_gives_pythons_result(value, name, args, expected):
    assert apply(value, Operation(name, args)) == expected


@pytest.mark.parametrize("name", sorted(TEXT_METHODS))
def test_apply_text_method_equals_the_method_of_str(name):
    args = {"replace": ("a", "b"), "removeprefix": ("a",), "removesuffix": ("c",)}.get(name, ())
    args = args or ((7,) if name in {"center", "ljust", "rjust", "zfill"} else ())
    assert apply("aBc", Operation(name, args)) == getattr("aBc", name)(*args)


def test_apply_all_runs_in_order():
    assert apply_all(" Ab ", [Operation("strip"), Operation("lower"), Operation("item", (1,))]) == "b"


@pytest.mark.parametrize("name", ["__class__", "encode", "join", "format_map", "eval", ""])
def test_apply_operation_outside_the_table_is_refused_by_name(name):
    with pytest.raises(GraphError, match="not one a graph can hold") as caught:
        apply("x", Operation(name))
    assert "strip" in caught.value.hint


@pytest.mark.parametrize(
    ("value", "operation"),
    [
        (5, Operation("strip")),
        ("abc", Operation("item", (9,))),
        ("abc", Operation("item", ("k",))),
        ({"a": 1}, Operation("attr", ("b",))),
        ("abc", Operation("attr", ("__class__",))),
        ("abc", Operation("format", ("d",))),
        ("abc", Operation("zfill", (10**9,))),
        ("abc", Operation("format", (">99999999999",))),
        ("abc", Operation("strip", (1, 2, 3))),
    ],
)
def test_apply_operation_that_does_not_fit_raises_graph_error_naming_it(value, operation):
    with pytest.raises(GraphError, match="does not work on"):
        apply(value, operation)


def test_describe_reads_like_python():
    shown = [
        describe(Operation(n, a))
        for n, a in [("strip", ()), ("item", (2,)), ("slice", (None, 3, None)), ("attr", ("x",)), ("format", (">5",))]
    ]
    assert shown == [".strip()", "[2]", "[:3]", ".x", ":>5"]


def test_operation_names_are_sorted_and_closed():
    assert list(OPERATION_NAMES) == sorted(OPERATION_NAMES)
    assert {"item", "attr", "format", "repr", "slice"} < set(OPERATION_NAMES)
