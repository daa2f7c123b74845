"""What an unscripted mock does: deterministic words, valid values, and a little language model to score choices with."""

from __future__ import annotations

import hashlib
from random import Random

from ...constrain.compile import compile_constraint
from .log import Call
from .reply import Reply

INVENTED_CHARACTERS = 60  # about; more where the constraint needs more
SCORED_CONTEXT = 40  # characters that the little language model looks back


def echo(call: Call) -> Reply | None:
    """A reply for any call, the same for the same prompt: a value its constraint allows, else its name and a short code.

    A select is left to the language model: None.
    """
    if call.sampling is None:
        return None
    seed = _digest(call.prompt, str(call.label.sample), str(call.label.attempt))
    if call.constraint is not None:
        compiled = compile_constraint(call.constraint)
        return Reply(text=compiled.sample_text(Random(seed), characters=INVENTED_CHARACTERS))
    return Reply(text=f"{call.name or 'text'} {seed % 0x10000:04x}")


def valid(call: Call) -> Reply | None:
    """A reply for constrained calls only."""
    return echo(call) if call.constraint is not None else None


def token_logprob(before: str, token: str) -> float:
    """Between -8 and 0, from a hash: a model without sense, but a function of the text it is given."""
    return -(_digest(before[-SCORED_CONTEXT:], token) % 8000) / 1000


def _digest(*texts: str) -> int:
    parts = b"".join(f"{len(text)}:{text}".encode() for text in texts)
    return int.from_bytes(hashlib.blake2b(parts, digest_size=8).digest())
