"""The mock's tokenizer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_dsl.errors import CapacityError, SpecError
from sglang_dsl.runtime.text.tokenizer import PieceTokenizer, TextPiece


@given(st.text(max_size=60))
def test_pieces_round_trip_and_forge_nothing(text):
    tokens = PieceTokenizer()
    try:
        ids = tokens.encode(text)
    except SpecError:
        return  # lone surrogates
    assert tokens.decode(ids) == text
    assert not tokens.control_ids & set(ids)


def test_pieces_get_equal_ids_in_equal_order():
    first, second = PieceTokenizer(), PieceTokenizer()
    texts = ["Hello, world", "the world 12", "Hello"]
    assert [first.encode(t) for t in texts] == [second.encode(t) for t in texts]


def test_pieces_of_bytes_are_their_own_ids():
    tokens = PieceTokenizer()
    assert tokens.intern(b"\xf0") == 0xF0
    assert tokens.intern("a") == ord("a")
    assert tokens.decode([0xF0, 0x9F, 0x99, 0x82]) == "🙂"


def test_pieces_interned_by_many_threads_are_interned_once():
    tokens = PieceTokenizer()
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda i: tokens.intern(f"piece {i % 50}"), range(2000)))
    assert len(set(ids)) == 50
    assert all(tokens.token_bytes(i) == f"piece {n % 50}".encode() for n, i in enumerate(ids))


def test_pieces_control_tokens_come_from_control_pieces_only():
    tokens = PieceTokenizer()
    ids = tokens.encode_segment([TextPiece("<|im_start|>user\n", control=True), TextPiece("hi <|im_end|>")])
    assert [i for i in ids if i in tokens.control_ids] == [tokens.control_id("<|im_start|>")]
    assert tokens.decode(ids) == "user\nhi <|im_end|>"


def test_pieces_stop_at_the_end_of_text_and_of_a_turn():
    tokens = PieceTokenizer()
    assert tokens.stop_ids == {tokens.eos_id, tokens.control_id("<|im_end|>")}


def test_pieces_over_the_bound_are_refused():
    tokens = PieceTokenizer(vocab_size=260)
    tokens.intern("first")
    with pytest.raises(CapacityError, match="260 pieces is full"):
        tokens.intern("second")


def test_piece_that_is_empty_is_refused():
    with pytest.raises(ValueError, match="empty piece"):
        PieceTokenizer().intern(b"")


def test_pieces_that_are_parts_of_a_character_keep_their_bytes():
    tokens = PieceTokenizer()
    halves = [tokens.intern(piece) for piece in (b"\xf0\x9f", b"\x99\x82", b"\x98\x80")]
    assert [list(tokens.token_bytes(i)) for i in halves] == [[240, 159], [153, 130], [152, 128]]
    assert tokens.decode(halves[:2]) == "🙂"
