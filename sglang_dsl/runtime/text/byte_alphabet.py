"""How byte-level BPE vocabularies write bytes as printable characters.

Source: GPT-2's encoder (openai/gpt-2, src/encoder.py): printable Latin-1 stands for itself, the rest follows from U+0100.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


@cache
def byte_of_char() -> dict[str, int]:
    """Byte by the character that stands for it."""
    others = [byte for byte in range(256) if byte not in _PRINTABLE]
    table = {chr(byte): byte for byte in _PRINTABLE}
    return table | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def piece_bytes(piece: str) -> bytes:
    """The bytes a vocabulary entry stands for; an entry outside the alphabet (an added token) stands for its own text."""
    table = byte_of_char()
    try:
        return bytes([table[char] for char in piece])
    except KeyError:
        return piece.encode()


def unseen_bytes(pieces: Iterable[str]) -> bytes:
    """The bytes that have no entry of their own: text with them cannot be encoded."""
    known = {piece for piece in pieces if len(piece) == 1}
    return bytes(byte for char, byte in byte_of_char().items() if char not in known)
