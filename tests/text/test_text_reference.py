"""The same files read by transformers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_files import CHATML, SPECIAL, write_folder

from sglang_dsl.runtime.text.load import LoadedText, load_text
from sglang_dsl.runtime.text.tokenizer import TextPiece, Turn

pytestmark = pytest.mark.engine

contents = st.text(alphabet="helo wr12é🙂\n'", max_size=24)
conversations = st.lists(
    st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), contents), min_size=1, max_size=5
)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    from transformers import PreTrainedTokenizerFast

    folder = write_folder(tmp_path_factory.mktemp("reference"))
    reference = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), eos_token=SPECIAL[0])
    reference.chat_template = CHATML
    return load_text(folder, "f"), reference


def conversation_ids(loaded: LoadedText, messages) -> list[int]:
    """One segment: every turn closed, then an assistant turn opened."""
    pieces: list[TextPiece] = []
    turns: list[Turn] = []
    for role, content in messages:
        pieces += [TextPiece(loaded.template.open_turn(turns, role), control=True), TextPiece(content)]
        turns.append(Turn(role, content))
        pieces.append(TextPiece(loaded.template.close_turn(turns), control=True))
    pieces.append(TextPiece(loaded.template.open_turn(turns, "assistant"), control=True))
    return loaded.tokenizer.encode_segment(pieces)


@settings(deadline=None)
@given(conversations)
def test_conversation_has_the_ids_transformers_gives_it(both, messages):
    loaded, reference = both
    dicts = [{"role": role, "content": content} for role, content in messages]
    text = reference.apply_chat_template(dicts, tokenize=False, add_generation_prompt=True)
    assert conversation_ids(loaded, messages) == reference(text, add_special_tokens=False)["input_ids"]


@settings(deadline=None)
@given(contents)
def test_content_has_the_ids_and_text_transformers_gives_it(both, content):
    loaded, reference = both
    ids = loaded.tokenizer.encode(content)
    assert ids == reference(content, add_special_tokens=False)["input_ids"]
    assert loaded.tokenizer.decode(ids) == content
