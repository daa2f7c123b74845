import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_dsl.errors import ConstraintError
from sglang_dsl.ir.specs import ConstraintSpec
from sglang_dsl.runtime.constrain.compile import compile_constraint


def regex(source):
    return compile_constraint(ConstraintSpec(kind="regex", text=source))


def patterns():
    """Small regexes over a small alphabet, so that random texts often match."""
    atoms = st.sampled_from(["a", "b", "é", ".", "[ab]", "[^a]", r"\d", r"\w", r"\S", "[^\\d]", "1", r"\n", "(?:ab)"])

    def grow(inner):
        suffix = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}?", "{2,}", "*?"])
        return st.one_of(
            st.tuples(inner, inner).map("".join),
            st.tuples(inner, inner).map(lambda p: f"(?:{p[0]}|{p[1]})"),
            st.tuples(inner, suffix).map(lambda p: f"({p[0]}){p[1]}"),
        )

    return st.recursive(atoms, grow, max_leaves=6)


@settings(max_examples=300, deadline=None)
@given(patterns(), st.lists(st.text(alphabet="ab1é\n_", max_size=6), min_size=4, max_size=8))
def test_regex_random_agrees_with_python(source, texts):
    compiled = regex(source)
    for text in texts:
        assert compiled.matches(text) == (re.fullmatch(source, text) is not None), (source, text)


@settings(max_examples=100, deadline=None)
@given(patterns(), st.randoms(use_true_random=False))
def test_regex_samples_match_in_python(source, rng):
    assert re.fullmatch(source, regex(source).sample_text(rng, characters=20))


@pytest.mark.parametrize(
    ("source", "text", "matches"),
    [
        (r"^a|b$", "a", True),
        (r"^(a|b)$", "b", True),
        (r"(a|ab)(c|bcd)", "abcd", True),
        (r"x*", "", True),
        (r"(a?)*b", "aaab", True),
        (r"(|a){3}", "aa", True),
        (r"\d+", "٣", True),
        (r"\w", "ß", True),
        (r"\s", "\u2003", True),
        (r".", "\n", False),
        (r"[\s\S]", "\n", True),
        (r"🙂+", "🙂🙂", True),
        (r"[^\x00-\x7f]", "é", True),
        (r"a{3}", "aa", False),
        ("a\x00b", "a\x00b", True),
    ],
)
def test_regex_special_texts_match_as_in_python(source, text, matches):
    assert (re.fullmatch(source, text) is not None) == matches
    assert regex(source).matches(text) == matches


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (r"a(?=b)", "looking around"),
        (r"a(?!b)", "position 1"),
        (r"x(?<=b)", "position 1"),
        (r"(a)\1", "back reference"),
        (r"abc\b", "position 3"),
        (r"(?i)a", "flags"),
        (r"a(?i:b)", "flags inside a group"),
        (r"a^b", "anchor in the middle is not supported, at position 1"),
        (r"\p{L}", "position 0"),
        (r"(a", "position 0"),
        (r"a**", "position 2"),
        (r"(?P<n>a)(?P=n)", "back reference"),
        (r"(a{1,1000}){1,1000}", "1000000 times"),
        ("(" * 20000 + "a" + ")" * 20000, "nested too deep"),
    ],
)
def test_regex_unsupported_is_refused_with_its_position(source, message):
    with pytest.raises(ConstraintError, match=re.escape(message)):
        regex(source)


def test_regex_ambiguous_within_limits_keeps_few_states():
    text = "ab" * 200
    assert regex(r".*a.{14}").matches(text) == (re.fullmatch(r".*a.{14}", text) is not None)
    assert regex(r"(a|b|ab)*c{0,500}").matches(text + "c" * 500)
    assert regex(r"((a+)+)+b").matches("a" * 300 + "b")


def test_regex_hopelessly_ambiguous_is_an_error_not_a_blow_up():
    with pytest.raises(ConstraintError, match="ways at once"):
        regex(r"((a{0,300}){0,300})b").matches("a" * 300)
