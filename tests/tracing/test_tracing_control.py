"""`switch`, `loop` and `map` in a trace, and arguments that stay unknown."""

from __future__ import annotations

import pytest
from trial_runs import assert_same, breaks, everything, kinds

from sglang_dsl import RunOptions, State, gen, program, select, user
from sglang_dsl.errors import ExportError, GraphError, TraceError
from sglang_dsl.ir.execution import RunSpec, execute
from sglang_dsl.ir.json_format import dumps, loads
from sglang_dsl.ir.nodes import Input, Loop, Map, Plain, Reference, Switch, Text
from sglang_dsl.ir.verify import findings, verify
from sglang_dsl.runtime.backends.mock import mock


@program
def router(s: State):
    s += "Say" + gen("word")

    def polite(s: State) -> str:
        s += "P" + gen("p")
        return s["p"]

    def plain(s: State) -> str:
        s += "N"
        return "nothing"

    said = s.switch("word", {"please": polite, "now": plain}, default=lambda s: s["word"])
    s += f"<{said}>" + gen("end")
    return said


def test_switch_on_free_text_is_a_switch_with_a_rest() -> None:
    graph = router.trace(strict=True)
    switch = next(n for n in graph if isinstance(n, Switch))
    assert [arm.values for arm in switch.arms] == [("please",), ("now",), None]
    assert kinds(graph) == ["text", "gen", "switch", "gen", "return"]
    verify(graph)
    assert_same(router, router.export())


def test_switch_on_a_select_takes_every_choice() -> None:
    @program
    def p(s: State):
        s += select("k", ["a", "b", "c"])
        s.switch("k", {"a": lambda s: s.append("A" + gen("x"))}, default=lambda s: s.append("rest"))
        s += gen("end")

    graph = p.trace(strict=True)
    switch = next(n for n in graph if isinstance(n, Switch))
    assert [arm.values for arm in switch.arms] == [("a",), ("b", "c")]
    assert_same(p, p.export())


def test_value_is_known_inside_the_arm_that_it_chose() -> None:
    @program
    def p(s: State):
        s += gen("v")

        def arm(s: State) -> None:
            s += "same" if s["v"] == "x" else "different"

        s.switch("v", {"x": arm}, default=lambda s: s.append("rest"))

    graph = p.trace(strict=True)
    texts = [
        piece.text for n in everything(graph) if isinstance(n, Text) for piece in n.pieces if isinstance(piece, Plain)
    ]
    assert texts == ["same", "rest"]


def test_control_of_an_arm_is_that_of_a_run() -> None:
    script = {"word": "please", "p": "1", "end": "2"}
    ran = {n.id: n.control for n in router.run(options=RunOptions(backend=mock(script))).graph}
    traced = {n.id: n.control for n in everything(router.trace())}
    assert ran.items() <= traced.items()


@program
def retry(s: State):
    s += "Task"

    def attempt(s: State) -> str:
        s += "try" + gen("t")
        s += select("ok", ["yes", "no"])
        if s["ok"] == "no":
            s += "again"
        return s["t"]

    last = s.loop(attempt, until="ok", stop_value="yes", limit=3)
    s += f"[{last.strip()}]" + gen("end")
    return last


def test_loop_is_recorded_once_with_all_its_ways() -> None:
    graph = retry.trace(strict=True)
    loop = next(n for n in graph if isinstance(n, Loop))
    assert (loop.until, loop.stop_value, loop.limit) == (Reference("attempt.2"), "yes", 3)
    assert [n.kind for n in loop.body] == ["text", "gen", "select", "switch"]
    assert findings(graph) == []
    assert_same(retry, retry.export())


def test_loop_inside_a_python_loop_has_an_id_each_time() -> None:
    @program
    def p(s: State):
        for _ in range(3):
            s += s.loop(lambda s: s.append(gen("t"))["t"], limit=2)
        return s.loop(lambda s: s.append(gen("u"))["u"], limit=1)

    assert [n.id for n in p.trace(strict=True) if isinstance(n, Loop)] == ["1", "1#2", "1#3", "3"]
    assert_same(p, p.export())


def test_loop_name_read_after_it_breaks_and_says_what_to_do() -> None:
    @program
    def p(s: State):
        s.loop(lambda s: s.append(gen("t")) and None, limit=2)
        s += s["t"]

    (end,) = breaks(p.trace())
    assert "return the value" in end.reason


def test_loop_body_that_uses_the_outer_state_breaks() -> None:
    @program
    def p(s: State):
        other = s.fork(1)[0]

        def body(inner: State) -> None:
            inner += gen("t")
            other.append("x")

        s.loop(body, limit=2)

    assert len(breaks(p.trace())) == 1


def test_map_of_an_unknown_list_is_a_map() -> None:
    @program
    def p(s: State):
        topics = gen("topics", schema=list[str])
        s += topics

        def each(branch: State, topic: str) -> str:
            branch += f"about {topic.upper()}: " + gen("text")
            return branch["text"].strip()

        found = s.map(s[topics], each)
        s += gen("end")
        return found

    graph = p.trace(strict=True)
    node = next(n for n in graph if isinstance(n, Map))
    assert [n.kind for n in node.body] == ["input", "text", "gen"]
    assert findings(graph) == []
    assert_same(p, p.export())


def test_map_of_known_items_is_a_fork_as_in_a_run() -> None:
    @program
    def p(s: State):
        return s.map(["a", "b"], lambda branch, item: branch.append(item + gen("v"))["v"])

    assert kinds(p.trace()) == ["fork", "text", "gen", "text", "gen", "return"]
    assert_same(p, p.export())


# arguments that stay unknown


@program
def answer(s: State, question: str, notes: list[str], strict: bool = False):
    s += user(question)
    for note in notes:
        s += f"- {note.strip()}\n"
    s += gen("a")
    return s["a"]


def test_symbolic_arguments_become_inputs_and_their_structure_is_kept() -> None:
    graph = answer.trace("Q?", ["x", "y"], symbolic=["question", "notes"])
    inputs = [n for n in graph if isinstance(n, Input)]
    assert [(n.name, n.type_name, n.structure) for n in inputs] == [
        ("question", "str", None),
        ("notes", "list", ["str", "str"]),
    ]
    assert findings(graph) == []
    exported = answer.export("Q?", ["x", "y"], symbolic=["question", "notes"])
    assert loads(dumps(exported)) == exported
    backend = mock({"a": ["1", "2"]})
    arguments = {"question": "Why?", "notes": [" n1 ", "n2"]}
    run = execute(exported, backend, RunSpec(options=RunOptions(backend=backend), arguments=arguments))
    assert run.seal().result(10).error is None
    eager = answer.run("Why?", [" n1 ", "n2"], options=RunOptions(backend=backend))
    assert backend.calls().prompts[0] == backend.calls().prompts[1]
    assert eager.value == "2"


def test_graph_refuses_arguments_of_another_structure() -> None:
    exported = answer.export("Q?", ["x", "y"], symbolic=["notes"])
    backend = mock({"a": "1"})
    with pytest.raises(GraphError, match="notes"):
        execute(exported, backend, RunSpec(options=RunOptions(backend=backend), arguments={"notes": ["only one"]}))


def test_symbolic_argument_without_a_value_has_its_annotations_type() -> None:
    graph = answer.trace(notes=[], symbolic=["question"])
    assert [n.type_name for n in graph if isinstance(n, Input)] == ["str"]


def test_symbolic_bool_is_split() -> None:
    @program
    def p(s: State, short: bool):
        s += "short" if short else "long"

    graph = p.trace(True, symbolic=["short"])
    switch = next(n for n in graph if isinstance(n, Switch))
    assert [arm.values for arm in switch.arms] == [(True,), (False,)]
    p.export(True, symbolic=["short"])


def test_symbolic_name_that_is_no_parameter_is_refused() -> None:
    with pytest.raises(TraceError, match="no such parameter"):
        answer.trace("Q", [], symbolic=["missing"])


def test_symbolic_leaf_that_cannot_stay_unknown_is_refused() -> None:
    @program
    def p(s: State, thing: object):
        s += "x"

    with pytest.raises(TraceError, match="cannot stay unknown"):
        p.trace(object(), symbolic=["thing"])


def test_symbolic_argument_used_as_a_number_breaks() -> None:
    @program
    def p(s: State, n: int):
        for _ in range(n):
            s += gen("x")

    assert len(breaks(p.trace(3, symbolic=["n"]))) == 1
    with pytest.raises(ExportError, match="range"):
        p.export(3, symbolic=["n"])


def test_symbolic_list_without_a_value_is_tried_with_lists_of_its_annotation() -> None:
    @program
    def p(s: State, topics: list[str], wanted: list[bool]):
        def each(branch: State, topic: str) -> str:
            branch += f"about {topic.upper()}: " + gen("text")
            return branch["text"]

        def maybe(branch: State, yes: bool) -> None:
            branch += "?"
            if yes:
                branch += gen("extra")

        s.map(wanted, maybe)
        return s.map(topics, each)

    graph = p.export(symbolic=["topics", "wanted"])
    assert [n.type_name for n in graph if isinstance(n, Input)] == ["list[str]", "list[bool]"]
    assert sum(isinstance(n, Map) for n in graph) == 2
