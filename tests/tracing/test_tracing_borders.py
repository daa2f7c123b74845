"""Where strings cross into the graph: an intact tag is a reference, anything else of a value a Break."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from trial_runs import breaks, kinds

from sglang_dsl import RunOptions, State, gen, program, role, select, tool, user
from sglang_dsl.errors import SpecError, TraceError
from sglang_dsl.frontend.tracing.shapes import Tags, holds_tag
from sglang_dsl.ir.nodes import Concat, Constant, DictOf, ListOf, Reference, Return, Select, ToolNode
from sglang_dsl.runtime.backends.mock import mock


@tool
def look(query: str, options: dict | None = None) -> str:
    raise AssertionError("tools are not run while tracing")


@dataclass
class Note:
    text: str
    size: int


def _traced(body):
    @program
    def p(s: State):
        s += gen("v")
        return body(s, s["v"])

    return p.trace()


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.upper(),
        lambda t: t.lower(),
        lambda t: t.title(),
        lambda t: t.swapcase(),
        lambda t: t[1:],
        lambda t: t[:-1],
        lambda t: t[3:9],
        lambda t: t[::-1],
        lambda t: t.split()[0],
        lambda t: t.split("/")[0],
        lambda t: t.splitlines()[0],
        lambda t: " ".join(t.split()),
        lambda t: t.replace("a", "b"),
        lambda t: t.replace("'", ""),
        lambda t: t.expandtabs(),
        lambda t: json.dumps(t),
        lambda t: json.dumps(t, ensure_ascii=False),
        lambda t: repr(t),
        lambda t: ascii(t),
        lambda t: t.encode("ascii", "ignore").decode(),
        lambda t: t.encode("ascii", "replace").decode(),
        lambda t: t.encode("ascii", "backslashreplace").decode(),
        lambda t: t.encode("ascii", "xmlcharrefreplace").decode(),
    ],
)
def test_tag_that_was_changed_is_damage(change) -> None:
    tags = Tags()
    found = tags.find("before " + change(tags.tag(3)) + " after")
    assert found.damage


def test_tags_that_were_moved_are_found() -> None:
    tags = Tags()
    assert tags.find(f"a{tags.tag(0)}{tags.tag(17)}b").parts == ("a", 0, 17, "b")
    assert tags.find("plain é").parts == ("plain é",)
    assert tags.find("").parts == ()


def test_tag_of_another_trace_is_damage_and_named() -> None:
    other = Tags().tag(1)
    assert "another trace" in Tags().find(f"x{other}").damage
    assert holds_tag(f"x{other}")
    assert not holds_tag("plain \ufdd0")


@pytest.mark.parametrize(
    "append",
    [
        lambda s, v: s.append(gen(f"n{v}")),
        lambda s, v: s.append(gen("x", stop=f"{v}.")),
        lambda s, v: s.append(gen("x", stop=["a", v])),
        lambda s, v: s.append(gen("x", regex=f"a{v}")),
        lambda s, v: s.append(gen("x", choices=[f"{v}!", "b"])),
        lambda s, v: s.append(gen("x", schema={"enum": [f"{v}"]})),
        lambda s, v: s.append(gen("x", model=f"m{v}")),
        lambda s, v: s.append(gen("x", max_tokens=len(v))),
        lambda s, v: s.append(gen("x", max_tokens=int(v))),
        lambda s, v: s.append(role(f"r{v}", "x")),
        lambda s, v: s.fork(len(v)),
        lambda s, v: s.fork(int(v)),
        lambda s, v: s.append(f"a{v}"[2:]),
        lambda s, v: s.append(json.dumps([v])),
        lambda s, v: s.call(look, json.dumps([v])),
        lambda s, v: s.call(look, "x", {f"{v}": 1}),
        lambda s, v: s.append(select("k", [f"a {v}", "b"])),
        lambda s, v: s[f"{v}"],
        lambda s, v: s.meta("v"),
        lambda s, v: s.append(user("x")).text,
        lambda s, v: f"ab{v}"[3:],
    ],
)
def test_border_where_a_value_cannot_pass_breaks(append) -> None:
    graph = _traced(append)
    assert kinds(graph)[-1] == "break"
    assert len(breaks(graph)) == 1


def test_select_may_choose_among_values() -> None:
    graph = _traced(lambda s, v: s.append(select("k", [v, "none"])) and None)
    assert next(n for n in graph if isinstance(n, Select)).choices == (Reference("1"), "none")


def test_tool_arguments_hold_references_and_the_tool_is_not_run() -> None:
    def body(s, v):
        s += s.call(look, f"<{v}>", {"q": v, "k": [v, 1]})

    (call,) = [n for n in _traced(body) if isinstance(n, ToolNode)]
    assert call.arguments == DictOf(
        (
            ("query", Concat((Constant("<"), Reference("1"), Constant(">")))),
            ("options", DictOf((("q", Reference("1")), ("k", ListOf((Reference("1"), Constant(1))))))),
        )
    )


@pytest.mark.parametrize(
    ("value", "expression"),
    [
        (lambda v: v, Reference("1")),
        (lambda v: f"a{v}", Concat((Constant("a"), Reference("1")))),
        (lambda v: [v, "x"], ListOf((Reference("1"), Constant("x")))),
        (lambda v: {"k": v}, DictOf((("k", Reference("1")),))),
        (lambda v: (1, 2.5, None), Constant([1, 2.5, None])),
        (
            lambda v: Note(f"n{v}", 3),
            DictOf((("text", Concat((Constant("n"), Reference("1")))), ("size", Constant(3)))),
        ),
    ],
)
def test_returned_value_is_an_expression(value, expression) -> None:
    graph = _traced(lambda s, v: value(v))
    assert next(n for n in graph if isinstance(n, Return)).value == expression


def test_errors_before_any_value_are_the_programs_own() -> None:
    @program
    def p(s: State):
        s += user("x")
        s += select("k", [])

    with pytest.raises(SpecError):
        p.trace()


def test_value_that_escaped_its_trace_says_so() -> None:
    kept = []

    @program
    def p(s: State):
        s += gen("v")
        kept.append(s["v"])

    p.trace()
    with pytest.raises(TraceError, match="after the trace had ended"):
        len(kept[0])
    assert kept[0] != "x"
    assert repr(type(kept[0])).endswith("Abstract'>")


def test_value_that_escaped_into_a_run_is_refused_there() -> None:
    kept = []

    @program
    def p(s: State):
        s += gen("v")
        kept.append(s["v"])
        s += f"so: {kept[0]}"

    p.trace()
    with pytest.raises(TraceError, match="value of a trace"):
        p.run(options=RunOptions(backend=mock({"v": "real"})))


def test_bodys_own_handlers_do_not_swallow_a_break() -> None:
    def body(s, v):
        try:
            assert v == "x"
        except Exception:  # noqa: BLE001
            s += "swallowed"
        s += "never"

    assert kinds(_traced(body)) == ["gen", "break"]


def test_nothing_is_appended_after_a_break_even_if_the_body_catches_everything() -> None:
    def body(s, v):
        try:
            assert v == "x"
        except BaseException:  # noqa: BLE001
            s += "swallowed"

    assert kinds(_traced(body)) == ["gen", "break"]
