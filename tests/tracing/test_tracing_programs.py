"""Random programs: the exported graph on the mock makes the calls, and gives the text, of the eager run."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, note, settings
from program_strategy import programs

from sglang_dsl import Program, RunOptions
from sglang_dsl.errors import ExportError
from sglang_dsl.ir.execution import RunSpec, execute
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.json_format import dumps, loads
from sglang_dsl.runtime.backends.mock import MockExecutor, mock

SAYS = ("yes", "no", " padded ", "A\nB", 'quo"te', "{x}", "日本", "x")


def _reply(call: Any) -> Any:
    """A function of the prompt, so that the order of calls does not matter."""
    number = zlib.crc32(f"{call.name}|{call.prompt}".encode())
    constraint = call.constraint
    if call.choices:
        return call.choices[number % len(call.choices)]
    if constraint is None:
        return SAYS[number % len(SAYS)]
    if constraint.kind == "choices":
        options = json.loads(constraint.text)
        return options[number % len(options)]
    if constraint.kind == "json_schema":
        return json.dumps(list(SAYS[: number % 4]))
    return str(number % 50)


def _backend() -> MockExecutor:
    return mock(_reply)


def _calls(backend: MockExecutor) -> list[tuple[Any, ...]]:
    return sorted((call.name or "", call.prompt, call.text) for call in backend.calls())


def _eager(program: Program[..., Any]) -> tuple[list[tuple[Any, ...]], Any]:
    """Every call with the text before it (the last one's is all of the text), and the value."""
    with _backend() as backend:
        result = program.run(options=RunOptions(backend=backend))
        return _calls(backend), result.value


def _from_graph(graph: Graph) -> tuple[list[tuple[Any, ...]], Any]:
    with _backend() as backend:
        run = execute(graph, backend, RunSpec(program=graph.name, options=RunOptions(backend=backend)))
        summary = run.seal().result(30)
        assert summary.error is None
        returned = run.value("return").result().value if "return" in graph else None
        return _calls(backend), returned


def _check(program: Program[..., Any]) -> None:
    note(program.function.__doc__ or "")
    try:
        graph = program.export(trials=4)
    except ExportError as error:
        assume("not every path" not in error.what)  # more of them than are followed
        raise
    assert _from_graph(loads(dumps(graph))) == _eager(program)


_CALM = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@given(programs())
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=_CALM)
def test_exported_graph_on_the_mock_does_what_the_program_does(program) -> None:
    _check(program)


@pytest.mark.long
@pytest.mark.timeout(1200)
@given(programs(size=5))
@settings(max_examples=500, deadline=None, derandomize=True, suppress_health_check=_CALM, phases=[Phase.generate])
def test_exported_graph_of_500_programs_does_what_they_do(program) -> None:
    _check(program)


def test_checks_of_this_file_see_a_difference() -> None:
    from program_strategy import compiled

    source = (
        "from sglang_dsl import gen, program\n@program\ndef generated(s):\n    s += {} + gen('a')\n    return s['a']\n"
    )
    one, other = compiled(source.format("'a'")), compiled(source.format("'b'"))
    assert _from_graph(one.export()) != _eager(other)
