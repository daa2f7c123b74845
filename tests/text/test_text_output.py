"""Stops, UTF-8 and what is kept, through OutputText."""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise

import pytest
import regex
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sglang_dsl.errors import SpecError
from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.runtime.text import output as stops_module
from sglang_dsl.runtime.text.output import Ending, OutputText
from sglang_dsl.runtime.text.stop_patterns import MAX_STATES, PatternAutomaton, PatternSearch, automaton
from sglang_dsl.runtime.text.tokenizer import PieceTokenizer

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "</e>")


class Fed:
    """The outcome of feeding pieces (bytes or text; "<...>" of CONTROL by name) until the output ends."""

    def __init__(self, *pieces: bytes | str, **sampling: object) -> None:
        self.tokenizer = PieceTokenizer(CONTROL)
        self.ids = [self.tokenizer.control_id(p) if p in CONTROL else self.tokenizer.intern(p) for p in pieces]
        stop_ids = tuple(self.ids[i] for i in sampling.pop("stop_at", ()))  # type: ignore[attr-defined]
        self.output = OutputText(self.tokenizer, SamplingSpec(stop_token_ids=stop_ids, **sampling))  # type: ignore[arg-type]
        self.deltas: list[str] = []
        for token_id in self.ids:
            self.deltas.append(self.output.feed(token_id))
            if self.output.ending:
                break
        self.rest = self.output.finish()

    @property
    def text(self) -> str:
        assert "".join(self.deltas) + self.rest == self.output.text
        assert self.tokenizer.decode(self.output.token_ids) + self.output.tail_text == self.output.text
        return self.output.text

    @property
    def kept(self) -> list[bytes]:
        return [self.tokenizer.token_bytes(i) for i in self.output.token_ids]


# --- stop strings (cases 6 and 7) ------------------------------------------------------------------------------------


def test_stop_over_several_tokens_is_never_shown_in_part():
    fed = Fed("red ", "gr", "een", "-lig", "ht now", stop=("green-light",))
    assert fed.deltas == ["red ", "", "", "", ""]
    assert fed.text == "red "
    assert fed.output.ending == Ending("stop", "green-light")
    assert fed.kept == [b"red "]


def test_stop_over_several_tokens_with_include_stop_is_there_once():
    fed = Fed("red ", "gr", "een", "-lig", "ht now", stop=("green-light",), include_stop=True)
    assert fed.text == "red green-light"
    assert fed.kept == [b"red ", b"gr", b"een", b"-lig"]
    assert fed.output.tail_text == "ht"


def test_stop_near_miss_is_released_at_once():
    fed = Fed("5 gr", "ee", "k olives", stop=("green-light",))
    assert fed.deltas == ["5 ", "", "greek olives"]
    assert fed.rest == ""
    assert fed.output.ending is None


def test_stop_begun_at_the_end_of_the_stream_is_flushed():
    assert Fed("x gr", stop=("green-light",)).text == "x gr"
    at_eos = Fed("x gr", "<|endoftext|>", stop=("green-light",))
    assert at_eos.deltas == ["x ", "gr"]
    assert at_eos.output.ending == Ending("eos", at_eos.tokenizer.eos_id)


def test_stops_of_several_the_earliest_match_wins():
    fed = Fed("x a b c", stop=("b c", "a b"))
    assert fed.text == "x "
    assert fed.output.ending == Ending("stop", "a b")
    assert fed.output.tail_text == "x "


def test_stop_that_ends_first_wins_however_the_text_is_cut():
    for pieces in (["abcd"], ["a", "b", "c", "d"], ["ab", "cd"]):
        assert Fed(*pieces, stop=("abcd", "bc")).text == "a"


def test_stops_that_end_together_the_longest_wins():
    assert Fed("x green light", stop=("light", "green light")).text == "x "


def test_stop_in_the_prompt_does_not_match():
    fed = Fed("go END", stop=("END",))  # the prompt is not given to the output at all
    assert fed.text == "go "


def test_stop_that_is_empty_is_refused():
    with pytest.raises(SpecError, match="non-empty"):
        SamplingSpec(stop=("",))


def test_stop_holds_only_the_longest_possible_beginning():
    fed = Fed("aab", "aaba", stop=("aabaac",))
    assert fed.deltas == ["", "aab"]
    assert fed.rest == "aaba"


def test_stop_in_mid_token_keeps_the_text_before_it_as_a_tail():
    fed = Fed("one", " two|three", stop=("|",))
    assert fed.text == "one two"
    assert fed.kept == [b"one"]
    assert fed.output.tail_text == " two"


def test_stop_before_min_tokens_is_passed_over():
    fed = Fed("a.", "b", ".", "c", stop=(".",), min_tokens=2)
    assert fed.text == "a.b"


def test_stop_that_begins_within_min_tokens_does_not_match_later():
    assert Fed("a", "E", "ND", stop=("END",), min_tokens=2).text == "aEND"


# --- stop token ids (case 9) -----------------------------------------------------------------------------------------


def test_stop_id_special_removes_no_characters():
    fed = Fed("good", " day", "</e>", "x", stop_at=[2])
    assert fed.text == "good day"
    assert fed.output.ending == Ending("stop", fed.ids[2])
    assert fed.output.kept_tokens == 2


def test_stop_id_plain_is_dropped():
    fed = Fed("good", " day", "!", stop_at=[2])
    assert fed.text == "good day"
    assert fed.output.ending == Ending("stop", fed.ids[2])


def test_stop_id_plain_with_include_stop_is_kept():
    fed = Fed("good", " day", "!", stop_at=[2], include_stop=True)
    assert fed.text == "good day!"
    assert fed.kept == [b"good", b" day", b"!"]


def test_stop_id_outside_the_vocabulary_is_refused():
    with pytest.raises(SpecError, match=r"\[1000000000\] are outside the vocabulary of 1048576"):
        OutputText(PieceTokenizer(), SamplingSpec(stop_token_ids=(10**9,)))


def test_end_of_text_with_ignore_eos_goes_on():
    fed = Fed("a", "<|endoftext|>", "b", ignore_eos=True)
    assert fed.text == "ab"
    assert fed.output.ending is None
    assert fed.output.kept_tokens == 3


def test_control_tokens_inside_are_hidden():
    assert Fed("a", "</e>", "b").text == "ab"


def test_output_that_has_ended_takes_no_more_tokens():
    fed = Fed("a")
    with pytest.raises(ValueError, match="has ended"):
        fed.output.feed(fed.ids[0])


# --- UTF-8 (case 11) -------------------------------------------------------------------------------------------------

SMILE = (b"ok", b"\xf0\x9f", b"\x99\x82", b"!")


def test_character_over_two_tokens_arrives_whole():
    fed = Fed(*SMILE)
    assert fed.deltas == ["ok", "", "🙂", "!"]
    assert fed.text == "ok🙂!"


def test_character_over_two_tokens_matches_a_stop():
    fed = Fed(*SMILE, stop=("🙂",))
    assert fed.text == "ok"
    assert fed.kept == [b"ok"]


def test_half_character_is_invisible_to_stops():
    assert Fed(*SMILE, stop=("\ufffd",)).text == "ok🙂!"
    assert Fed("a", b"\xff", "b", stop=("\ufffd",)).text == "a\ufffdb"


def test_half_character_at_the_end_is_replaced():
    fed = Fed("ok", b"\xf0\x9f")
    assert fed.deltas == ["ok", ""]
    assert fed.rest == "\ufffd"


def test_half_character_before_a_stop_id_is_replaced():
    fed = Fed("ok", b"\xf0\x9f", "<|im_end|>")
    assert fed.deltas == ["ok", "", "\ufffd"]


def test_replacement_character_that_was_generated_matches_a_stop():
    assert Fed("a", "\ufffd", "b", stop=("\ufffd",)).text == "a"


# --- stop patterns ---------------------------------------------------------------------------------------------------


def test_stop_regex_over_several_tokens_is_never_shown_in_part():
    fed = Fed("call 1", "2,", "34 now", stop_regex=(r"\d\d,\d\d",))
    assert fed.deltas == ["call ", "", ""]
    assert fed.output.ending == Ending("stop", "12,34")


def test_stop_regex_near_miss_is_released_at_once():
    assert Fed("call 1", "2,", "x", stop_regex=(r"\d\d,\d\d",)).deltas == ["call ", "", "12,x"]


def test_stop_regex_fires_at_the_first_character_that_completes_it():
    for pieces in (["ab123"], ["ab", "1", "23"]):
        assert Fed(*pieces, stop_regex=(r"\d+",), include_stop=True).text == "ab1"


def test_stop_regex_sees_what_stands_before():
    assert Fed("x;", "a;\n", "b", stop_regex=(r"(?<=;)\n",)).text == "x;a;"


def test_stop_regex_that_matches_bytes_that_are_no_text_reports_them_replaced():
    fed = Fed("a", b"\xff", ";", stop_regex=(".;",))
    assert fed.text == "a"
    assert fed.output.ending == Ending("stop", "\ufffd;")


def test_stop_regex_that_is_malformed_is_refused_with_the_position():
    with pytest.raises(SpecError, match=r"'\(a' is not a regular expression: .*position 2"):
        OutputText(PieceTokenizer(), SamplingSpec(stop_regex=("(a",)))


def test_stop_regex_that_matches_nothing_is_refused():
    with pytest.raises(SpecError, match="matches the empty text"):
        OutputText(PieceTokenizer(), SamplingSpec(stop_regex=("x*",)))


RUNAWAYS = [r"(a|aa)+[cd]", r"(x+x+)+y", r"(a|a)*b", r"([a-z]+ ?)+\.", r"(.*)*=", r"\b(\w+\s?)+;", r"(a?){60}a{60}!"]


@pytest.mark.parametrize("pattern", RUNAWAYS)
def test_stop_regex_that_would_backtrack_without_end_looks_at_each_character_once(pattern, monkeypatch):
    monkeypatch.setattr(stops_module, "BacktrackingStops", None)
    taken = Counter[str]()
    close = PatternAutomaton.close

    def counting(self, threads, before, behind):
        taken["closed"] += 1
        taken["threads"] = max(taken["threads"], len(threads))
        return close(self, threads, before, behind)

    monkeypatch.setattr(PatternAutomaton, "close", counting)
    fed = Fed("ax" * 200, "xa" * 200, "!", stop_regex=(pattern,))
    assert fed.text == "ax" * 200 + "xa" * 200 + "!"
    assert taken["closed"] <= 3 * 801
    assert taken["threads"] <= MAX_STATES


@pytest.mark.timeout(20)
def test_stop_regex_that_cannot_but_backtrack_fails_its_own_output_soon():
    output = OutputText(tokenizer := PieceTokenizer(), SamplingSpec(stop_regex=(r"(a|aa)+(c)\2",)))
    began = time.thread_time()
    with pytest.raises(SpecError, match=r"needed more than \d+ ms on 41 characters"):
        output.feed(tokenizer.intern("a" * 40 + "b"))
    assert time.thread_time() - began < 0.1


@pytest.mark.timeout(60)
def test_stop_regex_that_is_slow_at_every_token_fails_once_it_has_used_up_its_time():
    output = OutputText(tokenizer := PieceTokenizer(), SamplingSpec(stop_regex=(r"(x+x+)+(y)\2",)))
    began = time.thread_time()

    def write() -> None:
        for _ in range(1000):
            output.feed(tokenizer.intern("x"))

    with pytest.raises(SpecError, match="needed more than"):
        write()
    assert time.thread_time() - began < 0.5


def test_stop_regex_of_many_and_large_patterns_is_found_too():
    many = tuple(f"end{i:03}" for i in range(300))
    assert Fed("so end", "299", "x", stop_regex=many).text == "so "
    assert Fed("so " + "a" * 700, "x", stop_regex=("a{700}",)).text == "so "
    with pytest.raises(SpecError, match="a stop_regex of 20000 characters is longer than"):
        OutputText(PieceTokenizer(), SamplingSpec(stop_regex=("ab" * 10_000,)))


# --- properties ------------------------------------------------------------------------------------------------------

letters = st.text(alphabet="ab\n🙂é1", max_size=24)
cuts = st.lists(st.integers(0, 64), max_size=12)
stops = st.lists(st.text(alphabet="ab\n🙂é1", min_size=1, max_size=4), max_size=3)
PATTERNS = ("a+b", "b{2}", r"\n\n", r"(?<=a)🙂", "[1é]a?b", r"a(?=b)", r"\bab", "a$", r"(?i)B1", r"1\Kb")


def pieces_of(data: bytes, at: list[int]) -> list[bytes]:
    borders = sorted({0, len(data), *(i for i in at if i < len(data))})
    return [data[i:j] for i, j in pairwise(borders)]


def expected(text: str, stop: list[str], patterns: list[str]) -> str:
    """The text up to the match that ends first, by trying every end; the earliest start among those. A match that looks ahead
    ends before the character at which it is found.
    """
    for end in range(1, len(text) + 1):
        head = text[:end]
        found = [(end, end - len(s)) for s in stop if head.endswith(s)]
        found += [(m.end(), m.start()) for p in patterns if (m := regex.search(p, head)) is not None]
        if found:
            return text[: min(found)[1]]
    return text


@given(letters, cuts, stops)
def test_output_property_deltas_are_the_text_before_the_first_stop(text, at, stop):
    fed = Fed(*pieces_of(text.encode(), at), stop=tuple(stop))
    assert fed.text == expected(text, stop, [])
    assert "\ufffd" not in fed.text


@given(letters, cuts, stops, st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=2))
def test_output_property_patterns_cut_as_if_tried_at_every_character(text, at, stop, patterns):
    fed = Fed(*pieces_of(text.encode(), at), stop=tuple(stop), stop_regex=tuple(patterns))
    assert fed.text == expected(text, stop, patterns)


SINGLE = st.sampled_from(
    ["a", "b", "1", "é", "🙂", r"\n", " ", ".", "[ab]", "[^a]", r"\d", r"\w", r"\W", r"\s", "[^\\d]", "A", "[a-é]"]
)
AROUND = st.sampled_from(
    ["^", "$", r"\b", r"\B", r"\A", r"\Z", "(?=a)", "(?!b)", "(?<=1)", "(?<!\\w)", "(?m:^)", "(?m:$)"]
)


def _larger(inner):
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}?", "+?", "{2,}"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
        st.tuples(st.sampled_from(["(?i:", "(?s:", "("]), inner).map(lambda two: f"{two[0]}{two[1]})"),
    )


plain_patterns = st.recursive(SINGLE, _larger, max_leaves=8)
any_patterns = st.recursive(st.one_of(SINGLE, AROUND), _larger, max_leaves=8)
written = st.text(alphabet="abAB1é🙂\n \u0301", max_size=16)


@settings(max_examples=300)
@given(plain_patterns, written)
def test_automaton_property_finds_and_holds_what_the_regex_library_does(pattern, text):
    compiled = regex.compile(pattern)
    assume(compiled.search("") is None)
    search, released = PatternSearch(automaton((pattern,))), [0]
    for end in range(1, len(text) + 1):
        data, match = bytearray(text[:end].encode()), compiled.search(text[:end])
        found = search.find(data)
        if match is not None:
            assert found == (len(data), len(text[: match.start()].encode()))
            assert all(at <= found[1] for at in released)
            return
        assert found is None
        partial = compiled.search(text[:end], partial=True)
        held = text[: end if partial is None else partial.start()]
        assert search.held_from() >= len(held.encode())  # it holds some that cannot match any more
        released.append(search.held_from())


@settings(max_examples=300)
@given(any_patterns, written)
def test_automaton_property_sees_what_stands_around_like_the_regex_library(pattern, text):
    compiled = regex.compile(pattern)
    together = automaton((pattern,))
    assume(compiled.search("") is None)
    assume(together is not None)
    search, released = PatternSearch(together), 0
    for end in range(1, len(text) + 1):
        found = search.find(bytearray(text[:end].encode()))
        assert (found is not None) == (compiled.search(text[:end]) is not None)
        if found is None:
            released = search.held_from()
            continue
        assert found[1] >= released
        last, first = (len(text.encode()[:at].decode()) for at in found)
        assert end - 1 <= last <= end
        assert any(m.start() == first for m in compiled.finditer(text[:end], first, overlapped=True))
        return


@given(st.binary(max_size=24), cuts)
def test_output_property_any_bytes_decode_as_a_whole(data, at):
    fed = Fed(*pieces_of(data, at))
    assert fed.text == data.decode("utf-8", "replace")
    assert fed.output.kept_tokens == len(fed.ids)


@given(letters, cuts, stops)
def test_output_property_only_a_possible_beginning_is_held(text, at, stop):
    tokenizer = PieceTokenizer()
    output = OutputText(tokenizer, SamplingSpec(stop=tuple(stop)))
    fed = b""
    for piece in pieces_of(text.encode(), at):
        output.feed(tokenizer.intern(piece))
        fed += piece
        if output.ending:
            return
        held = fed[len(output.text.encode()) :]
        begins = any(len(held) < len(s.encode()) and s.encode().startswith(held) for s in stop)
        assert begins or not held.decode("utf-8", "ignore")


@given(letters, cuts, stops, st.booleans())
def test_output_property_kept_ids_and_tail_are_the_text(text, at, stop, include):
    fed = Fed(*pieces_of(text.encode(), at), stop=tuple(stop), include_stop=include)
    assert fed.text.startswith(expected(text, stop, []))
    longer = fed.ids[: fed.output.kept_tokens + 1]
    assert len(longer) == fed.output.kept_tokens or fed.tokenizer.decode(longer) != fed.text
