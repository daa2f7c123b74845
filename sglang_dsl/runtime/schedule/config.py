"""What a scheduler is told once: its limits, and the facts of the worker it plans for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ...errors import SpecError
from ..cache.eviction import POLICIES, EvictionName

PolicyName = Literal["fcfs", "longest_prefix", "depth_first", "priority"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """Plain facts of the model behind the worker. bos_id: None if its tokenizer has none."""

    num_pages: int
    page_size: int
    context_tokens: int
    bos_id: int | None = None


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
        for name in ("max_batch_tokens", "max_running", "prefill_chunk_tokens", "max_queue", "cascade_min_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SpecError(f"{name}={value} is out of range", hint=f"{name} has to be at least 1")
        if self.max_running > self.max_batch_tokens:
            raise SpecError(
                f"max_running={self.max_running} sequences cannot decode in a step of {self.max_batch_tokens} tokens",
                hint="raise max_batch_tokens to at least max_running",
            )
        if self.policy not in get_args(PolicyName) or self.eviction not in POLICIES:
            raise SpecError(
                f"policy {self.policy!r} or eviction {self.eviction!r} is unknown",
                hint=f"policies: {get_args(PolicyName)}; eviction: {tuple(POLICIES)}",
            )
