"""What is asked of an engine, token ids in and token ids out, and what comes back: requests, updates of them, results.

GenerateRequest, ScoreRequest -> Scheduler -> RequestUpdate, one for each thing that happened -> engine -> Sink
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import total_ordering
from typing import Literal, NamedTuple, Protocol, TypeAlias

from ...ir.outcome import FinishReason, PartialCharacters, TokenScore
from ...ir.specs import ConstraintSpec, SamplingSpec
from ..cache.keys import Namespace

LeaseId: TypeAlias = int


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetInfo:
    """Facts of a model that a program can ask for before it runs."""

    model: str
    context_tokens: int
    kv_bytes_per_token: int
    namespace: Namespace  # with everything but the user's key filled in


@total_ordering
class BranchOrder:
    """Where a request stands among the branches of its program: the indices of the branches around it, outermost first, compared
    like a tuple of them. Branches share what lies around them, so that nesting deeper costs no more.
    """

    __slots__ = ("_above", "_depth", "_index")

    def __init__(self, above: BranchOrder | None = None, index: int = -1) -> None:
        self._above = above
        self._index = index
        self._depth: int = 0 if above is None else above._depth + 1

    def indices(self) -> tuple[int, ...]:
        """All of them, outermost first."""
        found = []
        at = self
        while at._above is not None:
            found.append(at._index)
            at = at._above
        return tuple(reversed(found))

    def __eq__(self, other: object) -> bool:
        return self is other or self._compared(other) == 0

    def __lt__(self, other: object) -> bool:
        return self is not other and self._compared(other) < 0

    def __hash__(self) -> int:
        return hash(self.indices())

    def _compared(self, other: object) -> int:
        """Below, at or above 0. Looks no further up than to what both have in common."""
        if not isinstance(other, BranchOrder):
            mine = self.indices()
            return 0 if mine == other else -1 if isinstance(other, tuple) and mine < other else 1
        one, two = self, other
        found = self._depth - other._depth
        while one._depth > two._depth and one._above is not None:
            one = one._above
        while two._depth > one._depth and two._above is not None:
            two = two._above
        while one is not two and one._above is not None and two._above is not None:
            found = (one._index - two._index) or found
            one, two = one._above, two._above
        return found


OUTERMOST = BranchOrder()


@dataclass(frozen=True, slots=True, eq=False)
class Lineage:
    """One of `size` siblings that may run at the same time: a branch of a fork, an item of a map or of a batch of runs.

    region: the id of the fork or map, or of the batch. outer: the sibling of an outer region in which it stands.
    """

    region: str
    index: int
    size: int
    outer: Lineage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Who asks: for scripts of the mock, logs, cancellation and errors. Never interpreted by the scheduler."""

    run_id: str = ""
    node_id: str = ""
    name: str = ""
    sample: int = 0
    attempt: int = 0
    lineage: Lineage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """Generate after `prompt_ids`. `sampling.seed` is final (already derived from run and node).

    lease: the lease whose child this is, if any: admission of this request (or its end before that) counts it down.
    deadline_s: on the engine's clock. critical_tokens: tokens on the longest path that waits for this call.
    order: what one step brought is told by it (branch indices from the root on), then by submission.
    The prompt never takes part in stop matching.
    """

    request_id: str
    prompt_ids: Sequence[int]
    sampling: SamplingSpec = field(default_factory=SamplingSpec)
    constraint: ConstraintSpec | None = None
    namespace: Namespace = field(default_factory=Namespace)
    lease: LeaseId | None = None
    priority: int = 0
    deadline_s: float | None = None
    critical_tokens: int = 0
    order: BranchOrder | tuple[int, ...] = OUTERMOST
    prompt_logprobs: int | None = None
    no_cache: bool = False
    label: Label = field(default_factory=Label)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Log-probability of each continuation after `prompt_ids`, teacher-forced, shared prefixes computed once.

    unconditional: also score each continuation without the prompt (after BOS, or its own first token unscored).
    """

    request_id: str
    prompt_ids: Sequence[int]
    continuations: Sequence[Sequence[int]]
    unconditional: bool = False
    namespace: Namespace = field(default_factory=Namespace)
    lease: LeaseId | None = None
    priority: int = 0
    deadline_s: float | None = None
    critical_tokens: int = 0
    order: BranchOrder | tuple[int, ...] = OUTERMOST
    label: Label = field(default_factory=Label)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateResult:
    """token_ids: what a continuation continues from: the kept whole tokens (the stop token, and a token cut by a stop
    string, are not among them). tail_text: text kept after the last whole token, when a stop cut inside one.
    text == decode(token_ids) + tail_text. torn: where the ids begin or end inside a character. covered_ids: all tokens the
    text comes from, one that a stop cut included; token_scores are theirs. peak_kv_pages: most pages that all requests and
    leases of the engine held in a step of this request.
    """

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    tail_text: str = ""
    torn: PartialCharacters | None = None
    matched: str | int | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    spent_tokens: int | None = None  # all that was put through the model: with choices, and what was computed again
    peak_kv_pages: int = 0
    generated_tokens: int = 0  # sampled, the stop token included
    covered_ids: tuple[int, ...] = ()
    token_scores: tuple[TokenScore, ...] = ()
    prompt_scores: tuple[TokenScore | None, ...] = ()  # None at position 0
    started_s: float = 0.0
    first_token_s: float = 0.0
    finished_s: float = 0.0
    weight_version: str = "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreResult:
    """logprobs[i][j]: of token j of continuation i on its own path. unconditional likewise, if asked for."""

    request_id: str
    logprobs: tuple[tuple[float, ...], ...]
    unconditional: tuple[tuple[float, ...], ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    spent_tokens: int | None = None  # all that was put through the model: with choices, and what was computed again
    peak_kv_pages: int = 0
    started_s: float = 0.0
    finished_s: float = 0.0
    weight_version: str = "0"


Request: TypeAlias = GenerateRequest | ScoreRequest
Result: TypeAlias = GenerateResult | ScoreResult


class Sink(Protocol):
    """Where a request's output goes. Called on the engine's thread: return fast; what is raised is logged, and harms
    nobody else. After `done` (exactly once) nothing more is called.
    """

    def started(self) -> None:
        """The request was admitted for the first time."""

    def text(self, delta: str, token_ids: Sequence[int]) -> None:
        """Text released (UTF-8 complete, past any possible stop) and the ids sampled since the last call."""

    def done(self, result: Result | Exception) -> None:
        """The end: a result, or why there is none."""

    # One that also has `lost(self, tokens: int)` is told, before an end without a result, what had been computed for it.


Phase = Literal["waiting", "compiling", "prefill", "decode", "done"]
UpdateKind: TypeAlias = Literal["admitted", "token", "scored", "failed"]
Logprobs: TypeAlias = tuple[tuple[float, ...], ...]


class RequestUpdate(NamedTuple):
    """What a step, a timeout or a failure changed for one request.

    admitted: once, when its first tokens were computed. token: `token_id` was sampled; `ended`: its constraint allows
    nothing more. scored: the end of a ScoreRequest, with (conditional, unconditional) log-probabilities per continuation;
    its pages are released already. failed: the end, with `error`; everything is released already.
    The counts of prompt tokens come with "admitted" and "scored"; prompt_scores (if asked for) with the first "token".
    """

    request_id: str
    kind: UpdateKind
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
