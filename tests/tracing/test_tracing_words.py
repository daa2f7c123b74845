"""What a trace says when it stops: the user's names and lines, a way out, and that it is incomplete (cases: 404, 507)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from trial_runs import breaks, everything

import sglang_dsl.sglang as sgl
from sglang_dsl import RunOptions, State, gen, program, select, tool
from sglang_dsl.errors import DslError, ExportError, TraceError
from sglang_dsl.ir.draw import draw
from sglang_dsl.ir.json_format import dumps, loads
from sglang_dsl.ir.text_format import parse, print_graph
from sglang_dsl.ir.verify import findings
from sglang_dsl.runtime.backends.mock import mock

TAG = re.compile("[\ufdd0-\ufdef]|\\\\u[fF][dD][dDeE]")


@tool
def look(x: str) -> str:
    """Find."""
    return x


QUESTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "len": lambda s, v: len(v),
    "int": lambda s, v: int(v),
    "in": lambda s, v: "x" in v,
    "equal": lambda s, v: v == "x",
    "iteration": lambda s, v: list(v),
    "hash": lambda s, v: {v: 1},
    "split": lambda s, v: v.split(),
    "bool": lambda s, v: 1 if v else 2,
    "compare": lambda s, v: v < "x",
    "key of nothing": lambda s, v: {}[v],
    "raises with it": lambda s, v: (_ for _ in ()).throw(ValueError(f"bad {v}")),
    "raises with its repr": lambda s, v: (_ for _ in ()).throw(KeyError([v])),
    "raises damaged": lambda s, v: (_ for _ in ()).throw(ValueError(f"bad {v}"[3:40])),
    "index": lambda s, v: [1, 2][v],
    "upper of a text": lambda s, v: f"a {v} b".upper() and s.append(f"a {v} b".upper()),
    "cut": lambda s, v: s.append(f"<{v}>"[:9]),
    "a name": lambda s, v: s.append(gen(f"n {v}")),
    "a choice": lambda s, v: s.append(select("k", [f"a {v}", "b"])),
    "a stop": lambda s, v: s.append(gen("n", stop=f"{v}")),
    "a regex": lambda s, v: s.append(gen("n", regex=f"{v}+")),
    "tokens": lambda s, v: s.append(gen("n", max_tokens=v)),
    "a role": lambda s, v: s.append(sgl.user(v)) if hasattr(s, "inner") else s.append(v),
    "a read": lambda s, v: s[v],
    "a fork": lambda s, v: s.fork(v),
    "a number": lambda s, v: s.append(5),
    "a tool": lambda s, v: s.call(look, x=v, y=v),
    "a run": lambda s, v: other.run(v),
    "json": lambda s, v: s.append(__import__("json").dumps({"v": v})),
    "a key": lambda s, v: s.call(look, **{f"x{v}": 1}),
}


@program
def other(s: State, v: str):
    s += v + gen("o")


@pytest.mark.parametrize("name", sorted(QUESTIONS))
def test_no_message_holds_a_tag(name) -> None:
    @program
    def p(s: State):
        s += gen("answer")
        QUESTIONS[name](s, s["answer"])
        s += gen("end")

    said = []
    for follow in (p.trace, lambda: p.trace(strict=True), p.export):
        try:
            graph = follow()
            said += [node.reason for node in breaks(graph)]
            said.append(print_graph(graph))
        except DslError as error:
            said += [str(error), error.what, error.hint, repr(error), *map(str, error.args)]
        except Exception as error:  # noqa: BLE001  what the body raises itself
            said += [str(error), repr(error)]
    assert said
    for text in said:
        assert not TAG.search(text), ascii(text)


def test_a_value_has_its_name_and_the_line_is_the_users() -> None:
    @program
    def p(s: State):
        s += "Q" + gen("answer")
        if len(s["answer"]) > 3:
            s += "long"

    (end,) = breaks(p.trace())
    assert end.reason == "len() of the value of 'answer', which does not exist while tracing"
    assert end.origin is not None
    assert end.origin.file == __file__
    with pytest.raises(TraceError) as caught:
        p.trace(strict=True)
    assert 'if len(s["answer"]) > 3' in str(caught.value)
    assert "s.switch" not in str(caught.value)


def test_hint_fits_the_language() -> None:
    @sgl.function
    def f(s):
        s += sgl.gen("answer")
        if "x" in s["answer"]:
            s += "!"

    with pytest.raises(ExportError) as caught:
        f._program.export()
    for word in ("s.switch", "s.loop", "s.call"):
        assert word not in str(caught.value)
    assert "choices=" in str(caught.value)


def test_hint_is_not_what_the_body_does_already() -> None:
    @program
    def p(s: State):
        def body(b: State) -> str:
            b += gen("part")
            return "!" if "x" in b["part"] else "?"

        s.loop(body, limit=2)

    with pytest.raises(ExportError) as caught:
        p.export()
    assert "s.loop" not in caught.value.hint


# --- incomplete ---------------------------------------------------------------------------------------------------------


def test_explain_says_where_it_stopped_and_counts_at_least() -> None:
    @program
    def p(s: State):
        s += "Q" + gen("first")
        for b in s.fork(4):
            b += gen("part")
            if len(b["part"]) > 3:
                b += gen("more")

    found = p.explain(options=RunOptions(backend=mock(unscripted="echo")))
    (line,) = found.incomplete
    assert line.startswith(f"incomplete: stopped at {__file__}:")
    assert "'part'" in line
    shown = str(found)
    assert "incomplete: stopped at" in shown
    assert "calls:         >= 5" in shown
    assert "prompt tokens: >= " in shown


def test_explain_of_a_whole_graph_says_nothing_of_it() -> None:
    found = other.explain("x", options=RunOptions(backend=mock(unscripted="echo")))
    assert found.incomplete == ()
    assert ">=" not in str(found)


def test_what_one_arm_returns_is_not_said_of_the_arm_that_broke() -> None:
    @program
    def p(s: State):
        s += select("k", ["a", "b"])
        if s["k"] == "a":
            s += gen("x")
            if "q" in s["x"]:
                return "something"
        return "nothing"

    shown = print_graph(p.trace())
    assert 'return "nothing"' not in shown
    broken, other_arm = shown.split('case "b"')
    assert "break" in broken
    assert '"nothing"' in other_arm


def test_command_line_says_that_a_trace_is_incomplete(tmp_path, capsys) -> None:
    from sglang_dsl.cli import main

    file = tmp_path / "asks.py"
    file.write_text(
        "from sglang_dsl import gen, program\n\n\n@program\ndef p(s):\n    s += gen('answer')\n"
        "    if len(s['answer']) > 3:\n        s += 'long'\n"
    )
    main(["trace", f"{file}:p"])
    written = capsys.readouterr()
    assert f"incomplete: stopped at {file}:7 because len() of the value of 'answer'" in written.err
    assert "break" in written.out


def test_siblings_of_a_branch_that_broke_are_still_traced() -> None:
    @program
    def p(s: State):
        def body(b: State) -> None:
            b += f"{b.index} " + gen("part")
            if len(b["part"]) > 3:
                b += gen("more")

        s += "Q" + select("k", ["a", "b"])
        if s["k"] == "a":
            s.fork(9).map(body)
        s += gen("end")

    graph = p.trace()
    assert findings(graph) == []
    assert loads(dumps(graph)) == graph
    assert parse(print_graph(graph)) == graph
    assert len(breaks(graph)) == 9
    assert sum(getattr(node, "name", None) == "part" for node in everything(graph)) == 9
    assert sum(getattr(node, "name", None) == "end" for node in everything(graph)) == 1
    (line,) = p.explain(options=RunOptions(backend=mock(unscripted="echo"))).incomplete
    assert "'part'" in line


def test_line_of_a_question_that_a_dataclass_asks_is_the_users() -> None:
    @dataclass
    class Answer:
        text: str

    @program
    def p(s: State):
        s += gen("x")
        if Answer(s["x"]) == Answer("yes"):
            s += "yes"

    (found,) = breaks(p.trace())
    assert found.origin is not None
    assert found.origin.file == __file__


@pytest.mark.parametrize("form", ["terminal", "dot", "svg", "html"])
def test_pictures_with_a_head_say_that_a_trace_is_incomplete(form) -> None:
    @program
    def p(s: State):
        s += gen("x")
        if "yes" in s["x"]:
            s += gen("y")

    shown = draw(p.trace(), form)
    assert "incomplete: stopped at" in shown
    assert Path(__file__).name in shown
    assert ("at least 1 model call" in shown) == (form == "terminal")
    assert "incomplete" not in draw(other.trace("x"), form)
