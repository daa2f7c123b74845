"""Every operation on a value that does not exist yet: a reference, a recorded operation, a split or a Break; and none is
silently wrong in an exported graph.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from traced_operations import OPERATIONS
from trial_runs import assert_same, breaks, everything

from sglang_dsl import State, gen, program, select
from sglang_dsl.errors import ExportError
from sglang_dsl.frontend.tracing.values import Abstract
from sglang_dsl.ir.nodes import Break, Reference, Switch, Text

CHOICES = ["yes", "no", "two words"]


def _program(apply: Any, call: Any) -> Any:
    @program
    def p(s: State):
        s += "Q"
        s += call
        result = apply(s["v"])
        s += result if isinstance(result, str) else f"{result}"

    return p


def _kind(graph: Any) -> str:
    nodes = list(everything(graph))
    if any(isinstance(node, Break) for node in nodes):
        return "break"
    if any(isinstance(node, Switch) for node in nodes):
        return "split"
    references = [p for n in nodes if isinstance(n, Text) for p in n.pieces if isinstance(p, Reference)]
    if any(reference.operations for reference in references):
        return "operation"
    return "reference" if references else "constant"


def _exported(traced: Any) -> Any:
    try:
        return traced.export()
    except ExportError:
        return None


def test_operations_are_at_least_150() -> None:
    assert len({operation.name for operation in OPERATIONS}) >= 150


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_operation_on_a_text_is_what_the_table_says(operation) -> None:
    traced = _program(operation.apply, gen("v"))
    kind = _kind(traced.trace())
    if operation.expected == "refused":
        assert kind in ("constant", "reference", "operation")
        assert _exported(traced) is None
    else:
        assert kind == operation.expected
        assert (_exported(traced) is None) == (kind == "break")


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
@pytest.mark.parametrize("call", [gen("v"), select("v", CHOICES)], ids=["text", "select"])
def test_operation_in_an_exported_graph_is_never_wrong(operation, call) -> None:
    traced = _program(operation.apply, call)
    graph = _exported(traced)
    if graph is None:
        with pytest.raises(ExportError):
            traced.export()
    else:
        assert_same(traced, graph)


# what `str` itself defines; attribute lookup is no question, and documentation no method
METHODS = [name for name in dir(str) if name in vars(str) and name not in ("__getattribute__", "__doc__")]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_str_is_overridden(name) -> None:
    assert vars(Abstract)[name] is not vars(str)[name]


@pytest.mark.parametrize("operation", [o for o in OPERATIONS if o.expected == "break"], ids=lambda o: o.name)
def test_break_names_the_users_line(operation) -> None:
    graph = _program(operation.apply, gen("v")).trace()
    (end,) = breaks(graph)
    assert end.reason
    assert end.origin is not None
    assert Path(end.origin.file).name in (
        "traced_operations.py",
        "test_tracing_operations.py",
        "<unknown>",
        "<template>",
    )
