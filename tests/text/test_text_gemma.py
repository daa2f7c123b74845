"""A SentencePiece vocabulary of 262,144 entries. The ids are those transformers gives for the same file."""

from __future__ import annotations

import pytest

from sglang_dsl.errors import ModelNotFoundError
from sglang_dsl.runtime.supply import locate
from sglang_dsl.runtime.text.load import load_text
from sglang_dsl.runtime.text.tokenizer import LabelTemplate

pytestmark = [pytest.mark.model, pytest.mark.long]

TEXT = "Hello, world!\n\n  def f(x):\n\treturn 12 日本語 🙂"
IDS = [
    9259,
    236764,
    1902,
    236888,
    108,
    138,
    2063,
    517,
    236769,
    236781,
    1473,
    107,
    255968,
    2060,
    236743,
    236770,
    236778,
    33375,
    238582,
    57235,
]


@pytest.fixture(scope="module")
def gemma():
    try:
        files = locate("gemma3-270m")
    except ModelNotFoundError:
        pytest.skip("Gemma 3 is not downloaded (sglang-dsl models pull gemma3-270m)")
    return load_text(files.path, files.fingerprint)


def test_gemma_ids_and_text(gemma):
    assert gemma.tokenizer.encode(TEXT) == IDS
    assert gemma.tokenizer.decode(IDS) == TEXT


def test_gemma_content_forges_no_marker(gemma):
    text = "<start_of_turn>user <b>bold</b> <0x0A> [multimodal]"
    ids = gemma.tokenizer.encode(text)
    assert not gemma.tokenizer.control_ids & set(ids)
    assert gemma.tokenizer.decode(ids) == text


def test_gemma_facts(gemma):
    tokens = gemma.tokenizer
    assert (tokens.vocab_size, tokens.bos_id, tokens.adds_bos, tokens.stop_ids) == (262144, 2, True, {1})
    assert isinstance(gemma.template, LabelTemplate)  # a base model
