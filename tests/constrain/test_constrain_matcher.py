import json
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_dsl.errors import ConstraintError
from sglang_dsl.ir.specs import ConstraintSpec
from sglang_dsl.runtime.constrain.compile import CompiledConstraint, compile_constraint

PIECES = [
    b"",
    b"a",
    b"ab",
    b'"',
    b'{"',
    b"\xf0\x9f",
    b"\x99\x82",
    b"\xc3",
    b"\xa9",
    b"\xed\xa0\x80",
    b"\xff",
    b"\xc3\xa9!",
]


def regex(source):
    return compile_constraint(ConstraintSpec(kind="regex", text=source)).matcher(PIECES.__getitem__)


def choices(*texts):
    return compile_constraint(ConstraintSpec.choices(texts))


def test_matcher_half_a_character_is_accepted_if_an_allowed_one_begins_so():
    matcher = regex("🙂|é!")
    assert matcher.accept(PIECES.index(b"\xf0\x9f"))
    assert not matcher.may_end
    assert not matcher.accept(PIECES.index(b"a"))
    assert matcher.accept(PIECES.index(b"\x99\x82"))
    assert matcher.must_end


@pytest.mark.parametrize("piece", [b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90", b"\xe0\x80", b"\x80"])
def test_matcher_invalid_utf8_is_never_accepted(piece):
    assert not regex(r"[\s\S]*").allows(piece)


def test_matcher_half_character_outside_the_allowed_range_is_refused():
    matcher = regex("[a-zà-ÿ]+")
    assert matcher.allows(b"\xc3")
    assert not matcher.allows(b"\xc2")
    assert not matcher.allows(b"\xf0\x9f")


def test_matcher_token_without_bytes_is_never_accepted():
    assert not regex("a*").accept(0)


def test_matcher_fork_goes_its_own_way():
    matcher = regex("ab*|ac")
    assert matcher.accept_text("a")
    other = matcher.fork()
    assert matcher.accept_text("c")
    assert matcher.must_end
    assert other.accept_text("bb")
    assert other.may_end
    assert not other.must_end


def test_matcher_after_the_end_refuses_everything_and_stays():
    matcher = compile_constraint(ConstraintSpec.json_schema({"type": "object", "properties": {}})).matcher()
    assert matcher.accept_text("{}")
    for _ in range(3):
        assert not matcher.accept_text("x")
        assert not matcher.accept_bytes(b" ")
        assert matcher.must_end


@pytest.mark.parametrize("order", [("New", "New York"), ("New York", "New"), ("1", "10"), ("yesterday", "yes")])
def test_choices_that_begin_alike_are_all_reachable(order):
    compiled = choices(*order)
    assert all(compiled.matches(text) for text in order)
    matcher = compiled.matcher()
    assert matcher.accept_text(min(order, key=len))
    assert matcher.may_end
    assert not matcher.must_end


@pytest.mark.parametrize(
    ("text", "message"), [("[]", "empty"), ('["a",1]', "list of strings"), ("{", "line 1"), ('"a"', "list")]
)
def test_choices_malformed_are_refused(text, message):
    with pytest.raises(ConstraintError, match=message):
        compile_constraint(ConstraintSpec(kind="choices", text=text))


def test_choices_many_and_nested_prefixes_compile():
    many = [f"option {i}" for i in range(5000)]
    assert choices(*many).matches("option 4999")
    nested = ["a" * i for i in range(1, 500)]
    assert choices(*nested).matches("a" * 450)
    assert not choices(*nested).matches("a" * 2000)


def test_choices_empty_one_may_end_at_once():
    assert choices("", "x").matcher().may_end


def test_forced_text_runs_to_the_next_choice():
    matcher = choices("hello world", "hello there").matcher()
    assert matcher.forced_text() == "hello "
    assert matcher.accept_text("hello w")
    assert matcher.forced_text() == "orld"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=6), min_size=1, max_size=8), st.text(max_size=6))
def test_choices_random_match_exactly_their_members(texts, other):
    compiled = choices(*texts)
    assert all(compiled.matches(text) for text in texts)
    assert compiled.matches(other) == (other in texts)


def test_completion_continues_what_is_there_and_ends():
    compiled = compile_constraint(
        ConstraintSpec.json_schema({"type": "object", "properties": {"a": {"type": "integer"}}})
    )
    for seed in range(20):
        whole = '{"a": 4' + compiled.complete('{"a": 4', Random(seed))
        assert json.loads(whole)["a"] >= 4
    with pytest.raises(ValueError, match="no text that begins"):
        compiled.complete('{"b"', Random(0))


def test_sample_recursive_schema_is_bounded():
    tree = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}, "minItems": 2}}}
    compiled = compile_constraint(ConstraintSpec.json_schema(tree))
    for seed in range(20):
        text = compiled.sample_text(Random(seed), characters=100)
        assert compiled.matches(text)
        assert len(text) < 2000


def test_compile_same_spec_gives_the_same_object():
    spec = ConstraintSpec.json_schema({"type": "integer"})
    assert compile_constraint(spec) is compile_constraint(ConstraintSpec.json_schema({"type": "integer"}))
    assert compile_constraint(spec) is not compile_constraint(ConstraintSpec.json_schema({"type": "string"}))


def test_automaton_memory_emptied_midway_changes_nothing(monkeypatch):
    from sglang_dsl.runtime.constrain import automaton

    monkeypatch.setattr(automaton, "MAX_STATES", 5)
    compiled = compile_constraint(ConstraintSpec(kind="regex", text="(ab|a(c|d)){3,9}x"))
    assert compiled.matches("abacadabx")
    assert not compiled.matches("abacx")


def test_matchers_of_one_constraint_agree_across_threads():
    spec = ConstraintSpec.json_schema({"type": "array", "items": {"type": "string", "maxLength": 9}})
    texts = [compile_constraint(spec).sample_text(Random(seed)) for seed in range(30)]
    fresh = CompiledConstraint(spec)
    with ThreadPoolExecutor(6) as threads:
        results = list(
            threads.map(lambda _: [fresh.matches(text) and not fresh.matches(text + "]") for text in texts], range(6))
        )
    assert results == [[True] * len(texts)] * 6
