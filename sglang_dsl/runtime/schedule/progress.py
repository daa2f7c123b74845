"""What a step, a timeout or a failure changed for one request: the scheduler's answer to the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from ...ir.execution import TokenScore

ProgressKind: TypeAlias = Literal["admitted", "token", "scored", "failed"]
Logprobs: TypeAlias = tuple[tuple[float, ...], ...]


class Progress(NamedTuple):
    """One event of a request.

    admitted: once, when its first tokens were computed. token: `token_id` was sampled; `ended`: its constraint allows
    nothing more. scored: the end of a ScoreRequest, with (conditional, unconditional) log-probabilities per continuation;
    its pages are released already. failed: the end, with `error`; everything is released already.
    The counts of prompt tokens come with "admitted" and "scored"; prompt_scores (if asked for) with the first "token".
    """

    request_id: str
    kind: ProgressKind
    token_id: int = -1
    ended: bool = False
    score: TokenScore | None = None
    error: Exception | None = None
    scored: tuple[Logprobs, Logprobs] | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    prompt_scores: tuple[TokenScore | None, ...] = ()
    admitted_s: float | None = None  # with "admitted": when the step that computed its first tokens began
    spent_tokens: int = 0  # with "failed" and "scored": all that was put through the model for it


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSnapshot:
    """Counters since the start, and the state of now. Pages: free + tree + request = total; leased and evictable are parts
    of tree; used (peak) are those held by requests or locks. hit_tokens of accessed_tokens prompt tokens were found computed (first admissions only).
    """

    steps: int
    waiting: int
    compiling: int
    running: int
    decoding: int
    accessed_tokens: int
    hit_tokens: int
    computed_tokens: int
    generated_tokens: int
    admitted: int
    finished: int
    failed: int
    cancelled: int
    retracted: int
    preempted: int
    allocation_failures: int
    new_token_ratio: float
    leases: int
    demoted_leases: int
    evicted_pages: int
    total_pages: int
    free_pages: int
    tree_pages: int
    request_pages: int
    leased_pages: int
    evictable_pages: int
    peak_used_pages: int
