"""Golden messages: what a user reads after a first mistake. `{line}` is the line number, which edits here may move."""

from __future__ import annotations

import pytest

from sglang_dsl import RunOptions, State, assistant, gen, program, raw, select, user
from sglang_dsl.errors import DslError


def fork_of_nothing(s: State):
    s.fork(0)


def misspelt(s: State):
    s += "q" + gen("answer")
    return s["anwser"]


def number(s: State):
    s += 5


def none(s: State):
    s += print("x")


def formatted(s: State):
    s += "Answer: " + str(gen("a"))


def nested_turns(s: State):
    with s.user():
        s += assistant("x")


def branch_in_parent(s: State):
    a = gen("a")
    s.fork(2).append(a)
    return s[a]


def after_join(s: State):
    branches = s.fork(2)
    branches += gen("v")
    branches.join("v")
    branches[1] += "more"


def too_many_winners(s: State):
    v = gen("v")
    branches = s.fork(2)
    branches += v
    branches.first(v, k=3)


def option(s: State):
    s += gen("a", temperature=-1)


def two_shapes(s: State):
    s += gen("a", type=int, regex="[0-9]+")


def bad_regex(s: State):
    s += gen("a", regex="(")


def no_choices(s: State):
    s += select("kind", [])


def by_number(s: State):
    return s[0]


async def too_early(s: State):
    s += gen("held")
    return s["held"]


MESSAGES = {
    fork_of_nothing: """\
[E101] invalid fork: fork(0): a fork has at least one branch
  in fork_of_nothing, {file}:{line}
{line:>6} | s.fork(0)
       | ^^^^^^^^^
  write instead: s.fork(3); skip the fork where there is nothing to branch into""",
    misspelt: """\
[E102] unknown name: no append so far binds the name 'anwser'
  in {file}:{line}
{line:>6} | return s["anwser"]
       |        ^^^^^^^^^^^
  write instead: did you mean 'answer'?""",
    number: """\
[E100] invalid program: 5 is not text or a call (its type is int)
  in number, {file}:{line}
{line:>6} | s += 5
       | ^^^^^^
  write instead: s += str(5), or an f-string with the format you want""",
    none: """\
[E100] invalid program: None is not text or a call
  in none, {file}:{line}
{line:>6} | s += print("x")
       | ^^^^^^^^^^^^^^^
  write instead: append a string; a function that returns nothing was called here, perhaps""",
    formatted: """\
[E100] invalid program: gen('a') was turned into a string, but it has no text before the model has run
  in {file}:{line}
{line:>6} | s += "Answer: " + str(gen("a"))
       |                   ^^^^^^^^^^^^^
  write instead: append it: s += "text" + gen(...); afterwards s[name] is its text""",
    nested_turns: """\
[E104] invalid role: a turn of 'assistant' begins inside an open 'user' turn
  in nested_turns, {file}:{line}
{line:>6} | s += assistant("x")
       | ^^^^^^^^^^^^^^^^^^^
  write instead: end the first turn before the next begins; turns do not nest""",
    branch_in_parent: """\
[E102] unknown name: gen('a') has not been appended to this state
  in {file}:{line}
{line:>6} | return s[a]
       |        ^^^^
  write instead: append it before reading; a handle appended in branches is read with branches.join(handle)""",
    after_join: """\
[E103] branch misused: this branch was joined already, at after_join, {file}:{line_before}
  in after_join, {file}:{line}
{line:>6} | branches[1] += "more"
       | ^^^^^^^^^^^^^^^^^^^^^
  write instead: append before the join, or fork again; reading is still possible""",
    too_many_winners: """\
[E110] invalid option: mode 'first' of 2 branches with k=3
  in too_many_winners, {file}:{line}
{line:>6} | branches.first(v, k=3)
       | ^^^^^^^^^^^^^^^^^^^^^^
  write instead: give k between 1 and 2""",
    option: """\
[E110] invalid option: temperature=-1 is out of range
  in {file}:{line}
{line:>6} | s += gen("a", temperature=-1)
       |      ^^^^^^^^^^^^^^^^^^^^^^^^
  write instead: temperature has to be at least 0""",
    two_shapes: """\
[E110] invalid option: type and regex exclude each other
  in {file}:{line}
{line:>6} | s += gen("a", type=int, regex="[0-9]+")
       |      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  write instead: keep one of type, regex""",
    bad_regex: """\
[E120] invalid constraint: regex '(' is not a regular expression: missing ), unterminated subpattern at position 0
  in {file}:{line}
{line:>6} | s += gen("a", regex="(")
       |      ^^^^^^^^^^^^^^^^^^^
  write instead: test it with re.compile""",
    no_choices: """\
[E110] invalid option: select has no choices
  in {file}:{line}
{line:>6} | s += select("kind", [])
       |      ^^^^^^^^^^^^^^^^^^
  write instead: select("kind", ["a", "b"])""",
    by_number: """\
[E100] invalid program: a state is read by name or by handle, not by int
  in {file}:{line}
{line:>6} | return s[0]
       |        ^^^^
  write instead: s['name'], or s[handle] with handle = gen(...)""",
    too_early: """\
[E106] value not there yet: gen('held') was read in an async program before its value existed
  in {file}:{line}
{line:>6} | return s["held"]
       |        ^^^^^^^^^
  write instead: value = await s.get(x)""",
}


@pytest.mark.parametrize("body", MESSAGES, ids=lambda body: body.__name__)
def test_message_of_a_first_mistake_is_exactly(fake, body):
    with pytest.raises(DslError) as caught:
        program(body).run(options=RunOptions(backend=fake(held=["held"])))
    line = caught.value.origin.line
    assert body.__code__.co_firstlineno < line < body.__code__.co_firstlineno + 6
    assert str(caught.value) == MESSAGES[body].format(file=__file__, line=line, line_before=line - 1)


def test_message_of_turns_nested_in_one_expression_points_at_the_outer_one():
    with pytest.raises(DslError) as caught:
        user("a", assistant("b"))
    assert caught.value.origin.statement == 'user("a", assistant("b"))'
    with pytest.raises(DslError, match="raw takes a string"):
        raw(5)  # type: ignore[arg-type]
