"""What can be said about a request before it is queued, given the model's facts. A request that passes is well-formed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...errors import SamplingError, SpecError
from ..schedule.request import GenerateRequest, Request
from .worker import WorkerInfo


def check_request(request: Request, info: WorkerInfo) -> None:
    """Refuse what cannot be computed with this vocabulary.

    Raises:
        SpecError: nothing to continue or nothing to score, or a token id that is not one.
        SamplingError: a stop id or a logit bias outside the vocabulary.
    """
    _check_ids("prompt_ids", request.prompt_ids, info.vocab_size)
    if isinstance(request, GenerateRequest):
        if not len(request.prompt_ids):
            raise SpecError("the prompt has no tokens", hint="begin with one at least, for instance the model's BOS")
        _check_sampling(request, info.vocab_size)
        return
    if not request.continuations:
        raise SpecError("there is no continuation to score", hint="give at least one")
    for continuation in request.continuations:
        _check_ids("continuations", continuation, info.vocab_size)


def fitted(request: Request, info: WorkerInfo) -> Request:
    """The request with what it left open decided: a generation that names no `max_tokens` gets what there is room for."""
    if not isinstance(request, GenerateRequest) or request.sampling.max_tokens is not None:
        return request
    return replace(request, sampling=request.sampling.fitting(len(request.prompt_ids), info.context_tokens))


def _check_ids(name: str, token_ids: Sequence[int], vocab_size: int) -> None:
    if not len(token_ids):
        return
    try:
        lowest, highest = min(token_ids), max(token_ids)
    except TypeError as error:
        raise SpecError(f"{name} holds something that is not a token id: {error}", hint="give whole numbers") from error
    if not isinstance(lowest, int) or not isinstance(highest, int):
        raise SpecError(f"{name} holds {lowest!r}, which is not a token id", hint="give whole numbers")
    if lowest < 0 or highest >= vocab_size:
        bad = lowest if lowest < 0 else highest
        raise SpecError(
            f"{name} holds {bad}; ids of this model are 0 to {vocab_size - 1}", hint="encode with its tokenizer"
        )


def _check_sampling(request: GenerateRequest, vocab_size: int) -> None:
    asked = {
        "stop_token_ids": request.sampling.stop_token_ids,
        "logit_bias": [token_id for token_id, _ in request.sampling.logit_bias],
    }
    for name, token_ids in asked.items():
        for token_id in token_ids:
            if token_id >= vocab_size:
                raise SamplingError(
                    f"{name} names token {token_id}; ids of this model are 0 to {vocab_size - 1}",
                    hint="encode with its tokenizer",
                )
