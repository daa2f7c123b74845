"""What is known of SmolLM2's own tokenizer and template. The ids were taken from its authors' tokenizer.json."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_dsl.errors import SpecError
from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.runtime.backends.interpreted import seam_difference
from sglang_dsl.runtime.text.output import OutputText
from sglang_dsl.runtime.text.tokenizer import TextPiece, Turn

pytestmark = pytest.mark.model

GOLDEN = "<|im_start|>user\nWhere is my parcel A-40217? It's 3 days late.<|im_end|>\n"
GOLDEN_IDS = [
    1,
    4093,
    198,
    9576,
    314,
    957,
    35598,
    330,
    29,
    36,
    32,
    34,
    33,
    39,
    47,
    657,
    506,
    216,
    35,
    2009,
    3008,
    30,
    2,
    198,
]


def pieces(text: str) -> list[TextPiece]:
    return [TextPiece(text)]


def test_smollm2_golden_ids(smollm2):
    assert smollm2.tokenizer.encode_segment([TextPiece(GOLDEN, control=True)]) == GOLDEN_IDS


def test_smollm2_facts(smollm2):
    tokens = smollm2.tokenizer
    assert tokens.vocab_size == 49152
    assert tokens.stop_ids == {2}
    assert (tokens.bos_id, tokens.adds_bos) == (1, False)
    assert tokens.control_ids == frozenset(range(17))


def test_smollm2_characters_over_several_tokens(smollm2):
    tokens = smollm2.tokenizer
    assert tokens.encode("🙂") == [10813, 38887]
    assert len(tokens.encode(" 🙂")) == 1
    japanese = tokens.encode("日本語")
    assert len(japanese) == 6
    assert sum(_whole(tokens.token_bytes(i)) for i in japanese) == 1
    family = tokens.encode("👨‍👩‍👧")
    assert len(family) == 13
    assert not any(_whole(tokens.token_bytes(i)) for i in family)


def _whole(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_smollm2_choices_that_share_text_share_no_token(smollm2):
    tokens = smollm2.tokenizer
    assert [tokens.token_bytes(i) for i in tokens.encode("yesterday")] == [b"y", b"esterday"]
    assert [tokens.token_bytes(i) for i in tokens.encode("yes")] == [b"yes"]
    assert len(tokens.encode("2024")) == 4  # digits stand alone


def test_smollm2_seam_before_a_word_differs_and_before_a_digit_does_not(smollm2):
    difference = seam_difference(smollm2.tokenizer, pieces("Answer: "), pieces("Paris"))
    assert difference is not None
    assert (difference.apart, difference.joint) == ((b" ", b"Paris"), (b" Paris",))
    assert str(difference) == "[' ', 'Paris'] instead of [' Paris']"
    assert seam_difference(smollm2.tokenizer, pieces("value= "), pieces("12")) is None


def test_smollm2_template_writes_its_default_system_turn(smollm2):
    template = smollm2.template
    assert template.open_turn([], "user") == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\n"
    )
    assert template.open_turn([], "system") == "<|im_start|>system\n"
    assert template.close_turn([Turn("user", "Hi")]) == "<|im_end|>\n"
    assert template.open_turn([Turn("user", "Hi")], "assistant") == "<|im_start|>assistant\n"
    assert smollm2.report.stable


@given(st.text(max_size=60))
def test_smollm2_content_round_trips_and_forges_nothing(smollm2, text):
    tokens = smollm2.tokenizer
    try:
        ids = tokens.encode(text)
    except SpecError:
        return  # a lone surrogate, or a character it has no token for
    assert not tokens.control_ids & set(ids)
    assert tokens.decode(ids) == text


def test_smollm2_refuses_characters_it_would_lose(smollm2):
    with pytest.raises(SpecError, match=r"U\+0004\) at index 1"):
        smollm2.tokenizer.encode("a\x04")


@given(st.text(alphabet="héllo wörld 🙂日本\n", max_size=40), st.text(alphabet="o w🙂本\n", min_size=1, max_size=4))
def test_smollm2_stream_is_the_text_before_the_stop(smollm2, text, stop):
    tokens = smollm2.tokenizer
    output = OutputText(tokens, SamplingSpec(stop=(stop,)))
    deltas = []
    for token_id in tokens.encode(text):
        deltas.append(output.feed(token_id))
        if output.ending:
            break
    deltas.append(output.finish())
    assert "".join(deltas) == text.partition(stop)[0]
    assert not any("\ufffd" in delta for delta in deltas)
