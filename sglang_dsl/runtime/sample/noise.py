"""Randomness that depends on nothing but a seed and a position."""

from __future__ import annotations

import hashlib
import struct


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) for generated token `index` of a sequence with this seed.

    Counter-based, so neither batch-mates nor their order, retraction or a change of batch size can move it. BLAKE2b of both
    as 64-bit words; the top 53 bits are the fraction of a double.
    """
    word = hashlib.blake2b(struct.pack("<QQ", seed % 2**64, index), digest_size=8).digest()
    return float((int.from_bytes(word, "little") >> 11) * 2.0**-53)
