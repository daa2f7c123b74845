"""What a newcomer writes in the first hour, and what the answer is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import pytest

from sglang_dsl import RunOptions, assistant_begin, gen, program, tool, user
from sglang_dsl.errors import BranchError, ProgramError, RoleError, SpecError
from sglang_dsl.frontend.outputs import PartialOutput, output_of
from sglang_dsl.testing import cut_off, mock


@tool
def shout(text: str) -> str:
    return text.upper()


def test_state_added_instead_of_appended_to_is_refused(fake):
    @program
    def p(s):
        s = s + user("hi")

    with pytest.raises(ProgramError, match=r"appends nothing"):
        p.run(options=RunOptions(backend=fake()))


def test_join_of_an_unknown_mode_is_refused(fake):
    @program
    def p(s):
        branches = s.fork(2)
        branches += gen("v")
        return branches.join("v", mode="any")

    with pytest.raises(SpecError, match=r"'any' is unknown"):
        p.run(options=RunOptions(backend=fake()))


def test_branches_asked_for_a_name_tell_how_to_read_it(fake):
    @program
    def p(s):
        branches = s.fork(2)
        branches += gen("v")
        return branches["v"]

    with pytest.raises(BranchError, match=r"branches\.join\('v'\)"):
        p.run(options=RunOptions(backend=fake()))


def test_option_given_like_an_argument_is_named_as_an_option(fake):
    @program
    def p(s, text):
        s += text

    @program
    def takes_all(s, **rest):
        return rest

    with pytest.raises(ProgramError, match=r"options=RunOptions\(backend=\.\.\.\)"):
        p.run("a", backend=fake())
    assert takes_all.run(backend="x", options=RunOptions(backend=fake())).value == {"backend": "x"}


def test_parameter_called_like_an_option_is_the_programs_own(fake):
    @program
    def p(s, seed):
        return seed

    assert p.run(seed="mine", options=RunOptions(backend=fake())).value == "mine"


def test_returned_handle_and_returned_coroutine_are_refused(fake):
    @program
    def handle(s):
        s += gen("x")
        return gen("x")

    @program
    def coroutine(s):
        s += gen("x")
        return s.get("x")

    with pytest.raises(ProgramError, match=r"returned gen\('x'\) itself"):
        handle.run(options=RunOptions(backend=fake()))
    with pytest.raises(ProgramError, match="a coroutine that nobody awaits"):
        coroutine.run(options=RunOptions(backend=fake()))


def test_tool_takes_a_mentioned_value_without_waiting_and_names_a_handle(fake):
    word = gen("word")

    @program
    def p(s):
        s += word
        return s.call(shout, s.ref(word))

    @program
    def by_handle(s):
        s += word
        return s.call(shout, word)

    @program
    def wrong(s):
        return s.call(shout, word)

    with mock({"word": "tent"}) as backend:
        assert p.run(options=RunOptions(backend=backend)).value == "TENT"
        assert by_handle.run(options=RunOptions(backend=backend)).value == "TENT"
    with pytest.raises(ProgramError, match=r"gen\('word'\) has not been appended"):
        wrong.run(options=RunOptions(backend=fake()))


def test_stream_gives_its_result_after_the_text_and_refuses_before(fake):
    @program
    def p(s):
        s += "a"
        return 5

    stream = p.stream(options=RunOptions(backend=fake()))
    with pytest.raises(ProgramError, match="not begun"):
        _ = stream.result
    assert "".join(stream) == "a"
    assert stream.result.value == 5


def test_handle_compared_with_a_value_is_refused_and_with_itself_is_not(fake):
    a, b = gen("a"), gen("a")
    assert a == a
    assert a != b
    assert {a: 1}[a] == 1
    with pytest.raises(ProgramError, match="compared with 'yes'"):
        _ = a == "yes"


def test_text_of_branches_with_an_open_turn_is_not_appended(fake):
    @program
    def p(s):
        branches = s.fork(2)
        branches += assistant_begin()
        branches += gen("v")
        branches.concat()

    with pytest.raises(RoleError, match="branch 0 ends with assistant turn open, its parent has no turn open"):
        p.run(options=RunOptions(backend=fake()))


def test_samples_and_joined_calls_have_their_metas(fake):
    @program
    def p(s):
        s += gen("one")
        s += gen("samples", n=2)
        branches = s.fork(3)
        branches += gen("joined", n=2)
        branches.join("joined")
        with pytest.raises(ProgramError, match=r"s\.metas"):
            s.meta("samples")
        return [len(s.metas(name)) for name in ("one", "samples", "joined")]

    assert p.run(options=RunOptions(backend=fake())).value == [1, 2, 6]


class Colour(Enum):
    RED = "red"


@dataclass
class Name:
    name: str


def test_partial_output_of_a_typed_call_is_its_text():
    @program
    def p(s):
        s += gen("name", type=Name, max_tokens=64, partial_ok=True)
        return s["name"]

    with mock({"name": [cut_off('{"name": "Ana"}', after=3), '{"name": "Ana"}']}) as backend:
        partial, whole = (p.run(options=RunOptions(backend=backend)).value for _ in range(2))
    assert '{"name": "Ana"}'.startswith(partial)
    assert whole == Name("Ana")


@pytest.mark.parametrize(
    ("wanted", "data", "read"),
    [(float, "1.", "1."), (float, 1.5, 1.5), (Colour, "re", "re"), (Colour, "red", Colour.RED), (Name, '{"na', '{"na')],
)
def test_partial_text_is_never_made_into_a_value(wanted, data, read):
    convert = output_of(wanted).convert
    assert convert is not None
    found = PartialOutput(convert)(data)
    assert found == read
    assert type(found) is type(read)
