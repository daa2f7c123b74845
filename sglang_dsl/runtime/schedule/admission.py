"""How much memory running requests will still need, and whether a candidate fits beside them.

A request rarely generates all it may. The new-token ratio is the share of it that is set aside: high at first, it decays while
all goes well; a retraction sets it to what was observed; when the engine is idle it starts afresh.

Source: the ratio, its decay over 600 steps and the slack of 20 tokens are those of SGLang (srt/managers/schedule_policy.py, 0.5).
"""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import CapacityError, ContextLengthError, SpecError
from .config import WorkerFacts
from .request import GenerateRequest, Request, ScoreRequest
from .sequence import Sequence

INITIAL_RATIO = 0.7
LOWEST_RATIO = 0.1
DECAY_STEPS = 600
RETRACT_SLACK_TOKENS = 20  # per sequence, that a retraction leaves room for
MOST_NEW_TOKENS = 4096  # reserved per sequence, whatever it may generate


class NewTokenRatio:
    """The share of possible new tokens that is reserved. Owned by the Scheduler."""

    def __init__(self) -> None:
        self.value = INITIAL_RATIO

    def decay(self) -> None:
        """A decode step went well."""
        self.value = max(LOWEST_RATIO, self.value - (INITIAL_RATIO - LOWEST_RATIO) / DECAY_STEPS)

    def reset(self) -> None:
        """Nothing runs."""
        self.value = INITIAL_RATIO

    def retracted(self, running: Iterable[Sequence]) -> None:
        """Memory ran out with these running: learn from what they generated."""
        generated = most = 0
        for seq in running:
            generated += seq.generated + RETRACT_SLACK_TOKENS
            most += seq.generated + seq.max_new
        self.value = min(1.0, max(self.value, generated / (most + 1)))


def reserved_pages(seq: Sequence, ratio: float, page_size: int) -> int:
    """Pages `seq` will still take beyond those it holds: the rest of its prompt, its reserved output, one for rounding."""
    tokens = len(seq.tokens) + int(min(seq.max_new, MOST_NEW_TOKENS) * ratio)
    if seq.task is not None:
        tokens = max(tokens, seq.task.longest_tokens + page_size)
    return max(0, -(-tokens // page_size) + 1 - len(seq.pages))


def refuse_impossible(request: Request, facts: WorkerFacts) -> None:
    """Raise if this request could not run even alone.

    Raises:
        SpecError: nothing to continue, or nothing to score.
        ContextLengthError, CapacityError: too long for the model or for the pool, with the numbers.
    """
    if isinstance(request, GenerateRequest) and not request.prompt_ids:
        raise SpecError("the prompt is empty", hint="begin with at least one token (BOS, if the model has one)")
    if isinstance(request, ScoreRequest) and not request.continuations:
        raise SpecError("there is nothing to score", hint="give at least one continuation")
    prompt, new = len(request.prompt_ids), _new_tokens(request)
    if prompt + new > facts.context_tokens:
        raise ContextLengthError(
            f"{prompt} prompt tokens and {new} new ones are more than the context of {facts.context_tokens}",
            prompt_tokens=prompt,
            max_tokens=new,
            context_tokens=facts.context_tokens,
            hint="shorten the prompt or lower max_tokens",
        )
    if (pages := _most_pages(request, facts.page_size)) > facts.num_pages:
        raise CapacityError(
            f"{prompt} prompt tokens and {new} new ones need {pages} pages of {facts.page_size} tokens; "
            f"the pool has {facts.num_pages}",
            hint="give the engine more KV memory, shorten the prompt or lower max_tokens",
        )


def _new_tokens(request: Request) -> int:
    if isinstance(request, GenerateRequest):
        return request.sampling.most_tokens
    return max(map(len, request.continuations))


def _most_pages(request: Request, page_size: int) -> int:
    """Pages it may hold at a time. The last token's K/V is never needed. On one path of a trie every token may begin an
    edge, and every edge has a page of its own.
    """
    prompt, more = len(request.prompt_ids), max(_new_tokens(request) - 1, 0)
    if isinstance(request, ScoreRequest):
        return max(-(-prompt // page_size) + more, 1)
    return -(-(prompt + more) // page_size)
