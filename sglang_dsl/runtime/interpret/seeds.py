"""Seeds: what makes a call's randomness its own, and repeatable."""

from __future__ import annotations

import hashlib
import secrets

SEED_BITS = 63  # fits every generator's signed 64-bit seed


def draw_seed() -> int:
    """A seed for a run that was given none."""
    return secrets.randbits(SEED_BITS)


def node_seed(run_seed: int, node_id: str, sample: int, attempt: int) -> int:
    """H(run seed, node id, sample, attempt)."""
    return _hash("node", run_seed, node_id, sample, attempt)


def own_seed(seed: int, sample: int, attempt: int) -> int:
    """For a gen with a `seed=` of its own, which stands in for run seed and node id. First of its kind: the seed itself."""
    return seed if sample == attempt == 0 else _hash("own", seed, sample, attempt)


def _hash(*parts: int | str) -> int:
    fields = b"".join(f"{len(text)}:{text}".encode() for text in map(str, parts))
    return int.from_bytes(hashlib.sha256(fields).digest()[:8]) >> (64 - SEED_BITS)
