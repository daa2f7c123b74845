"""Export: what is refused and why, and that every example's graph does what its body does on the mock."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from trial_runs import assert_same, breaks, everything

from examples.chat import QUESTIONS, chat
from examples.few_shot_select import MESSAGES, classify
from examples.support_agent import triage
from examples.support_desk import tickets
from examples.tree_of_thought import PROBLEM, summary
from sglang_dsl import RunOptions, State, gen, program, select, tool
from sglang_dsl.errors import ExportError
from sglang_dsl.ir.execution import RunSpec, execute
from sglang_dsl.ir.json_format import dumps, loads
from sglang_dsl.ir.nodes import Gen, Join, Select, Switch
from sglang_dsl.ir.verify import findings
from sglang_dsl.runtime.backends.mock import mock

EXAMPLES = [
    pytest.param(triage, (tickets(4),), id="support_agent"),
    pytest.param(classify, (list(MESSAGES),), id="few_shot_select"),
    pytest.param(chat, (list(QUESTIONS),), id="chat"),
    pytest.param(summary, (PROBLEM,), id="tree_of_thought"),
]


@pytest.mark.parametrize(("example", "args"), EXAMPLES)
def test_trace_of_an_example_is_whole_and_sound(example, args) -> None:
    graph = example.trace(*args)
    assert breaks(graph) == []
    assert findings(graph) == []
    assert any(isinstance(node, (Gen, Select)) for node in everything(graph))


def _reply(call):
    if call.choices:
        return call.choices[len(call.prompt) % len(call.choices)]
    return f" reply {len(call.prompt) % 97} " if call.constraint is None else None


@pytest.mark.parametrize(("example", "args"), EXAMPLES)
def test_exported_example_on_the_mock_makes_the_calls_of_the_run(example, args) -> None:
    graph = loads(dumps(example.export(*args)))
    ran, executed = mock(_reply, unscripted="schema"), mock(_reply, unscripted="schema")
    value = example.run(*args, options=RunOptions(backend=ran)).value
    run = execute(graph, executed, RunSpec(program=graph.name, options=RunOptions(backend=executed)))
    assert run.seal().result(30).error is None
    assert sorted((c.name, c.prompt, c.text) for c in executed.calls()) == sorted(
        (c.name, c.prompt, c.text) for c in ran.calls()
    )
    returned = run.value("return").result().value
    plain = [v.model_dump() if hasattr(v, "model_dump") else v for v in value] if isinstance(value, list) else value
    assert returned == plain


@pytest.mark.parametrize(("example", "args"), EXAMPLES)
def test_exported_example_does_what_its_body_does_on_nasty_values(example, args) -> None:
    assert_same(example, example.export(*args), *args)


def test_program_with_more_than_256_paths_says_so_and_is_not_exported() -> None:
    def grades(s):
        picks = []
        for question in range(6):
            s += f"Grade {question}: "
            s += select("grade", ["poor", "fair", "good"])
            picks.append("+" if s["grade"] == "good" else "-" if s["grade"] == "poor" else "=")
        s += "".join(picks)

    graph = program(grades).trace()
    assert any(isinstance(n, Switch) and n.assumed for n in everything(graph))
    with pytest.raises(ExportError, match="not every path"):
        program(grades).export()


def _refused(body, match: str, **options) -> ExportError:
    made = program(body)
    with pytest.raises(ExportError, match=match) as caught:
        made.export(**options)
    return caught.value


def test_export_of_a_break_names_the_line() -> None:
    def p(s: State):
        s += gen("v")
        if s["v"] == "x":
            s += "y"

    error = _refused(p, "breaks off")
    assert error.origin is not None
    assert error.origin.statement == 'if s["v"] == "x":'


def test_export_of_a_question_to_a_plain_text_is_caught_by_its_own_constant() -> None:
    def p(s: State):
        s += gen("v")
        if "err" in f"v {s['v']}":
            s += "went wrong"
        s += gen("end")

    _refused(p, "do different things")


def test_export_of_a_question_behind_a_quorum_that_samples_seldom_reach_is_caught() -> None:
    def p(s: State):
        branches = s.fork(3)
        for branch in branches:
            branch += f"branch {branch.index} " + gen("v")
        branches.join("v", mode="quorum", k=2)
        s += gen("end")
        if "err" in f"v {s['end']}":
            s += "went wrong"

    _refused(p, "do different things")


def test_export_of_a_question_in_a_function_of_the_users_is_caught_too() -> None:
    def failed(text: str) -> bool:
        return text.startswith("v FATAL")

    def p(s: State):
        s += gen("v")
        s += "bad" if failed(f"v {s['v']}") else "good"

    _refused(p, "do different things")


def test_export_of_padding_by_percent_is_caught() -> None:
    width = "%-12s|"

    def p(s: State):
        s += gen("v")
        s += width % (s["v"],)

    error = _refused(p, "goes on with")
    assert error.origin is not None
    assert error.origin.statement == 's += width % (s["v"],)'


def test_export_of_text_that_changes_between_traces_is_refused() -> None:
    count = itertools.count()

    def p(s: State):
        s += f"{next(count)}" + gen("v")

    _refused(p, "two traces")


def test_export_of_a_returned_object_is_refused() -> None:
    def p(s: State):
        s += gen("v")
        return object()

    _refused(p, "returns what a graph cannot hold")


def test_export_of_an_unregistered_tool_or_key_is_refused_by_name() -> None:
    @tool
    def look(query: str) -> str:
        return query

    def calls(s: State):
        s += s.call(look, "x")

    def chooses(s: State):
        fk = s.fork(2)
        fk += gen("v")
        s += fk.best("v", key=len)

    _refused(calls, "look")
    _refused(chooses, "len")
    program(calls).export(registry=[look.key])
    (join,) = [n for n in program(chooses).trace() if isinstance(n, Join)]
    program(chooses).export(registry=[join.key])


def test_export_needs_both_ends_of_every_question() -> None:
    def p(s: State):
        for i in range(9):
            s += select(f"k{i}", ["a", "b"])
        for i in range(9):
            s += "x" if s[f"k{i}"] == "a" else "y"

    _refused(p, "not every path")


def test_export_does_nothing_outside(tmp_path) -> None:
    def p(s: State):
        s += gen("v")
        (tmp_path / "f").write_text("x")

    _refused(p, "for writing")
    assert list(tmp_path.iterdir()) == []


def test_program_that_fails_on_some_values_exports_if_the_graph_fails_too() -> None:
    @program
    def p(s: State):
        s += gen("v")
        s += s["v"][0]

    assert p.export() == p.trace()


def test_async_program_is_exported() -> None:
    @program
    async def p(s: State):
        s += gen("v")
        s += (await s.get("v")).strip()

    async def inside() -> object:
        return p.export()

    assert [n.kind for n in p.export()] == ["gen", "text"]
    assert asyncio.run(inside()) == p.export()


def test_body_of_a_pure_program_runs_once() -> None:
    seen = []

    @program(pure=True)
    def p(s: State):
        seen.append(1)
        s += select("k", ["a", "b"])
        s += "x" if s["k"] == "a" else "y"
        return s["k"]

    assert p.run(options=RunOptions(backend=mock({"k": "b"}))).value == "b"
    assert len(seen) == 1
