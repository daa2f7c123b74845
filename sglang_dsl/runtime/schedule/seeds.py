"""The seed of a request that brought none: its own id, so that neighbours and order change nothing."""

from __future__ import annotations

import hashlib

from .request import GenerateRequest

SEED_BYTES = 8


def seed_of(request: GenerateRequest) -> int:
    """The sampling's seed, or one derived from the request's id."""
    if request.sampling.seed is not None:
        return request.sampling.seed
    return int.from_bytes(hashlib.blake2b(request.request_id.encode(), digest_size=SEED_BYTES).digest(), "little")
