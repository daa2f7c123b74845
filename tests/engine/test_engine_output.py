"""Stops, UTF-8 and endings, through the whole engine (cases 6, 7, 9, 11, 13)."""

from __future__ import annotations

import pytest

from sglang_dsl.errors import SamplingError, SpecError
from sglang_dsl.ir.specs import ConstraintSpec, SamplingSpec
from sglang_dsl.runtime.text.stop_patterns import PatternAutomaton


def run(lab, pieces, **sampling):
    engine = lab.engine({"p": pieces})
    [recorder] = lab.submit(lab.request("r", "p", **sampling))
    lab.settle()
    result = recorder.end
    if isinstance(result, Exception):
        raise result
    assert "".join(recorder.deltas) == result.text
    assert "" not in recorder.deltas
    assert lab.text.tokenizer.decode(result.token_ids) + result.tail_text == result.text
    assert recorder.late == []
    lab.assert_clean()
    assert engine.health().status == "ok"
    return recorder, result


def test_output_stop_over_several_tokens_never_shows_a_part_of_it(lab):
    recorder, result = run(lab, ["red ", "gr", "een", "-lig", "ht now"], stop=("green-light",))
    assert recorder.deltas == ["red "]
    assert (result.text, result.finish_reason, result.matched) == ("red ", "stop", "green-light")


def test_output_include_stop_holds_the_stop_once(lab):
    _, result = run(lab, ["red ", "gr", "een", "-lig", "ht now"], stop=("green-light",), include_stop=True)
    assert result.text == "red green-light"
    assert result.tail_text == "ht"


@pytest.mark.parametrize(
    ("pieces", "stop", "text"),
    [
        (["5 gr", "ee", "k olives"], ("green-light",), "5 greek olives"),
        (["x gr"], ("green-light",), "x gr"),
        (["x a b c"], ("b c", "a b"), "x "),
    ],
)
def test_output_near_miss_end_and_several_stops_release_what_is_no_stop(lab, pieces, stop, text):
    assert run(lab, pieces, stop=stop)[1].text == text


def test_output_near_miss_is_released_with_the_token_that_ends_it(lab):
    recorder, _ = run(lab, ["5 gr", "ee", "k olives"], stop=("green-light",))
    assert recorder.deltas == ["5 ", "greek olives"]


def test_output_stop_in_the_prompt_does_not_match(lab):
    engine = lab.engine({"END": ["go END"]})
    result = engine.generate("END", SamplingSpec(temperature=0, stop=("END",)))
    assert result.text == "go "


def test_output_empty_stop_is_refused():
    with pytest.raises(SpecError):
        SamplingSpec(stop=("",))


def test_output_special_stop_id_removes_no_characters(lab):
    special = lab.text.tokenizer.control_id("<|im_start|>")
    _, result = run(lab, ["good", " day", special, "more"], stop_token_ids=(special,))
    assert (result.text, result.finish_reason, result.matched) == ("good day", "stop", special)
    assert result.generated_tokens == 3
    assert len(result.token_ids) == 2


@pytest.mark.parametrize(("include", "text"), [(False, "good day"), (True, "good day!")])
def test_output_plain_stop_id_text_is_dropped_unless_included(lab, include, text):
    bang = lab.text.tokenizer.intern("!")
    _, result = run(lab, ["good", " day", "!", "more"], stop_token_ids=(bang,), include_stop=include)
    assert (result.text, result.matched) == (text, bang)


def test_output_stop_id_outside_the_vocabulary_is_refused(lab):
    with pytest.raises(SamplingError, match="1000000000"):
        run(lab, ["a"], stop_token_ids=(10**9,))


def test_output_character_over_two_tokens_comes_whole(lab):
    recorder, result = run(lab, [b"ok", b"\xf0\x9f", b"\x99\x82", b"!"])
    assert recorder.deltas == ["ok", "🙂", "!"]
    assert recorder.token_ids == list(result.token_ids)


def test_output_stop_of_a_split_character_matches_and_replacement_never_does(lab):
    assert run(lab, [b"ok", b"\xf0\x9f", b"\x99\x82", b"!"], stop=("🙂",))[1].text == "ok"
    assert run(lab, [b"ok", b"\xf0\x9f", b"\x99\x82", b"!"], stop=("\ufffd",))[1].text == "ok🙂!"


def test_output_half_a_character_at_the_limit_becomes_a_replacement_at_the_end_only(lab):
    recorder, result = run(lab, [b"ok", b"\xf0\x9f", b"\x99\x82"], max_tokens=2)
    assert recorder.deltas == ["ok", "\ufffd"]
    assert result.finish_reason == "length"


def test_output_limit_counts_tokens(lab):
    _, result = run(lab, ["a", "b", "c", "d"], max_tokens=3)
    assert (result.text, result.finish_reason, result.generated_tokens) == ("abc", "length", 3)


def test_output_eos_is_counted_but_not_kept(lab):
    _, result = run(lab, ["a", "b"])
    assert (result.finish_reason, result.generated_tokens, len(result.token_ids)) == ("eos", 3, 2)
    assert result.matched == lab.text.tokenizer.eos_id


def test_output_include_stop_keeps_no_eos(lab):
    _, result = run(lab, ["a", "b"], include_stop=True, stop=("zzz",))
    assert (result.text, len(result.token_ids), result.finish_reason) == ("ab", 2, "eos")


def test_output_ignored_eos_goes_on_to_the_limit(lab):
    eos = lab.text.tokenizer.eos_id
    _, result = run(lab, ["a", eos, "b"], ignore_eos=True, max_tokens=3)
    assert (result.text, result.finish_reason) == ("ab", "length")


def test_output_complete_constraint_wins_over_the_limit(lab):
    _, result = run(lab, ["a", "b"], max_tokens=2, constraint=ConstraintSpec(kind="regex", text="ab"))
    assert (result.text, result.finish_reason) == ("ab", "constraint")


def test_output_regex_stop_over_tokens(lab):
    _, result = run(lab, ["no 1", "2", "3 ", "yes"], stop_regex=(r"\d{3}",))
    assert (result.text, result.matched) == ("no ", "123")


def test_output_scores_stand_beside_the_kept_tokens(lab):
    _, result = run(lab, ["red ", "gr", "een", "x"], stop=("green",), logprobs=0)
    assert [score.token_id for score in result.token_scores] == list(result.token_ids)


@pytest.mark.parametrize("pattern", ["(a|a)*b", "(x+x+)+y", r"(.*)*=", r"\b(\w+\s?)+;"])
def test_output_regex_that_would_backtrack_for_ever_leaves_others_their_tokens(lab, pattern, monkeypatch):
    closed = []
    close = PatternAutomaton.close
    monkeypatch.setattr(PatternAutomaton, "close", lambda *args: (closed.append(1), close(*args))[1])
    written = []
    for hostile in ((), (pattern,)):
        lab.engine({"bad": ["ax" * 40 + "!"] * 20, "good": ["fine "] * 20})
        bad, good = lab.submit(lab.request("bad", "bad", stop_regex=hostile), lab.request("good", "good"))
        by_turn = []
        while lab.engines[-1].turn():
            by_turn.append(len(good.token_ids))
        written.append(by_turn)
        assert bad.end.text == ("ax" * 40 + "!") * 20
        assert good.end.text == "fine " * 20
        lab.assert_clean()
    assert written[0] == written[1]
    assert len(closed) <= 3 * len(bad.end.text) + 100


def test_output_regex_that_cannot_but_backtrack_fails_its_request_alone(lab):
    lab.engine({"bad": ["a" * 4000 + "!"], "good": ["fine"]})
    bad, good = lab.submit(lab.request("bad", "bad", stop_regex=(r"(a|a)*(b)\2",)), lab.request("good", "good"))
    lab.settle()
    assert isinstance(bad.end, SpecError)
    assert good.end.text == "fine"
    lab.assert_clean()
