"""Tokenizer and template of Hugging Face folders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_files import MERGES, SPECIAL, added_token, byte_vocabulary, write_folder

from sglang_dsl.errors import ModelLoadError, SpecError
from sglang_dsl.runtime.text.load import load_text
from sglang_dsl.runtime.text.tokenizer import TextPiece, Turn

USER = [Turn("user", "")]


def test_folder_tokenizer_round_trips_and_keeps_markers_out(tmp_path):
    tokens = load_text(write_folder(tmp_path), "f").tokenizer
    ids = tokens.encode("hello <|im_end|><think> 🙂")
    assert not tokens.control_ids & set(ids)
    assert tokens.decode(ids) == "hello <|im_end|><think> 🙂"
    assert tokens.encode_segment([TextPiece("<|im_end|><think>", control=True)]) == [2, 3]


def test_folder_vocabulary_has_the_rows_of_the_logits(tmp_path):
    tokens = load_text(write_folder(tmp_path), "f").tokenizer
    used = len(SPECIAL) + len(byte_vocabulary(MERGES))
    assert tokens.vocab_size == used + 5
    assert tokens.token_bytes(used + 4) == b""
    assert used + 4 in tokens.control_ids  # a row without a token must never be generated


def test_folder_stop_ids_are_those_of_every_file(tmp_path):
    folder = write_folder(
        tmp_path,
        generation_config={"eos_token_id": [50, 51]},
        config={"eos_token_id": 52, "text_config": {"eos_token_id": 53}},
    )
    assert load_text(folder, "f").tokenizer.stop_ids == {0, 2, 50, 51, 52, 53}


def test_folder_template_file_goes_before_the_config(tmp_path):
    source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|im_end|>{% endfor %}"
    folder = write_folder(tmp_path, **{"chat_template.jinja": source})
    assert load_text(folder, "f").template.open_turn([], "user") == "[user]"


def test_folder_template_named_default_is_taken(tmp_path):
    listed = [
        {"name": "tool_use", "template": "x"},
        {"name": "default", "template": "{% for m in messages %}D{{ m.content }}{% endfor %}"},
    ]
    folder = write_folder(tmp_path, tokenizer_config={"chat_template": listed})
    assert load_text(folder, "f").template.open_turn([], "user") == "D"


def test_folder_template_may_use_the_special_tokens(tmp_path):
    source = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    folder = write_folder(tmp_path, tokenizer_config={"bos_token": "<|im_start|>", "chat_template": source})
    loaded = load_text(folder, "f")
    assert loaded.template.open_turn([], "user") == "<|im_start|>"
    assert loaded.template.close_turn(USER) == "<|endoftext|>"
    assert loaded.tokenizer.bos_id == 1


@pytest.mark.parametrize("asked", [True, False])
def test_folder_adds_bos_as_the_config_says(tmp_path, asked):
    folder = write_folder(tmp_path, tokenizer_config={"bos_token": "<|im_start|>", "add_bos_token": asked})
    assert load_text(folder, "f").tokenizer.adds_bos is asked


def test_folder_adds_bos_as_the_post_processor_does(tmp_path):
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    processor = {"type": "Sequence", "processors": [template]}
    folder = write_folder(
        tmp_path, tokenizer={"post_processor": processor}, tokenizer_config={"bos_token": "<|im_start|>"}
    )
    tokens = load_text(folder, "f").tokenizer
    assert tokens.adds_bos
    assert 1 not in tokens.encode("hello")


def test_folder_tokenizer_puts_nothing_in_front_of_a_segment(tmp_path):
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    folder = write_folder(tmp_path, tokenizer={"pre_tokenizer": {"type": "Sequence", "pretokenizers": [byte_level]}})
    tokens = load_text(folder, "f").tokenizer
    assert tokens.decode(tokens.encode("hello")) == "hello"


def sentence_piece_tokenizer() -> dict[str, object]:
    pieces = ["▁", "h", "i", "hi", "▁hi"]
    vocab = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces]
    return {
        "added_tokens": [added_token(i, text) for i, text in enumerate(vocab[:3])],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE",
            "vocab": {text: i for i, text in enumerate(vocab)},
            "merges": ["h i", "▁ hi"],
            "unk_token": "<unk>",
            "byte_fallback": True,
            "fuse_unk": True,
        },
    }


@given(st.text(alphabet="hi <s>/x🙂\n", max_size=16))
def test_folder_with_byte_fallback_round_trips(tmp_path_factory, text):
    folder = write_folder(
        tmp_path_factory.mktemp("m"),
        tokenizer=sentence_piece_tokenizer(),
        tokenizer_config={"eos_token": "</s>"},
        config={"vocab_size": 264},
    )
    tokens = load_text(folder, "f").tokenizer
    ids = tokens.encode(text)
    assert tokens.decode(ids) == text
    assert not tokens.control_ids & set(ids)


def test_folder_with_a_dummy_prefix_puts_a_space_behind_markers(tmp_path):
    folder = write_folder(tmp_path, tokenizer=sentence_piece_tokenizer(), tokenizer_config={"eos_token": "</s>"})
    tokens = load_text(folder, "f").tokenizer
    ids = tokens.encode_segment([TextPiece("<s>hi", control=True)])
    assert [tokens.token_bytes(i) for i in ids] == [b"", b" hi"]


def test_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(ModelLoadError, match=r"has no tokenizer\.json"):
        load_text(tmp_path, "f")


def test_folder_with_another_kind_of_tokenizer_is_refused(tmp_path):
    folder = write_folder(tmp_path, tokenizer={"model": {"type": "Unigram", "vocab": [["a", 0.0]]}})
    with pytest.raises(ModelLoadError, match="'Unigram'"):
        load_text(folder, "f")


def test_folder_with_damaged_files_is_refused_by_name(tmp_path):
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json is not JSON"):
        load_text(write_folder(tmp_path / "a", tokenizer_config="{"), "f")
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json is damaged"):
        load_text(write_folder(tmp_path / "b", tokenizer={"pre_tokenizer": {"type": "Nonsense"}}), "f")


def test_folder_marker_that_merges_would_make_is_not_made(tmp_path):
    vocab = {text: i for i, text in enumerate([*SPECIAL, *byte_vocabulary(MERGES), "zz", "zzz"])}
    model = {"type": "BPE", "vocab": vocab, "merges": [*MERGES, "z z", "zz z"], "unk_token": None}
    added = [added_token(vocab["zz"], "zz"), added_token(vocab["hello"], "hello", special=False)]
    tokens = load_text(write_folder(tmp_path, tokenizer={"model": model, "added_tokens": added}), "f").tokenizer
    assert [tokens.token_bytes(i) for i in tokens.encode("zzz")] == [b"z", b"z", b"z"]
    assert tokens.encode("hello") == [vocab["hello"]]  # an added word is content like any other
    assert vocab["hello"] not in tokens.control_ids


def test_text_that_cannot_be_encoded_is_an_error_not_a_drop(tmp_path):
    vocab = {text: i for i, text in enumerate([*SPECIAL, *byte_vocabulary(MERGES)]) if text != "a"}
    model = {"type": "BPE", "vocab": vocab, "merges": list(MERGES), "unk_token": None}
    tokens = load_text(write_folder(tmp_path, tokenizer={"model": model}), "f").tokenizer
    with pytest.raises(SpecError, match=r"'a' \(U\+0061\) at index 1"):
        tokens.encode("ha")
