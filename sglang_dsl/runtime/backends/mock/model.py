"""What an unscripted mock does: deterministic words, valid values, and a little language model to score choices with."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from random import Random

from ...constrain.compile import compile_constraint
from .log import Call
from .reply import Reply

INVENTED_CHARACTERS = 60  # about; more where the constraint needs more
SCORED_CONTEXT = 8  # ids that the little language model looks back


def echo(call: Call) -> Reply | None:
    """A reply for any call, the same for the same prompt: a value its constraint allows, else its name and a short code.

    A select is left to the language model: None.
    """
    if call.sampling is None:
        return None
    seed = _digest(call.request.prompt_ids, call.label.sample, call.label.attempt)
    if call.constraint is not None:
        return Reply(text=compile_constraint(call.constraint).sample_text(Random(seed), characters=INVENTED_CHARACTERS))
    return Reply(text=f"{call.name or 'text'} {seed % 0x10000:04x}")


def valid(call: Call) -> Reply | None:
    """A reply for constrained calls only."""
    return echo(call) if call.constraint is not None else None


def token_logprob(before: Sequence[int], token_id: int) -> float:
    """Between -8 and 0, from a hash: a model without sense, but a function of the ids it is given."""
    return -(_digest(before[-SCORED_CONTEXT:], token_id) % 8000) / 1000


def _digest(ids: Sequence[int], *more: int) -> int:
    text = ",".join(map(str, (*ids, -1, *more)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
