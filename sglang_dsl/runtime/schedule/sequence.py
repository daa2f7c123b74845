"""One request at work: its tokens, its page table, and who owns which part of it.

    positions  0 ............... tree ................ computed ............ len(pages) * S
               |== the tree's ====|== the request's ====|== over-allocation ==|

Release happens in one place (`Ownership.release`) and may be asked for any number of times.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens

from ...ir.execution import TokenScore
from ..cache.keys import key_of, tokens_of
from ..cache.node import Receipt
from .request import GenerateRequest, Phase, Request, ScoreRequest
from .scoring import Edge, ScoreTask


class Sequence:
    """Owned by the Scheduler. `pages` is handed out by reference in plans; only the scheduler changes it, between steps."""

    __slots__ = (
        "admitted_s",
        "announced",
        "arrival",
        "arrived_s",
        "band",
        "cached_tokens",
        "computed",
        "ending",
        "key",
        "matched",
        "namespace",
        "own_start",
        "pages",
        "pending_pages",
        "phase",
        "prompt_scores",
        "prompt_tokens",
        "receipt",
        "request",
        "request_id",
        "seq_id",
        "spent_tokens",
        "task",
        "tokens",
        "tree_pages",
    )

    def __init__(self, seq_id: int, request: Request, now: float, task: ScoreTask | None, band: int = 0) -> None:
        self.seq_id = seq_id
        self.request = request
        self.request_id = request.request_id
        self.tokens = tokens_of(request.prompt_ids)
        self.prompt_tokens = len(self.tokens)
        self.key = key_of(request.prompt_ids)  # of all tokens known when it was last queued
        self.place(band)
        self.task = task
        self.phase: Phase = "waiting"
        self.arrival = seq_id
        self.arrived_s = now
        self.admitted_s: float | None = None
        self.announced = False  # "admitted" was reported
        self.cached_tokens = 0
        self.spent_tokens = (
            0  # put through the model for it: prompt and choices, also what a retraction made it do again
        )
        self.prompt_scores: list[TokenScore | None] | None = None
        self.ending: int | None = None  # ended while in flight: tokens to keep when it lands
        self.matched = 0  # peeked by the queue policy in this pass
        self.reset()

    def reset(self) -> None:
        """Holds nothing: before admission, after retraction, after release."""
        self.pages: list[int] = []
        self.tree_pages = 0
        self.pending_pages = 0
        self.computed = 0
        self.own_start = 0
        self.receipt: Receipt | None = None

    def place(self, band: int) -> None:
        """It is computed as sequences of this band of lengths are, and shares state with these only."""
        self.band = band
        self.namespace = self.request.namespace.of_band(band)

    @property
    def generated(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def max_new(self) -> int:
        """Tokens it may still generate."""
        return self.request.sampling.most_tokens - self.generated if isinstance(self.request, GenerateRequest) else 0

    @property
    def cacheable(self) -> bool:
        """Whether it may share pages with others."""
        return isinstance(self.request, ScoreRequest) or not self.request.no_cache

    @property
    def prompt_logprobs(self) -> int | None:
        """How many alternatives per prompt position are still wanted; None: no prompt scores, or they are complete."""
        if not isinstance(self.request, GenerateRequest) or self.generated:
            return None
        return self.request.prompt_logprobs

    @property
    def match_limit(self) -> int:
        """Most tokens a prefix match may take over: one at least is computed, all of them if the prompt is to be scored."""
        return 0 if self.prompt_logprobs is not None else len(self.tokens) - 1


class Piece:
    """Consecutive tokens of one sequence (or of one edge of its trie) computed in a step; it becomes a row.

    takers: sequences that sample from its last token. `tail_*`: how the slots before `start` in its first page are filled.
    """

    __slots__ = ("edge", "end", "pages", "seq", "start", "tail_copies", "tail_mirrors", "takers", "token_ids")

    def __init__(
        self, seq: Sequence, token_ids: Tokens[int], start: int, pages: list[int], edge: Edge | None = None
    ) -> None:
        self.seq = seq
        self.token_ids = token_ids
        self.start = start
        self.end = start + len(token_ids)
        self.pages = pages
        self.edge = edge
        self.takers: list[Sequence] = []
        self.tail_copies: list[tuple[int, int]] = []  # (source page, tokens)
        self.tail_mirrors: list[tuple[Piece, int]] = []  # (computing piece, position)
