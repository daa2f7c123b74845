"""The public bug cases about tracing, each with its right value."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest
from trial_runs import assert_same, breaks, everything, kinds

from sglang_dsl import RunOptions, State, gen, program, select, use
from sglang_dsl.errors import DecorationError, TraceError
from sglang_dsl.ir.nodes import Fork, Gen, Join, Plain, Reference, Return, Switch, Text
from sglang_dsl.ir.verify import findings
from sglang_dsl.runtime.backends.mock import mock

# 28: comparing or formatting a value that does not exist yet


@program
def tint(s: State):
    s += "Pick " + select("f", ["teal", "red", "blue"])
    s += "A" if s["f"] == "teal" else "B"
    s += f"<{s['f']}>"
    s += str({"teal": 1}.get(s["f"]))
    while s["f"] == "red":
        s += select("f", ["red", "blue"])
        if len(s.all("f")) > 3:
            break
    match s["f"]:
        case "blue":
            s += "matched"
    return s["f"]


def test_case_28_a_select_is_split_and_nothing_is_guessed() -> None:
    graph = tint.trace()
    assert breaks(graph) == []
    assert findings(graph) == []
    switch = next(n for n in graph if isinstance(n, Switch))
    assert {arm.values for arm in switch.arms} == {("teal",), ("red", "blue")}
    first = {arm.values: [n.pieces for n in arm.graph if isinstance(n, Text)] for arm in switch.arms}
    assert first[("teal",)][0] == (Plain("A"),)
    assert first[("red", "blue")][0] == (Plain("B"),)
    assert_same(tint, tint.export())


@pytest.mark.parametrize(
    "ask",
    [
        lambda f: "A" if f == "teal" else "B",
        lambda f: {"teal": 1}.get(f),
        lambda f: [1 for _ in "x" if f != "x"],
        lambda f: bool(f),
        lambda f: f in ("teal", "red"),
        lambda f: f < "teal",
        lambda f: hash(f),
    ],
)
def test_case_28_a_free_text_breaks_with_the_users_line(ask) -> None:
    @program
    def p(s: State):
        s += "Pick " + gen("f")
        ask(s["f"])
        s += "never"

    graph = p.trace()
    (end,) = breaks(graph)
    assert kinds(graph) == ["text", "gen", "break"]
    assert end.origin is not None
    assert end.origin.file == __file__
    with pytest.raises(TraceError, match="does not exist while tracing") as caught:
        p.trace(strict=True)
    assert "lambda f" in str(caught.value)
    assert "write instead" in str(caught.value)


def test_case_28_formatting_is_a_reference() -> None:
    @program
    def p(s: State):
        s += "Pick " + gen("f")
        s += f"<{s['f']}>"

    text = [n for n in p.trace() if isinstance(n, Text)][-1]
    assert text.pieces == (Plain("<"), Reference("1.1"), Plain(">"))


# 30: iterating, len, int, slicing, unpacking


@pytest.mark.parametrize(
    ("ask", "what"),
    [
        (lambda v: [w + "!" for w in v.split(",")], "split"),
        (len, "len"),
        (int, "int"),
        (lambda v: v.split(), "split"),
        (lambda v: [*v], "iteration"),
        (lambda v: range(int(v)), "int"),
    ],
)
def test_case_30_each_is_one_named_break(ask, what) -> None:
    @program
    def p(s: State):
        s += gen("v")
        ask(s["v"])

    (end,) = breaks(p.trace())
    assert what in end.reason
    assert end.on == Reference("1")


def test_case_30_unpacking_a_select_gives_its_parts() -> None:
    @program
    def p(s: State):
        s += select("pair", ["a b", "c d"])
        one, two = s["pair"].split()
        s += two + one

    assert_same(p, p.export())


def test_case_30_a_slice_is_recorded() -> None:
    @program
    def p(s: State):
        s += gen("v")
        s += s["v"][:3]

    assert_same(p, p.export())


def test_case_30_a_fork_has_len_iteration_and_unpacking() -> None:
    @program
    def p(s: State):
        branches = s.fork(2)
        one, two = branches
        one += f"{len(branches)}"
        two += gen("v")
        assert [b.index for b in branches] == [0, 1]

    assert kinds(p.trace()) == ["fork", "text", "gen"]


# 31: fork, join and calls of other programs under trace


@program
def sub(s: State):
    with s.var_scope("part"):
        s += "sub" + gen("q")
    s += s["part"]


@program
def whole(s: State):
    s += "r" + gen("a")
    fk = s.fork(2)
    for i in range(2):
        fk[i] += f"b{i}" + gen("v")
    fk.join()
    with s.user():
        s += f"{s['v'][1]}"
    sub(s)
    s += gen("z")


def test_case_31_everything_is_a_node_and_the_graph_gives_the_same_text() -> None:
    graph = whole.trace()
    assert kinds(graph) == [
        "text", "gen", "fork", "text", "gen", "text", "gen", "join", "role_begin", "text", "role_end", "text", "gen", "text", "gen",
    ]  # fmt: skip
    fork = next(n for n in graph if isinstance(n, Fork))
    join = next(n for n in graph if isinstance(n, Join))
    assert join.context == join.fork == fork.id
    assert [(n.context, n.branch) for n in graph if n.context == fork.id and n.branch is not None] == [
        (fork.id, 0),
        (fork.id, 1),
    ]
    assert {n.scope for n in graph} == {"", "sub"}
    assert_same(whole, whole.export())


def test_case_31_ids_of_a_trace_are_those_of_a_run() -> None:
    script = {"a": ["1"], "v": ["2", "3"], "q": ["4"], "z": ["5"]}
    ran = whole.run(options=RunOptions(backend=mock(script))).graph
    traced = whole.trace()
    assert [n.id for n in traced] == [n.id for n in ran]
    assert [n for n in traced if isinstance(n, Gen)] == [n for n in ran if isinstance(n, Gen)]


# 32: async, generator, event loop


def test_case_32_an_async_program_is_traced_also_inside_a_loop() -> None:
    @program
    async def p(s: State):
        s += gen("a")
        s += "<" + await s.get("a") + ">"

        async def body(branch: State) -> str:
            branch += gen("b")
            return await branch.get("b")

        found = await s.fork(2).map(body)
        s += found[1]
        return found[0]

    async def inside() -> object:
        return p.trace()

    graph = p.trace()
    assert asyncio.run(inside()) == graph
    assert breaks(graph) == []
    assert next(n for n in graph if isinstance(n, Return)).value == Reference("5[0]") or graph["return"].value


def test_case_32_a_generator_is_refused_when_decorated() -> None:
    with pytest.raises(DecorationError):

        @program
        def p(s: State):
            yield s


# 33: context variables and settings inside branches


def test_case_33_a_traced_body_sees_the_callers_context() -> None:
    place: contextvars.ContextVar[str] = contextvars.ContextVar("place", default="nowhere")

    @program
    def p(s: State):
        def body(branch: State) -> None:
            branch += place.get() + gen("v")

        s.fork(3).map(body)

    def text_of_trace() -> set[str]:
        return {piece.text for n in p.trace() if isinstance(n, Text) for piece in n.pieces if isinstance(piece, Plain)}

    place.set("A")
    with use(backend="mock"):
        assert text_of_trace() == {"A"}
    found: list[set[str]] = []
    context = contextvars.copy_context()
    context.run(place.set, "B")
    thread = threading.Thread(target=lambda: found.append(context.run(text_of_trace)))
    thread.start()
    thread.join()
    assert found == [{"B"}]


def test_two_traces_at_once_in_two_threads_do_not_mix() -> None:
    found: dict[str, list[str]] = {}

    def follow(name: str) -> None:
        @program
        def p(s: State):
            s += name + select("k", ["a", "b"])
            s += name if s["k"] == "a" else name + "!"

        for _ in range(20):
            texts = [
                q.text for n in everything(p.trace()) if isinstance(n, Text) for q in n.pieces if isinstance(q, Plain)
            ]
            found.setdefault(name, []).extend(texts)

    threads = [threading.Thread(target=follow, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {text.rstrip("!") for text in found["one"]} == {"one"}
    assert {text.rstrip("!") for text in found["two"]} == {"two"}


def test_a_trace_reads_the_text_and_the_spans_of_a_state() -> None:
    @program
    def p(s: State):
        with s.var_scope("part"):
            s += "sub" + gen("q")
        s += s["part"]
        s += s.text
        s += gen("z")

    assert "break" not in kinds(p.trace())
