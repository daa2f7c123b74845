"""What a scheduler is told once: its limits, and the facts of the worker it plans for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ...errors import SpecError
from ...ir.specs import MOST_TOKENS, flag, number, whole
from ..cache.pages import POLICIES, EvictionName

PolicyName = Literal["fcfs", "longest_prefix", "depth_first", "priority"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """Plain facts of the model behind the worker. bos_id: None if its tokenizer has none.

    length_borders: ascending lengths; a sequence that grows past one is computed anew, see `Namespace.band`.
    """

    num_pages: int
    page_size: int
    context_tokens: int
    bos_id: int | None = None
    length_borders: Sequence[int] = ()

    def band_of(self, tokens: int) -> int:
        """How many borders a sequence of so many tokens is past."""
        return bisect_left(self.length_borders, tokens) if self.length_borders else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits and choices of one engine.

    max_batch_tokens: token budget of a step, decode rows included. max_running: sequences at work at a time.
    prefill_chunk_tokens: most prompt tokens of one request in a step (None: what the budget leaves).
    max_queue: waiting requests above which `add` refuses. cascade_min_tokens: a prefix shared by two rows or more gets an
    attention level of its own from this length on. waiting_timeout_s counts from arrival, running_timeout_s from first
    admission. aging_s: a request that waited so long goes before all that waited less. retract_every_steps: forced
    retraction, and check_integrity: a full check after each operation, both for tests.
    """

    max_batch_tokens: int = 1024
    max_running: int = 64
    prefill_chunk_tokens: int | None = None
    max_queue: int | None = None
    policy: PolicyName = "longest_prefix"
    eviction: EvictionName = "lru"
    cascade_min_tokens: int = 256
    waiting_timeout_s: float | None = None
    running_timeout_s: float | None = None
    aging_s: float = 10.0
    prefix_cache: bool = True
    retract_every_steps: int | None = None
    check_integrity: bool = False

    def __post_init__(self) -> None:
        for name in ("max_batch_tokens", "max_running", "cascade_min_tokens"):
            object.__setattr__(self, name, whole(name, getattr(self, name), 1, MOST_TOKENS))
        for name in ("prefill_chunk_tokens", "max_queue", "retract_every_steps"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, whole(name, value, 1, MOST_TOKENS))
        for name in ("waiting_timeout_s", "running_timeout_s"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, number(name, value, 0))
        object.__setattr__(self, "aging_s", number("aging_s", self.aging_s, 0))
        flag("prefix_cache", self.prefix_cache)
        flag("check_integrity", self.check_integrity)
        if self.max_running > self.max_batch_tokens:
            raise SpecError(
                f"max_running={self.max_running} sequences cannot decode in a step of {self.max_batch_tokens} tokens",
                hint="raise max_batch_tokens to at least max_running",
            )
        if self.policy not in get_args(PolicyName) or self.eviction not in tuple(POLICIES):
            raise SpecError(
                f"policy {self.policy!r} or eviction {self.eviction!r} is unknown",
                hint=f"policies: {get_args(PolicyName)}; eviction: {tuple(POLICIES)}",
            )
