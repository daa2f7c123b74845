"""Appending: texts, calls, turns; what is refused, and where the message points."""

from __future__ import annotations

import pytest

from sglang_dsl import (
    RunOptions,
    State,
    assistant,
    assistant_begin,
    assistant_end,
    gen,
    image,
    program,
    raw,
    role,
    select,
    system,
    user,
)
from sglang_dsl.errors import ProgramError, RoleError, SpecError, UnknownNameError
from sglang_dsl.ir.nodes import Plain, Raw, Reference, Text
from sglang_dsl.ir.verify import findings


def run(body, backend, *args):
    return program(body).run(*args, options=RunOptions(backend=backend))


def test_append_of_texts_and_calls_in_one_statement_keeps_their_order(fake):
    def body(s: State):
        s += "a " + gen("x") + [" b ", gen("y")] + raw("<c>")
        return s["x"], s["y"]

    result = run(body, fake({"x": ["1"], "y": ["2"]}))
    assert result.value == ("1", "2")
    assert result.text == "a 1 b 2<c>"


def test_append_of_one_handle_twice_makes_two_calls(fake):
    def body(s: State):
        a = gen("a")
        s += a
        first = s[a]
        s += a
        return first, s[a], s["a"], s.all("a"), s.all(a)

    assert run(body, fake({"a": ["1", "2"]})).value == ("1", "2", "2", ["1", "2"], ["1", "2"])


def test_append_of_one_statement_is_one_extend(fake):
    backend = fake()

    def body(s: State):
        s += system("x", gen("a"))
        s.fork(3).append(user("hi") + assistant(gen("b")))

    run(body, backend)
    assert [len(ids) for ids in backend.runs[0].extends] == [4, 1, 18]


@pytest.mark.parametrize("thing", [5, 2.5, True, None, {"a": 1}, {1, 2}, b"x", object])
def test_append_of_something_that_is_no_text_is_refused_at_the_line(fake, thing):
    def body(s: State):
        s += thing

    with pytest.raises(ProgramError, match="not text or a call") as caught:
        run(body, fake())
    assert caught.value.origin.statement == "s += thing"


def test_append_of_a_number_says_what_to_write(fake):
    def body(s: State):
        s += 5

    with pytest.raises(ProgramError) as caught:
        run(body, fake())
    assert "s += str(5)" in str(caught.value)
    assert "^" in str(caught.value)


def test_append_of_a_state_or_branches_is_refused(fake):
    def body(s: State):
        b = s.fork(2)
        s += b

    with pytest.raises(ProgramError, match="Branches"):
        run(body, fake())


def test_append_of_an_empty_text_adds_nothing(fake):
    def body(s: State):
        s += ""
        s += []
        s.fork(1)

    assert [n.kind for n in run(body, fake()).graph] == ["fork"]


def test_append_of_a_lone_surrogate_is_refused(fake):
    def body(s: State):
        s += "a\ud800"

    with pytest.raises(ProgramError, match="lone surrogate at character 1"):
        run(body, fake())


def test_refused_append_changes_nothing(fake):
    def body(s: State):
        s += "a"
        with pytest.raises(ProgramError):
            s += ["b", gen("x"), 3]
        with pytest.raises(UnknownNameError):
            s["x"]
        s += "c"

    assert run(body, fake()).text == "ac"


def test_formatting_a_call_into_a_string_is_refused():
    for use in (lambda h: f"{h}", str, lambda h: "%s" % h, lambda h: "{}".format(h), bool, list):  # noqa: UP031, UP032
        with pytest.raises(ProgramError, match="gen"):
            use(gen("a"))


def test_control_text_of_a_user_stays_plain(fake):
    def body(s: State):
        s += "<|im_end|>" + raw("<|im_end|>")

    (node,) = run(body, fake()).graph
    assert isinstance(node, Text)
    assert node.pieces == (Plain("<|im_end|>"), Raw("<|im_end|>"))


def test_ref_mentions_a_value_without_waiting(fake):
    backend = fake(held=["a"])

    def body(s: State):
        s += gen("a")
        s += "You said " + s.ref("a")
        backend.runs[0].release("a")

    result = run(body, backend)
    assert [p for n in result.graph if isinstance(n, Text) for p in n.pieces] == [Plain("You said "), Reference("1")]
    assert result.text == "a1You said a1"


def test_image_is_refused_by_name(fake):
    def body(s: State):
        s += user(image("cat.png"))

    with pytest.raises(ProgramError, match=r"image\('cat.png'\)"):
        run(body, fake())


# turns ---------------------------------------------------------------------------------------------------------------


def test_turns_become_messages(fake):
    def body(s: State):
        s += system("be kind")
        with s.user():
            s += "  two"
        s += assistant("It is ", gen("m"))
        s += role("tool", '{"a": 1}')

    result = run(body, fake({"m": ["zinc"]}))
    assert result.state.messages() == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "  two"},
        {"role": "assistant", "content": "It is zinc"},
        {"role": "tool", "content": '{"a": 1}'},
    ]
    assert findings(result.graph) == []


def test_turn_inside_a_turn_is_refused_where_it_is_written(fake):
    with pytest.raises(RoleError, match="inside a 'user' turn"):
        user("a", assistant("b"))

    def body(s: State):
        with s.user():
            s += assistant("x")

    with pytest.raises(RoleError, match="begins inside an open 'user' turn") as caught:
        run(body, fake())
    assert caught.value.origin.statement == 's += assistant("x")'


def test_turn_is_closed_when_its_block_raises(fake):
    def body(s: State):
        try:
            with s.user():
                s += "hi"
                raise KeyError("x")
        except KeyError:
            pass
        s += assistant(gen("a"))
        return s["a"]

    result = run(body, fake({"a": ["fine"]}))
    assert result.value == "fine"
    assert [m["content"] for m in result.state.messages()] == ["hi", "fine"]


def test_turn_end_without_a_turn_is_refused(fake):
    def body(s: State):
        s += assistant_end()

    with pytest.raises(RoleError, match="no turn is open"):
        run(body, fake())


def test_fork_inside_an_open_turn_continues_it_in_each_branch(fake):
    def body(s: State):
        s += user("Name a metal.")
        s += assistant_begin()
        s += "It is "
        a, b = s.fork(2)
        a += gen("m")
        b += "zinc"
        a += assistant_end()
        b += assistant_end()
        return a.messages(), b.messages(), a.text

    left, right, text = run(body, fake({"m": ["iron"]})).value
    question = {"role": "user", "content": "Name a metal."}
    assert left == [question, {"role": "assistant", "content": "It is iron"}]
    assert right == [question, {"role": "assistant", "content": "It is zinc"}]
    assert text == "<user>Name a metal.</><assistant>It is iron</>"


def test_var_scope_names_the_text_inside(fake):
    def body(s: State):
        s += "a"
        with s.var_scope("story"):
            s += "b" + gen("x")
            s += "d"
        s += s.ref("story")
        return s["story"]

    result = run(body, fake({"x": ["c"]}))
    assert result.value == "bcd"
    assert result.text == "abcdbcd"


# names ---------------------------------------------------------------------------------------------------------------


def test_unknown_name_lists_the_nearest(fake):
    def body(s: State):
        s += gen("answer")
        return s["anwser"]

    with pytest.raises(UnknownNameError, match="did you mean 'answer'") as caught:
        run(body, fake())
    assert isinstance(caught.value, KeyError)
    assert caught.value.origin.statement == 'return s["anwser"]'


def test_unknown_handle_says_how_branches_are_read(fake):
    def body(s: State):
        a = gen("a")
        s.fork(2).append(a)
        return s[a]

    with pytest.raises(UnknownNameError, match="join"):
        run(body, fake())


def test_contains_tells_what_is_bound(fake):
    def body(s: State):
        a = gen("a")
        before = "a" in s, a in s
        s += a
        return before, ("a" in s, a in s)

    assert run(body, fake()).value == ((False, False), (True, True))


def test_select_binds_the_choice(fake):
    def body(s: State):
        kind = select("kind", ["x", "y"])
        s += kind
        return s[kind]

    assert run(body, fake({"kind": ["y"]})).value == "y"


@pytest.mark.parametrize("choices", [[], "abc", ["a", 1], ()])
def test_select_of_no_choices_is_refused_at_the_line(choices):
    with pytest.raises(SpecError) as caught:
        select("kind", choices)
    assert caught.value.origin.statement == 'select("kind", choices)'


def test_select_by_an_unknown_method_lists_those_known():
    with pytest.raises(SpecError, match="unconditional"):
        select("kind", ["a"], method="max")
