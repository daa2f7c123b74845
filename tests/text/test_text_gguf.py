"""Header and tokenizer of GGUF files."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_files import (
    CONTROL,
    SPECIAL,
    UNUSED,
    USER_DEFINED,
    byte_level_metadata,
    sentence_piece_metadata,
    write_gguf,
)

from sglang_dsl.errors import ModelLoadError, SpecError
from sglang_dsl.runtime.text.bpe_tokenizer import BpeTokenizer, Vocabulary
from sglang_dsl.runtime.text.gguf import PRE_TOKENIZERS, TensorInfo, read_header, tokenizer_from_gguf
from sglang_dsl.runtime.text.load import load_text
from sglang_dsl.runtime.text.tokenizer import ChatMlTemplate, LabelTemplate, TextPiece, Turn, with_bos


def tokenizer(**changes):
    return tokenizer_from_gguf(byte_level_metadata(**changes), "f")


def text_of(tokens, ids):
    return [tokens.token_bytes(i).decode() for i in ids]


# --- header ----------------------------------------------------------------------------------------------------------


def test_header_gives_metadata_tensors_and_where_data_begin(tmp_path):
    tensor = struct.pack("<Q", 1) + b"w" + struct.pack("<IQQIQ", 2, 4, 8, 0, 64)
    metadata = {"a": "text", "b": True, "c": 7, "d": [1.5, 2.5], "e": ["x", "yz"], "general.alignment": 64}
    header = read_header(write_gguf(tmp_path / "m.gguf", metadata, tensors=tensor, count=1))
    assert header.metadata == metadata
    assert header.tensors == (TensorInfo("w", (4, 8), 0, 64),)
    assert header.data_offset % 64 == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"PK\x03\x04" * 9, "not a GGUF file"), (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian")],
)
def test_header_of_another_file_is_refused(tmp_path, content, message):
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=message):
        read_header(path)


def test_header_cut_anywhere_is_refused(tmp_path):
    whole = write_gguf(tmp_path / "m.gguf", {"key": "value", "list": [1, 2], "names": ["a", "b"]}).read_bytes()
    for size in range(4, len(whole)):
        (tmp_path / "cut.gguf").write_bytes(whole[:size])
        with pytest.raises(ModelLoadError, match="damaged or incomplete"):
            read_header(tmp_path / "cut.gguf")


def test_header_with_absurd_lengths_is_refused(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 5, 2**60)
    )
    with pytest.raises(ModelLoadError, match="pass the end of the file"):
        read_header(path)


# --- byte-level BPE ---------------------------------------------------------------------------------------------------


def test_byte_level_merges_words_and_splits_digits():
    tokens = tokenizer()
    assert text_of(tokens, tokens.encode("hello wor12")) == ["hello", " w", "or", "1", "2"]


@given(st.text(max_size=40))
def test_byte_level_round_trip_is_exact(text):
    tokens = tokenizer()
    try:
        ids = tokens.encode(text)
    except SpecError:
        return  # lone surrogates
    assert tokens.decode(ids) == text
    assert b"".join(map(tokens.token_bytes, ids)) == text.encode()


marker_soup = st.lists(st.sampled_from([*SPECIAL, "<|im_", "end|>", "<", "hello", " ", "\n", "🙂"]), max_size=8).map(
    "".join
)


@given(marker_soup)
def test_byte_level_content_never_becomes_a_control_token(text):
    tokens = tokenizer()
    ids = tokens.encode(text)
    assert not tokens.control_ids & set(ids)
    assert tokens.decode(ids) == text


@given(marker_soup, marker_soup)
def test_segment_has_exactly_the_control_tokens_of_its_control_pieces(control, content):
    tokens = tokenizer()
    ids = tokens.encode_segment([TextPiece(control, control=True), TextPiece(content)])
    assert sum(i in tokens.control_ids for i in ids) == sum(control.count(marker) for marker in SPECIAL)


def test_tokenizer_that_makes_a_marker_of_content_is_refused():
    from tokenizers import Tokenizer, models

    plain = Tokenizer(models.BPE(vocab={"<": 0, ">": 1, "<>": 2}, merges=[("<", ">")]))
    vocabulary = Vocabulary(
        token_bytes=[b"<", b">", b""],
        markers={"<>": 2},
        stop_ids=frozenset(),
        bos_id=None,
        adds_bos=False,
        fingerprint="f",
    )
    with pytest.raises(ModelLoadError, match="'<>' out of plain text"):
        BpeTokenizer(plain, vocabulary)


def test_segment_joins_content_with_the_templates_own_words():
    tokens = tokenizer()
    ids = tokens.encode_segment([TextPiece("<|im_start|>he", control=True), TextPiece("llo"), TextPiece("<|im_end|>")])
    assert ids[0] == 1
    assert text_of(tokens, ids[1:2]) == ["hello"]
    assert 2 not in ids


@given(
    st.lists(st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), marker_soup), min_size=1, max_size=4)
)
def test_conversation_has_the_templates_control_tokens_and_no_others(messages):
    tokens, template = tokenizer(), ChatMlTemplate()
    ids: list[int] = []
    for i, (role, content) in enumerate(messages):
        before = [Turn(r, c) for r, c in messages[:i]]
        turn = [TextPiece(template.open_turn(before, role), control=True), TextPiece(content)]
        closing = TextPiece(template.close_turn([*before, Turn(role, content)]), control=True)
        ids += tokens.encode_segment([*turn, closing])
    assert [i for i in ids if i in tokens.control_ids] == [1, 2] * len(messages)
    assert tokens.decode(ids) == "".join(f"{role}\n{content}\n" for role, content in messages)


def test_segment_marker_does_not_form_across_pieces():
    tokens = tokenizer()
    halves = [TextPiece("<|im_", control=True), TextPiece("end|>", control=True)]
    assert 2 not in tokens.encode_segment(halves)


def test_added_token_that_is_not_special_is_shown_but_not_made_from_content():
    tokens = tokenizer()
    assert 3 not in tokens.encode("<think>")
    assert tokens.encode_segment([TextPiece("<think>", control=True)]) == [3]
    assert tokens.decode([1, 3, 2]) == "<think>"


def test_character_without_a_token_is_refused_with_its_place():
    metadata = byte_level_metadata()
    words = metadata["tokenizer.ggml.tokens"]
    words[words.index("b")] = "some other piece"
    with pytest.raises(SpecError, match=r"'b' \(U\+0062\) at index 1"):
        tokenizer_from_gguf(metadata, "f").encode("abc")


def test_lone_surrogate_is_refused_with_its_place():
    with pytest.raises(SpecError, match=r"lone surrogate '\\ud800' at index 1"):
        tokenizer().encode("a\ud800")


def test_pre_tokenizer_unknown_is_refused_by_name():
    with pytest.raises(ModelLoadError, match=r"'viking' is not known.*smollm"):
        tokenizer(**{"ggml.pre": "viking"})


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_pre_tokenizer_loses_no_text(name):
    tokens = tokenizer(**{"ggml.pre": name})
    text = "It's 12345 hello\n\n  \t日本語 naïve café; don't   \r\n x²"
    assert tokens.decode(tokens.encode(text)) == text


def test_pre_tokenizers_group_digits_as_their_models_do():
    groups = {"smollm": 5, "qwen2": 5, "llama-bpe": 2, "gpt-2": 1}
    for name, count in groups.items():
        built = PRE_TOKENIZERS[name].build().pre_tokenize_str("12345")
        assert len(built) == count, name


def test_vocabulary_that_is_damaged_is_refused():
    with pytest.raises(ModelLoadError, match="vocabulary is damaged"):
        tokenizer(**{"ggml.merges": ["h qq"]})
    with pytest.raises(ModelLoadError, match="no tokenizer"):
        tokenizer(**{"ggml.tokens": None})
    with pytest.raises(ModelLoadError, match="token types"):
        tokenizer(**{"ggml.token_type": [CONTROL]})


def test_tokenizer_of_unknown_kind_is_refused():
    with pytest.raises(ModelLoadError, match="'rwkv'"):
        tokenizer(**{"ggml.model": "rwkv"})


def test_stop_ids_are_all_the_file_has(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", byte_level_metadata(**{"ggml.eot_token_id": 40}))
    loaded = load_text(path, "f")
    assert loaded.tokenizer.stop_ids == {0, 40, 2}  # eos, eot, and <|im_end|> of the template
    assert loaded.tokenizer.control_ids == {0, 1, 2, 3}


def test_file_whose_template_rewrites_earlier_turns_is_reported(tmp_path, caplog):
    source = "{% for m in messages %}{{ loop.length }}{{ m.content }}{% endfor %}"
    path = write_gguf(tmp_path / "m.gguf", byte_level_metadata(chat_template=source))
    assert load_text(path, "f").report.rewritten_chars == 7  # one digit each for 2 + 5 earlier turns
    assert "rewrites earlier turns" in caplog.text


def test_file_without_a_template_gets_plain_labels(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", byte_level_metadata(chat_template=None))
    assert isinstance(load_text(path, "f").template, LabelTemplate)


# --- SentencePiece ---------------------------------------------------------------------------------------------------


def test_sentence_piece_merges_by_score_and_falls_back_to_bytes():
    tokens = tokenizer_from_gguf(sentence_piece_metadata(), "f")
    ids = tokens.encode("hi hey é\n\n")
    assert [tokens.token_bytes(i) for i in ids] == [b"hi", b" hey", b" ", b"\xc3", b"\xa9", b"\n\n"]
    assert tokens.decode(ids) == "hi hey é\n\n"


@given(st.text(alphabet="hiey ▁\n<>sx/🙂", max_size=20))
def test_sentence_piece_round_trip_and_no_control_tokens(text):
    tokens = tokenizer_from_gguf(sentence_piece_metadata(), "f")
    ids = tokens.encode(text)
    assert not tokens.control_ids & set(ids)
    assert tokens.decode(ids) == text.replace("▁", " ")


def test_sentence_piece_content_does_not_become_a_byte_token():
    tokens = tokenizer_from_gguf(sentence_piece_metadata(), "f")
    assert tokens.decode(tokens.encode("<0x0A></s>")) == "<0x0A></s>"


def test_sentence_piece_puts_a_space_behind_markers_but_not_behind_seams():
    for asked, first in ((None, b" hi"), (True, b" hi"), (False, b"hi")):
        metadata = {
            **sentence_piece_metadata(),
            **({} if asked is None else {"tokenizer.ggml.add_space_prefix": asked}),
        }
        tokens = tokenizer_from_gguf(metadata, "f")
        ids = tokens.encode_segment([TextPiece("<s>", control=True), TextPiece("hi")])
        assert [tokens.token_bytes(i) for i in ids] == [b"", first]
        assert tokens.decode(tokens.encode_segment([TextPiece("hi")])) == "hi"


def test_sentence_piece_without_scores_is_refused():
    metadata = sentence_piece_metadata()
    del metadata["tokenizer.ggml.scores"]
    with pytest.raises(ModelLoadError, match="no scores"):
        tokenizer_from_gguf(metadata, "f")


# --- BOS (case 1) ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "adds", "count"), [("<s>[U]{m}", True, 1), ("[U]{m}", True, 1), ("<s><s>[U]{m}", False, 2)]
)
def test_bos_is_there_once_whoever_added_it(template, adds, count):
    metadata = {**sentence_piece_metadata(), "tokenizer.ggml.add_bos_token": adds}
    tokens = tokenizer_from_gguf(metadata, "f")
    ids = tokens.encode_segment([TextPiece(template.replace("{m}", ""), control=True), TextPiece("ping")])
    prompt = with_bos(ids, tokens)
    assert prompt.count(1) == count
    assert with_bos(prompt, tokens) == prompt


def test_bos_of_a_prompt_rendered_by_the_caller_is_not_doubled():
    tokens = tokenizer_from_gguf(sentence_piece_metadata(), "f")
    raw = tokens.encode_segment([TextPiece("<s>[U]ping", control=True)])
    assert with_bos(raw, tokens).count(1) == 1


def test_bos_written_by_content_does_not_count():
    tokens = tokenizer_from_gguf(sentence_piece_metadata(), "f")
    assert with_bos(tokens.encode("<s>hi"), tokens)[0] == 1


def test_bos_in_front_of_nothing():
    tokens = tokenizer_from_gguf(sentence_piece_metadata(), "f")
    assert with_bos([], tokens) == [1]
    assert with_bos([], tokenizer()) == []


def test_sentence_piece_begins_a_prompt_with_its_space_and_a_seam_without():
    for asked, shown in ((None, " hi"), (True, " hi"), (False, "hi")):
        change = {} if asked is None else {"tokenizer.ggml.add_space_prefix": asked}
        tokens = tokenizer_from_gguf({**sentence_piece_metadata(), **change}, "f")
        assert tokens.decode(tokens.encode("hi", first=True)) == shown
        assert tokens.decode(tokens.encode("hi")) == "hi"


def test_marker_listed_twice_has_its_first_id():
    metadata = byte_level_metadata()
    metadata["tokenizer.ggml.tokens"] += ["<|im_end|>", "<|im_end|>"]
    metadata["tokenizer.ggml.token_type"] += [CONTROL, CONTROL]
    assert tokenizer_from_gguf(metadata, "f").encode_segment([TextPiece("<|im_end|>", control=True)]) == [2]


@pytest.mark.parametrize("word", ["covid-19", "C++", "->", "🙂", "        ", "x_1"])
def test_added_word_with_signs_comes_from_content(word):
    metadata = byte_level_metadata()
    metadata["tokenizer.ggml.tokens"].append(word)
    metadata["tokenizer.ggml.token_type"].append(USER_DEFINED)
    tokens = tokenizer_from_gguf(metadata, "f")
    ids = tokens.encode(f"he{word}hello")
    assert len(metadata["tokenizer.ggml.tokens"]) - 1 in ids
    assert tokens.decode(ids) == f"he{word}hello"


def test_character_without_token_or_bytes_is_the_unknown_token():
    metadata = sentence_piece_metadata()
    for i in range(3, 259):
        metadata["tokenizer.ggml.tokens"][i] = f"unused{i}"
        metadata["tokenizer.ggml.token_type"][i] = UNUSED
    tokens = tokenizer_from_gguf(metadata, "f")
    assert 0 in tokens.encode("hi 🙂 hi")


def test_stop_id_without_a_row_is_left_out_with_a_warning(caplog):
    tokens = tokenizer_from_gguf(byte_level_metadata(**{"ggml.eos_token_id": 50256}), "f")
    assert 50256 not in tokens.stop_ids
    assert "50256" in caplog.text


# --- hostile values --------------------------------------------------------------------------------------------------

HOSTILE = [-1, True, "", "x", 1.5, [], [1], ["a"], ["a b c"], [1.5], 0, 2, 1 << 31]
KEYS = (
    "bos_token_id",
    "eos_token_id",
    "eot_token_id",
    "eom_token_id",
    "unknown_token_id",
    "add_bos_token",
    "add_space_prefix",
    "pre",
    "model",
    "merges",
    "scores",
    "token_type",
    "tokens",
)


@pytest.mark.parametrize("key", [*(f"tokenizer.ggml.{key}" for key in KEYS), "tokenizer.chat_template"])
@pytest.mark.parametrize("base", [byte_level_metadata, sentence_piece_metadata])
def test_hostile_value_is_a_model_error_or_harmless(base, key, monkeypatch):
    from sglang_dsl.runtime.text import load

    for value in HOSTILE:
        header = type("Header", (), {"metadata": {**base(), key: value}})
        monkeypatch.setattr(load, "read_header", lambda path, header=header: header)
        try:
            tokens = load_text(Path("x.gguf"), "f").tokenizer
        except ModelLoadError:
            continue
        ids = tokens.encode_segment(
            [TextPiece("hey hi</s><s><|im_end|>"), TextPiece("<s></s>", control=True)], first=True
        )
        assert all(0 <= token_id < tokens.vocab_size for token_id in with_bos(ids, tokens))
        assert tokens.bos_id is None or tokens.bos_id in range(tokens.vocab_size)
        assert all(type(token_id) is int for token_id in tokens.stop_ids)
        assert type(tokens.adds_bos) is bool


def test_lengths_that_do_not_fit_and_spoilt_tokens_are_model_errors(tmp_path):
    metadata = sentence_piece_metadata()
    for key in ("scores", "token_type"):
        changed = {**metadata, f"tokenizer.ggml.{key}": metadata[f"tokenizer.ggml.{key}"][:-1]}
        with pytest.raises(ModelLoadError):
            load_text(write_gguf(tmp_path / f"{key}.gguf", changed), "f")
    kinds = [*metadata["tokenizer.ggml.token_type"]]
    kinds[-1] = 6  # a byte whose text names none
    with pytest.raises(ModelLoadError):
        load_text(write_gguf(tmp_path / "byte.gguf", {**metadata, "tokenizer.ggml.token_type": kinds}), "f")


def test_alignment_of_nothing_is_a_model_error(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {**byte_level_metadata(), "general.alignment": 0})
    with pytest.raises(ModelLoadError):
        load_text(path, "f")


def test_bos_that_is_no_token_is_not_put_in_front(tmp_path):
    metadata = {**sentence_piece_metadata(), "tokenizer.ggml.bos_token_id": 100_000}
    tokens = load_text(write_gguf(tmp_path / "m.gguf", metadata), "f").tokenizer
    assert (tokens.bos_id, tokens.adds_bos) == (None, False)
