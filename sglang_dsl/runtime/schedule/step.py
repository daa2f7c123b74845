"""Between scheduler and worker, as integers: what a step is to run, what came out, and who runs it (the Worker protocol). The scheduler is
told once what its limits are and which worker it plans for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args

from ...errors import SpecError
from ...ir.outcome import TokenScore
from ...ir.specs import MOST_TOKENS, ConstraintSpec, SamplingSpec, flag, number, whole
from ..cache.pages import POLICIES, EvictionName
from .request import Label


class Row(NamedTuple):
    """`pages[i]` holds positions [i*S, (i+1)*S). `own_start`: first position of the row's own level (a page boundary)."""

    seq_id: int
    token_ids: Sequence[int]
    start: int
    pages: Sequence[int]
    own_start: int = 0
    band: int = 0  # which of the model's bands of lengths the sequence is in: how its positions are rotated


class RowGroup(NamedTuple):
    """Rows [first_row, end_row) all attend to positions [start, end) through the pages of row `first_row`. Both are page boundaries."""

    first_row: int
    end_row: int
    start: int
    end: int


class PageCopy(NamedTuple):
    """Before the forward: the first `tokens` slots of page `source` are copied to page `target`."""

    source: int
    target: int
    tokens: int


class MirrorWrite(NamedTuple):
    """The K/V computed by row `row` at `position` is written to (page, offset), too: into the first page of a sequence that forks
    off inside a page.
    """

    row: int
    position: int
    page: int
    offset: int


class OpenSequence(NamedTuple):
    """A sequence begins (or comes back after retraction, with `generated` already accepted by its matcher)."""

    seq_id: int
    prompt_ids: Sequence[int]
    sampling: SamplingSpec
    constraint: ConstraintSpec | None
    seed: int
    generated: Sequence[int] = ()
    label: Label = Label()
    request_id: str = ""


class SamplePoint(NamedTuple):
    """Sample the next token of `seq_id` from the logits at `offset` within row `row`; several points may share a row.

    generated: how many tokens the sequence has generated so far (enters the seed).
    """

    row: int
    offset: int
    seq_id: int
    generated: int


class ScorePoint(NamedTuple):
    """Log-probabilities of `token_ids` as the next token at `offset` within row `row`; `top`: and of the best so many.

    `key` comes back unchanged in the result.
    """

    row: int
    offset: int
    token_ids: Sequence[int]
    top: int
    key: int


class StepPlan(NamedTuple):
    """Everything the worker needs. `levels[d]` lists the groups of attention level d (outermost first), in row order;
    `closes` (the worker need not know them all) happen first, then `opens`, copies, forward, samples, scores.
    """

    step: int
    rows: Sequence[Row]
    levels: Sequence[Sequence[RowGroup]] = ()
    copies: Sequence[PageCopy] = ()
    mirrors: Sequence[MirrorWrite] = ()
    opens: Sequence[OpenSequence] = ()
    closes: Sequence[int] = ()
    samples: Sequence[SamplePoint] = ()
    scores: Sequence[ScorePoint] = ()


class Sampled(NamedTuple):
    """One sampled token. ended: the constraint is complete and nothing may follow. score: only if the sampling asked for
    logprobs. error: this row could not be sampled (all masked, ...); token_id is then -1.
    """

    seq_id: int
    token_id: int
    ended: bool = False
    score: TokenScore | None = None
    error: Exception | None = None


class Scored(NamedTuple):
    """Answer to a ScorePoint: `logprobs` follow its token_ids; `top`: (id, logprob), best first."""

    key: int
    logprobs: Sequence[float]
    top: Sequence[tuple[int, float]] = ()


class StepResult(NamedTuple):
    """What came out, in the order of the plan's samples and scores. elapsed_s: what the step took on the worker
    (measured, or the mock's cost model).
    """

    samples: Sequence[Sampled] = ()
    scores: Sequence[Scored] = ()
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """Facts of the model behind a worker. num_pages counts usable pages (ids 0..num_pages-1).

    length_borders: lengths past which the model computes a whole sequence otherwise, ascending: see `Row.band`.
    """

    model: str
    fingerprint: str
    context_tokens: int
    vocab_size: int
    page_size: int
    num_pages: int
    kv_bytes_per_token: int
    kv_layout: str
    device: str = "cpu"
    weight_version: str = "0"
    length_borders: Sequence[int] = ()


class Worker(Protocol):
    """Owned by one engine; `execute` is called from the engine's thread only."""

    info: WorkerInfo

    def prepare(self, constraint: ConstraintSpec) -> Future[None]:
        """Compile a constraint, off the engine's thread; the future raises ConstraintError. Compiled once, reused."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. A fault of one row is that row's `Sampled.error`; what this raises fails every row of the plan."""

    def close(self) -> None:
        """Release memory and threads. Idempotent."""


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
