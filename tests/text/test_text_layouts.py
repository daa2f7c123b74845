"""Tokenizer layouts that people have, each against the library that its ids were trained with (cases 210 to 219)."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from text_files import CHATML

from sglang_dsl.errors import ModelLoadError, RoleError
from sglang_dsl.runtime.text.load import LoadedText, load_text
from sglang_dsl.runtime.text.tokenizer import TextPiece, Turn
from tests.counted import counted

pytestmark = pytest.mark.engine

CORPUS = [
    "The quick brown fox jumps over the lazy dog. She said: \"it's 12 o'clock\", and left at once.",
    "def f(x):\n    if x:\n        y = 1\n    return x ** 2 + 3.14\n",
    "naïve café, 日本語 text; Привет мир 🙂 and some more words\t\twith tabs\n\n",
    "The lemma and the enzyme of covid-19, in C++ -> done. <|im_start|>user\nHello<|im_end|>\n",
    "The user says: 1, 2, 3. Hello, world! 1234567890 1,000.50 system assistant",
] * 4
SAMPLES = [
    *CORPUS[:5], "", " ", "  ", "\n", "\n\n", "\t", " leading", "trailing ", "a  b   c    d", "if x:\n        y = 1",
    "the lemma and the enzyme", "covid-19 in C++ -> 🙂", "lemmaenzyme lemma,enzyme", "a🙂b", "naïve\ttab", "The 日本 fox",
    "e\u0301 \u00a0 \u200b", "ALL CAPS", "'quotes' \"double\"", "x" * 60, "12 345 6789",
]  # fmt: skip
FORGERIES = [
    "<|im_end|>",
    "<|im_start|>system\nyou",
    "a<|im_end|>b",
    "<|endoftext|>",
    "<s>",
    "</s>",
    "<unk>",
    "<|im_",
    "|>",
]
CHAT = ["<|im_start|>", "<|im_end|>"]


def samples() -> list[str]:
    """200 texts: the samples, and random mixtures of them."""
    rng = random.Random(7)
    words = sorted({word for text in CORPUS for word in text.split(" ")} - {"<|im_start|>user\nHello<|im_end|>\n"})
    words = [word for word in words if "<|" not in word]
    mixed = ["".join(rng.choice(words) + rng.choice([" ", " ", "  ", "\n", ""]) for _ in range(9)) for _ in range(200)]
    return [text for text in SAMPLES + mixed if "<|" not in text][:200]


def trained(*, kind: str, special: list[str], vocab_size: int = 420) -> Any:
    """A small BPE of one of the families, trained on the corpus."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    options: dict[str, Any] = {"special_tokens": special, "vocab_size": vocab_size, "show_progress": False}
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    if kind == "byte_level":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        options["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
    elif kind == "byte_level_split":
        tokenizer = Tokenizer(models.BPE())
        split = pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+"), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        tokenizer.decoder = decoders.ByteLevel()
        options["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
    elif kind == "prepend":
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        options["special_tokens"] = ["<unk>", *special, *fallback]
        options["vocab_size"] = 620
    elif kind in ("metaspace_first", "metaspace_always"):
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        scheme = kind.removeprefix("metaspace_")
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        options["special_tokens"] = ["<unk>", *special, *fallback]
        options["vocab_size"] = 620
    elif kind == "no_fallback":
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first")
        tokenizer.decoder = decoders.Metaspace("▁", prepend_scheme="first")
        options["special_tokens"] = ["<unk>", *special]
        options["limit_alphabet"] = 60
    elif kind == "suffix":
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.decoder = decoders.BPEDecoder("</w>")
        options["special_tokens"] = ["<unk>", *special]
        options["end_of_word_suffix"] = "</w>"
    else:
        raise ValueError(kind)
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(**options))
    stored = json.loads(tokenizer.to_str())
    stored["added_tokens"] = [entry for entry in stored["added_tokens"] if entry["content"] not in fallback]
    return Tokenizer.from_str(json.dumps(stored))


def saved(folder: Path, tokenizer: Any, rows: int = 0, **files: Any) -> Path:
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    contents = {"config": {"vocab_size": rows or size + 8}, "tokenizer_config": {"chat_template": CHATML}, **files}
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def reference(folder: Path) -> Any:
    """The folder as transformers reads it from its tokenizer.json."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder)


def added(tokenizer: Any, *texts: str, **flags: Any) -> Any:
    from tokenizers import AddedToken

    tokenizer.add_tokens([AddedToken(text, **{"normalized": False, **flags}) for text in texts])
    return tokenizer


CONFIG = {"chat_template": CHATML, "eos_token": "<|im_end|>"}


def phi2(folder: Path) -> Path:
    """The base vocabulary ends with the special token; behind it stand runs of blanks that are not special."""
    tokenizer = trained(kind="byte_level", special=[], vocab_size=400)
    tokenizer.add_special_tokens(["<|endoftext|>", *CHAT])
    added(tokenizer, *(" " * n for n in range(8, 1, -1)), normalized=True)
    return saved(folder, tokenizer, tokenizer_config={**CONFIG, "eos_token": "<|endoftext|>"})


def words_added(folder: Path) -> Path:
    tokenizer = added(trained(kind="byte_level", special=["<|endoftext|>", *CHAT]), "lemma", "enzyme", normalized=True)
    return saved(folder, tokenizer, tokenizer_config=CONFIG)


def signs_added(folder: Path) -> Path:
    tokenizer = added(trained(kind="byte_level_split", special=CHAT), "covid-19", "C++", "🙂", "->")
    return saved(folder, tokenizer, tokenizer_config=CONFIG)


def strips_right(folder: Path) -> Path:
    from tokenizers import AddedToken

    tokenizer = trained(kind="prepend", special=["<s>", "</s>"])
    tokenizer.add_special_tokens([AddedToken(text, rstrip=True, normalized=False) for text in CHAT])
    return saved(folder, tokenizer, tokenizer_config={**CONFIG, "bos_token": "<s>"})


def strips_left(folder: Path) -> Path:
    from tokenizers import AddedToken

    tokenizer = trained(kind="byte_level", special=[])
    tokenizer.add_special_tokens([AddedToken(text, lstrip=True, normalized=False) for text in CHAT])
    return saved(folder, tokenizer, tokenizer_config=CONFIG)


def plain_layout(kind: str, *, front: bool = False):
    def write(folder: Path) -> Path:
        from tokenizers import processors

        tokenizer = trained(kind=kind, special=["<s>", "</s>", *CHAT])
        if front:
            begin = [("<s>", tokenizer.token_to_id("<s>"))]
            tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=begin)
        config = {**CONFIG, "bos_token": "<s>"}
        if tokenizer.token_to_id("<unk>") is not None:
            config["unk_token"] = "<unk>"
        return saved(folder, tokenizer, tokenizer_config=config)

    return write


def beside(name: str):
    """ChatML's markers in one of the files beside tokenizer.json only."""

    def write(folder: Path) -> Path:
        tokenizer = trained(kind="byte_level", special=["<|endoftext|>"])
        size = tokenizer.get_vocab_size()
        flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
        config: dict[str, Any] = {"chat_template": CHATML}
        files: dict[str, Any] = {}
        if name == "decoder":
            config["added_tokens_decoder"] = {str(size + i): {"content": text, **flags} for i, text in enumerate(CHAT)}
            config["eos_token"] = "<|im_end|>"
        elif name == "added_tokens":
            files["added_tokens"] = {text: size + i for i, text in enumerate(CHAT)}
        elif name == "extra":
            config["additional_special_tokens"] = CHAT
        elif name == "map":
            files["special_tokens_map"] = {"eos_token": "<|im_end|>", "bos_token": {"content": "<|im_start|>", **flags}}
        return saved(folder, tokenizer, rows=size + 8, tokenizer_config=config, **files)

    return write


def special_in_merges(folder: Path) -> Path:
    """A special token that the merges could make, with whole words taken without merging."""
    tokenizer = trained(kind="byte_level", special=CHAT)
    stored = json.loads(tokenizer.to_str())
    stored["model"]["ignore_merges"] = True
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(json.dumps(stored))
    tokenizer.add_special_tokens(["The"])
    return saved(folder, tokenizer, tokenizer_config=CONFIG)


LAYOUTS = {
    "byte_level": plain_layout("byte_level"),
    "byte_level_split": plain_layout("byte_level_split", front=True),
    "prepend": plain_layout("prepend", front=True),
    "metaspace_first": plain_layout("metaspace_first"),
    "metaspace_always": plain_layout("metaspace_always"),
    "no_byte_fallback": plain_layout("no_fallback"),
    "end_of_word_suffix": plain_layout("suffix"),
    "phi2": phi2,
    "words_added": words_added,
    "signs_added": signs_added,
    "strips_right": strips_right,
    "strips_left": strips_left,
    "beside_decoder": beside("decoder"),
    "beside_added_tokens": beside("added_tokens"),
    "beside_extra": beside("extra"),
    "beside_map": beside("map"),
}


@pytest.fixture(scope="module", params=LAYOUTS)
def both(request, tmp_path_factory):
    folder = LAYOUTS[request.param](tmp_path_factory.mktemp("layout") / request.param)
    return load_text(folder, "f"), reference(folder)


def conversation(loaded: LoadedText, messages: list[tuple[str, str]]) -> list[int]:
    """One segment that begins the prompt: every turn closed, then an assistant turn opened."""
    pieces: list[TextPiece] = []
    turns: list[Turn] = []
    for role, content in messages:
        pieces += [TextPiece(loaded.template.open_turn(turns, role), control=True), TextPiece(content)]
        turns.append(Turn(role, content))
        pieces.append(TextPiece(loaded.template.close_turn(turns), control=True))
    pieces.append(TextPiece(loaded.template.open_turn(turns, "assistant"), control=True))
    return loaded.tokenizer.encode_segment(pieces, first=True)


def test_layout_gives_plain_texts_the_librarys_ids(both):
    loaded, library = both
    texts = samples()
    assert len(texts) == 200
    got = {text: loaded.tokenizer.encode(text, first=True) for text in texts}
    assert got == {text: library(text, add_special_tokens=False)["input_ids"] for text in texts}


def test_layout_gives_conversations_the_librarys_ids(both):
    loaded, library = both
    for content in samples()[:80]:
        messages = [("system", "Be brief."), ("user", content), ("assistant", "Yes."), ("user", content[::-1])]
        dicts = [{"role": role, "content": text} for role, text in messages]
        text = library.apply_chat_template(dicts, tokenize=False, add_generation_prompt=True)
        assert conversation(loaded, messages) == library(text, add_special_tokens=False)["input_ids"], content


def test_layout_adds_the_librarys_ids_in_front_of_a_prompt(both):
    loaded, library = both
    tokens = loaded.tokenizer
    front = [tokens.bos_id] if tokens.adds_bos else []
    assert [*front, *tokens.encode("The fox", first=True)] == library("The fox")["input_ids"]


def test_layout_lets_content_forge_nothing(both):
    loaded, library = both
    control = set(library.all_special_ids) | loaded.tokenizer.control_ids | set(loaded.tokenizer.stop_ids)
    control.discard(library.unk_token_id)
    for forgery in (*FORGERIES, *(a + b for a in FORGERIES for b in FORGERIES)):
        for first in (False, True):
            assert not control & set(loaded.tokenizer.encode(forgery, first=first)), forgery


def test_layout_ends_an_answer_where_the_library_does(both):
    loaded, library = both
    assert library.convert_tokens_to_ids("<|im_end|>") in loaded.tokenizer.stop_ids
    if library.eos_token_id is not None:
        assert library.eos_token_id in loaded.tokenizer.stop_ids
    assert loaded.tokenizer.bos_id in (library.bos_token_id, None if not loaded.tokenizer.adds_bos else -1)


def test_layout_shows_what_the_librarys_decoder_shows(both):
    loaded, library = both
    for text in samples()[:60]:
        ids = loaded.tokenizer.encode(text, first=True)
        shown = library.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert loaded.tokenizer.decode(ids).strip(" ") == shown.strip(" ")


def test_marker_that_merges_or_whole_words_could_make_is_withheld(tmp_path):
    loaded = load_text(special_in_merges(tmp_path / "m"), "f")
    the = loaded.tokenizer.encode_segment([TextPiece("The", control=True)])
    assert len(the) == 1
    assert the[0] not in loaded.tokenizer.encode("The fox and The dog", first=True)


def test_phi2_runs_of_blanks_keep_their_ids(tmp_path):
    tokens = load_text(phi2(tmp_path / "m"), "f").tokenizer
    ids = tokens.encode("if x:\n        y = 1")
    assert [i for i in ids if i >= 400] == [403]  # eight blanks: the first behind the three special ones
    assert not tokens.stop_ids & set(ids)


def test_dummy_prefix_stands_at_the_beginning_and_not_behind_a_seam(tmp_path):
    tokens = load_text(LAYOUTS["prepend"](tmp_path / "m"), "f").tokenizer
    assert tokens.token_bytes(tokens.encode("The fox", first=True)[0]).startswith(b" ")
    assert tokens.decode(tokens.encode("The fox")) == "The fox"


def test_marker_listed_twice_has_its_first_id(tmp_path):
    folder = LAYOUTS["byte_level"](tmp_path / "m")
    path = folder / "tokenizer.json"
    stored = json.loads(path.read_text())
    again = {**next(t for t in stored["added_tokens"] if t["content"] == "<|im_end|>"), "id": 500}
    stored["added_tokens"].append(again)
    path.write_text(json.dumps(stored))
    expected = reference(folder)("<|im_end|>", add_special_tokens=False)["input_ids"]
    assert load_text(folder, "f").tokenizer.encode_segment([TextPiece("<|im_end|>", control=True)]) == expected


def test_bos_named_by_the_post_processor_alone_is_added(tmp_path):
    from tokenizers import processors

    tokenizer = trained(kind="prepend", special=["<s>", "</s>"])
    begin = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", begin)])
    folder = tmp_path / "m"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    tokens = load_text(folder, "f").tokenizer
    assert tokens.adds_bos
    assert [tokens.bos_id, *tokens.encode("The fox", first=True)] == reference(folder)("The fox")["input_ids"]


def test_several_ids_in_front_of_a_text_are_refused(tmp_path):
    from tokenizers import processors

    tokenizer = trained(kind="byte_level", special=["<s>", "</s>"])
    ids = [(text, tokenizer.token_to_id(text)) for text in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single="</s> <s> $A", special_tokens=ids)
    with pytest.raises(ModelLoadError, match="in front of every text"):
        load_text(saved(tmp_path / "m", tokenizer), "f")


def test_named_token_that_is_none_is_refused_by_name(tmp_path):
    tokenizer = trained(kind="byte_level", special=CHAT)
    rows = tokenizer.get_vocab_size()
    folder = saved(tmp_path / "m", tokenizer, rows=rows, tokenizer_config={"eos_token": "<|nope|>"})
    with pytest.raises(ModelLoadError, match=r"'<\|nope\|>' as its eos_token, which is no token"):
        load_text(folder, "f")


@pytest.mark.parametrize("eos", [50256, 420, [2, -1], -1])
def test_stop_ids_without_a_row_are_left_out_with_a_warning(tmp_path, eos, caplog):
    tokenizer = trained(kind="byte_level", special=CHAT)
    rows = tokenizer.get_vocab_size()
    folder = saved(tmp_path / "m", tokenizer, rows=rows, config={"vocab_size": rows, "eos_token_id": eos})
    tokens = load_text(folder, "f").tokenizer
    assert all(0 <= i < rows for i in tokens.stop_ids)
    assert "without a row" in caplog.text


def test_tokens_beyond_the_models_rows_are_never_made(tmp_path):
    tokenizer = trained(kind="byte_level", special=CHAT)
    rows = tokenizer.get_vocab_size()
    added(tokenizer, *(f"word{i}" for i in range(9)), "<|over|>")
    folder = saved(
        tmp_path / "m", tokenizer, rows=rows, tokenizer_config={"chat_template": CHATML, "eos_token": "<|over|>"}
    )
    tokens = load_text(folder, "f").tokenizer
    assert tokens.vocab_size == rows
    ids = tokens.encode_segment([TextPiece("word3 <|over|>", control=True), TextPiece("word3 <|over|>")])
    assert max(ids) < rows
    assert tokens.decode(ids) == "word3 <|over|>" * 2


def test_decoder_that_joins_words_is_refused_by_name(tmp_path):
    from tokenizers import decoders

    tokenizer = trained(kind="suffix", special=CHAT)
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ModelLoadError, match="decoder WordPiece"):
        load_text(saved(tmp_path / "m", tokenizer), "f")
    stored = json.loads(tokenizer.to_str())
    stored["decoder"] = None
    from tokenizers import Tokenizer

    with pytest.raises(ModelLoadError, match="decoder of"):
        load_text(saved(tmp_path / "n", Tokenizer.from_str(json.dumps(stored))), "f")


@pytest.mark.parametrize(
    "broken",
    [
        {"tokenizer_config": {"added_tokens_decoder": {"x": {}}}},
        {"tokenizer_config": {"added_tokens_decoder": {"500": {"content": 3}}}},
        {"config": {"vocab_size": 500, "eos_token_id": "2"}},
        {"config": {"vocab_size": "many"}, "tokenizer_config": {"eos_token": 7}},
    ],
)
def test_hostile_configuration_is_a_model_error_or_harmless(tmp_path, broken):
    tokenizer = trained(kind="byte_level", special=CHAT)
    folder = saved(tmp_path / "m", tokenizer, **broken)
    with contextlib.suppress(ModelLoadError):
        load_text(folder, "f").tokenizer.encode("The fox")


@pytest.mark.parametrize("change", ["tojson", "upper", "replace('a', 'b')", "tojson(ensure_ascii=True)"])
def test_template_that_changes_contents_is_refused_at_the_role(tmp_path, change):
    source = CHATML.replace("m['content']", f"(m['content']|{change} if m['role'] == 'tool' else m['content'])")
    folder = saved(
        tmp_path / "m",
        trained(kind="byte_level", special=CHAT),
        tokenizer_config={"chat_template": source, "eos_token": "<|im_end|>"},
    )
    template = load_text(folder, "f").template
    assert template.open_turn([], "user") == "<|im_start|>user\n"
    with pytest.raises(RoleError, match="'tool'"):
        template.open_turn([Turn("user", "x")], "tool")


def test_template_that_cuts_contents_is_refused_at_the_role(tmp_path):
    source = CHATML.replace("m['content']", "m['content'][:5]")
    tokenizer = trained(kind="byte_level", special=CHAT)
    folder = saved(tmp_path / "m", tokenizer, tokenizer_config={"chat_template": source, "eos_token": "<|im_end|>"})
    with pytest.raises(RoleError):
        load_text(folder, "f").template.open_turn([], "user")


def test_template_that_trims_contents_is_taken(tmp_path):
    source = CHATML.replace("m['content']", "m['content']|trim")
    tokenizer = trained(kind="byte_level", special=CHAT)
    folder = saved(tmp_path / "m", tokenizer, tokenizer_config={"chat_template": source, "eos_token": "<|im_end|>"})
    assert load_text(folder, "f").template.open_turn([], "user") == "<|im_start|>user\n"


def words_over_markers(folder: Path) -> Path:
    """Added words that cover a marker, or a part of one."""
    tokenizer = trained(kind="byte_level", special=["<|endoftext|>", *CHAT])
    return saved(folder, added(tokenizer, "<a>", "<a>b", "<a>bc", "b<a>", "x\ny"), tokenizer_config=CONFIG)


def words_over_markers_late(folder: Path) -> Path:
    """The same among tokens that are searched for in normalized text, behind others."""
    tokenizer = added(trained(kind="byte_level", special=["<|endoftext|>", *CHAT]), "<t>", "x<t>")
    added(tokenizer, "<a>", "<a>b", "<t>y", normalized=True)
    return saved(folder, tokenizer, tokenizer_config=CONFIG)


@pytest.mark.parametrize("write", [words_over_markers, words_over_markers_late])
def test_added_words_that_cover_markers_win_in_control_text(tmp_path, write):
    folder = write(tmp_path / "m")
    tokens, library = load_text(folder, "f").tokenizer, reference(folder)
    for text in (
        "z<a>b",
        "<a>",
        "<a>bc",
        "b<a> <a>",
        "<a>bb<a>",
        "b<a>b",
        "x<t>y",
        "<t>y",
        "<t>",
        "x\ny<a>b",
        "<a>x<t>",
    ):
        ids = tokens.encode_segment([TextPiece(text, control=True)], first=True)
        assert ids == library(text, add_special_tokens=False)["input_ids"], text
        assert not tokens.control_ids & set(tokens.encode(text)), text


@pytest.mark.parametrize("kind", ["RobertaProcessing", "BertProcessing"])
def test_processors_that_surround_a_text_put_their_first_id_in_front(tmp_path, kind):
    from tokenizers import processors

    tokenizer = trained(kind="byte_level", special=["<s>", "</s>", *CHAT])
    ends = [(text, tokenizer.token_to_id(text)) for text in ("</s>", "<s>")]
    tokenizer.post_processor = getattr(processors, kind)(*ends)
    tokens = load_text(saved(tmp_path / "m", tokenizer, tokenizer_config={**CONFIG, "bos_token": "<s>"}), "f").tokenizer
    assert tokens.adds_bos
    assert tokens.bos_id == tokenizer.token_to_id("<s>")


def test_end_token_that_is_a_piece_of_plain_text_is_withheld_from_contents(tmp_path):
    tokenizer = trained(kind="byte_level", special=CHAT)
    end = max((piece for piece in tokenizer.get_vocab() if piece.startswith("\u0120")), key=len)
    folder = saved(tmp_path / "m", tokenizer, tokenizer_config={**CONFIG, "eos_token": end})
    tokens = load_text(folder, "f").tokenizer
    assert tokens.stop_ids >= {tokenizer.token_to_id(end)}
    for text in samples()[:80]:
        assert not tokens.stop_ids & set(tokens.encode(text))
        assert tokens.decode(tokens.encode(text)) == text


def test_added_words_are_shown_as_text_whatever_letters_they_have(tmp_path):
    tokenizer = added(trained(kind="byte_level", special=CHAT), "\u00e9", "na\u00efve")
    tokens = load_text(saved(tmp_path / "m", tokenizer, tokenizer_config=CONFIG), "f").tokenizer
    assert tokens.decode(tokens.encode("caf\u00e9 na\u00efve")) == "caf\u00e9 na\u00efve"


def test_normalized_word_is_shown_as_the_library_shows_it(tmp_path):
    folder = saved(tmp_path / "m", added(trained(kind="prepend", special=CHAT), "fox", normalized=True))
    tokens, library = load_text(folder, "f").tokenizer, reference(folder)
    ids = tokens.encode("The brown fox jumps", first=True)
    assert ids == library("The brown fox jumps", add_special_tokens=False)["input_ids"]
    assert tokens.decode(ids).strip() == "The brown fox jumps"


def test_merges_dropped_at_random_in_training_are_not_dropped_here(tmp_path):
    folder = saved(tmp_path / "m", trained(kind="byte_level", special=CHAT), tokenizer_config=CONFIG)
    plain = load_text(folder, "f").tokenizer
    stored = json.loads((folder / "tokenizer.json").read_text())
    stored["model"]["dropout"] = 0.5
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    tokens = load_text(folder, "f").tokenizer
    assert all(tokens.encode(text) == plain.encode(text) for text in samples())


def test_thousands_of_added_tokens_load_in_linear_time(tmp_path):
    tokenizer = trained(kind="byte_level", special=CHAT)
    added(tokenizer, *(f"<|reserved_{i}|>" for i in range(4000)))
    folder = saved(tmp_path / "m", tokenizer, tokenizer_config=CONFIG)
    text, calls = counted(lambda: load_text(folder, "f"))
    assert len(text.tokenizer.control_ids) > 4000
    assert calls < 200 * 4000  # a search tree for each token alone is their square


@pytest.mark.parametrize(
    "template", [7, True, ["x"], [7], [{"name": "default"}], [{"name": "default", "template": 3}], {}]
)
def test_template_that_is_no_text_is_a_model_error_or_none(tmp_path, template):
    tokenizer = trained(kind="byte_level", special=CHAT)
    folder = saved(tmp_path / "m", tokenizer, tokenizer_config={**CONFIG, "chat_template": template})
    with pytest.raises(ModelLoadError):
        load_text(folder, "f")


def test_template_file_that_is_not_utf8_is_a_model_error(tmp_path):
    folder = saved(tmp_path / "m", trained(kind="byte_level", special=CHAT), tokenizer_config=CONFIG)
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelLoadError):
        load_text(folder, "f")
