"""The scheduler: requests in, one StepPlan of integers at a time out, results in, progress out.

No threads, no text, no tensors; owned by the engine's thread. One step is in flight at a time. What is asked of it while
one is (cancel, finish) is done when that step lands, before any of its tokens is reported.

What a step's result changes: computed tokens, the tree, sampled tokens, scores; and what is reported of it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Many
from collections.abc import Sequence as Tokens
from typing import Literal

from ...errors import DeadlineError, IntegrityError, QueueFullError, SpecError
from ...ir.outcome import TokenScore
from ..cache import integrity
from ..cache.keys import Namespace, key_of, pack
from ..cache.prefix_cache import PrefixCache
from .admission import refuse_impossible
from .config import SchedulerConfig, WorkerFacts
from .ownership import Lifecycle, Ownership
from .planner import Planner
from .request import LeaseId, Request, RequestUpdate, SchedulerSnapshot, ScoreRequest
from .sequence import Chunk, ScoreTask, Sequence
from .step import Sampled, Scored, StepPlan, StepResult
from .step_builder import InFlightStep, ScoreTarget


class Landing:
    """Applies results for one scheduler."""

    def __init__(self, cache: PrefixCache, ownership: Ownership, lifecycle: Lifecycle, facts: WorkerFacts) -> None:
        self._facts = facts
        self._cache = cache
        self._ownership = ownership
        self._life = lifecycle

    def commit(self, flight: InFlightStep, result: StepResult) -> list[RequestUpdate]:
        """The worker has computed `flight`."""
        out: list[RequestUpdate] = []
        for seq in flight.decodes:
            seq.computed += 1
        if flight.chunks:
            self._land_pieces(flight, result.scores, out)
        self._samples(result.samples, out)
        if flight.chunks:
            self._finish_tasks(flight.chunks, out)
        return out

    def abort(self, flight: InFlightStep, error: Exception) -> list[RequestUpdate]:
        """The worker raised: every sequence of the step fails, nothing it was to compute is kept."""
        members = [self._life.by_id[seq_id] for seq_id in sorted(flight.members())]
        out = [
            RequestUpdate(seq.request_id, "failed", error=error, spent_tokens=seq.spent_tokens)
            for seq in members
            if seq.ending is None
        ]
        for seq in members:
            self._life.end(seq, seq.prompt_tokens)
        self._life.close_again(flight.plan.closes)
        self._ownership.return_borrowed()
        self._cache.tree.drop_pending()
        self._life.counters.failed += len(out)
        return out

    # Prompts and edges

    def _land_pieces(self, flight: InFlightStep, scores: Many[Scored], out: list[RequestUpdate]) -> None:
        self._cache.commit_pending()
        for chunk in flight.chunks:
            self._land(chunk, out)
        self._ownership.return_borrowed()
        self._cache.leases.follow()
        for scored in scores:
            _note(flight.asked[scored.key], scored)

    def _land(self, chunk: Chunk, out: list[RequestUpdate]) -> None:
        seq = chunk.seq
        if chunk.edge is not None and seq.task is not None:
            self._cache.pool.free(seq.task.land(chunk.edge))
        else:
            seq.computed = chunk.end
            self._ownership.settle(seq)
        self._announce(seq, out)
        for taker in chunk.takers:
            taker.computed = chunk.end
            self._announce(taker, out)
            self._life.decode(taker)

    def _announce(self, seq: Sequence, out: list[RequestUpdate]) -> None:
        if not seq.announced and seq.ending is None:
            seq.announced = True
            out.append(_counted(RequestUpdate(seq.request_id, "admitted", admitted_s=seq.admitted_s), seq))

    def _finish_tasks(self, chunks: list[Chunk], out: list[RequestUpdate]) -> None:
        for seq in {chunk.seq.seq_id: chunk.seq for chunk in chunks if chunk.seq.task}.values():
            if seq.task is not None and seq.ending is None and seq.computed == len(seq.tokens) and seq.task.done:
                progress = RequestUpdate(seq.request_id, "scored", scored=seq.task.answer())
                out.append(_counted(progress, seq))
                self._life.end(seq, seq.prompt_tokens)
                self._life.counters.finished += 1

    # Tokens

    def _samples(self, samples: Many[Sampled], out: list[RequestUpdate]) -> None:
        by_id, counters = self._life.by_id, self._life.counters
        for seq_id, token_id, ended, score, error in samples:
            seq = by_id[seq_id]
            if seq.ending is not None:
                continue
            if error is not None:
                out.append(RequestUpdate(seq.request_id, "failed", error=error, spent_tokens=seq.spent_tokens))
                self._life.end(seq, seq.prompt_tokens)
                counters.failed += 1
                continue
            seq.tokens.append(token_id)
            counters.generated_tokens += 1
            if seq.prompt_scores is None:
                out.append(RequestUpdate(seq.request_id, "token", token_id, ended, score))
            else:
                out.append(
                    RequestUpdate(
                        seq.request_id, "token", token_id, ended, score, prompt_scores=tuple(seq.prompt_scores)
                    )
                )
                seq.prompt_scores = None
            band = self._facts.band_of(len(seq.tokens))
            if band != seq.band and seq.max_new:
                self._life.move(seq, band)


def _counted(progress: RequestUpdate, seq: Sequence) -> RequestUpdate:
    """With the counts of the request's prompt: of its first admission, whatever was retracted and computed again."""
    return progress._replace(
        prompt_tokens=seq.prompt_tokens,
        cached_tokens=seq.cached_tokens,
        computed_tokens=seq.prompt_tokens - seq.cached_tokens,
        spent_tokens=seq.spent_tokens,
    )


def _note(asked: ScoreTarget, scored: Scored) -> None:
    """Keep a score where it belongs: at a trie node's children, or at a position of the prompt."""
    if asked.node is not None:
        for child, logprob in zip(asked.node.children.values(), scored.logprobs, strict=True):
            child.logprob = logprob
        return
    seq = asked.seq
    if seq.prompt_scores is None:
        seq.prompt_scores = [None] * seq.prompt_tokens
    top = tuple((token_id, logprob, b"") for token_id, logprob in scored.top)
    seq.prompt_scores[asked.position] = TokenScore(
        token_id=seq.tokens[asked.position], logprob=scored.logprobs[0], top=top
    )


Limit = Literal["deadline", "waiting", "running"]


class Scheduler:
    """See the module. Raises only where it says so; shortage of memory is never an exception."""

    def __init__(self, config: SchedulerConfig, facts: WorkerFacts) -> None:
        _refuse_standstill(config, facts)
        self.config = config
        self.facts = facts
        self.cache = PrefixCache(facts.num_pages, facts.page_size, config.eviction)
        self._ownership = Ownership(self.cache, shared=config.prefix_cache)
        self._life = Lifecycle(self.cache, self._ownership)
        self._planner = Planner(config, self.cache, self._ownership, self._life)
        self._landing = Landing(self.cache, self._ownership, self._life, facts)
        self._flight: InFlightStep | None = None
        self._ready: list[RequestUpdate] = []  # ended without a step
        self._limits: list[tuple[float, int, Limit]] = []
        self._next_id = 0

    # Requests

    def add(self, request: Request, now: float, *, compiling: bool = False) -> None:
        """Queue a request. compiling: it is parked until `compiled`.

        Raises:
            CapacityError, ContextLengthError: it could not run even alone; the message has the numbers.
            QueueFullError: `max_queue` requests wait already.
            SpecError: its id is in use, its tokens are no tokens, or there is nothing to do.
        """
        try:
            seq = self._sequence(request, now)
        except Exception:
            if request.lease is not None:
                self.release(request.lease, 1)
            raise
        if isinstance(request, ScoreRequest) and not request.prompt_ids and seq.task and seq.task.done:
            self._ready.append(RequestUpdate(request.request_id, "scored", scored=seq.task.answer()))
            return
        self._life.enter(seq, compiling=compiling)
        if request.deadline_s is not None:
            self._limit(request.deadline_s, seq, "deadline")
        if self.config.waiting_timeout_s is not None:
            self._limit(now + self.config.waiting_timeout_s, seq, "waiting")
        self._verify()

    def compiled(self, request_id: str) -> None:
        """The constraint of a request added as `compiling` is ready. Unknown and ended ids are ignored."""
        seq = self._life.by_request.get(request_id)
        if seq is not None:
            self._life.compiled(seq)

    def cancel(self, request_id: str) -> bool:
        """End a request in whatever state; nothing of it is reported afterwards. False if it is unknown or has ended."""
        seq = self._life.by_request.get(request_id)
        if seq is None:
            return False
        self._life.counters.cancelled += 1
        self._end(seq, seq.prompt_tokens)
        return True

    def spent_tokens(self, request_id: str) -> int:
        """Tokens of prompt and choices put through the model for a request so far; 0 if it is unknown or has ended."""
        seq = self._life.by_request.get(request_id)
        return 0 if seq is None else seq.spent_tokens

    def finish(self, request_id: str, kept_tokens: int) -> None:
        """The request is complete with its first `kept_tokens` generated tokens; these stay cached. Idempotent."""
        seq = self._life.by_request.get(request_id)
        if seq is not None:
            self._life.counters.finished += 1
            self._end(seq, seq.prompt_tokens + kept_tokens)

    def lease(
        self, prompt_ids: Tokens[int], namespace: Namespace, children: int, *, lease_id: LeaseId | None = None
    ) -> LeaseId:
        """Keep the state of `prompt_ids`, computed or yet to be, until so many requests that name the lease were admitted
        or have ended. lease_id: a positive id of the caller's own, not used before.
        """
        if children < 1:
            raise SpecError(f"a lease for {children} children holds nothing", hint="lease for at least one child")
        space = namespace.of_band(self.facts.band_of(len(prompt_ids)))
        lease = self.cache.leases.open(space, key_of(prompt_ids), children, lease_id, ids=prompt_ids)
        self._verify()
        return lease

    def release(self, lease: LeaseId, children: int | None = None) -> None:
        """So many children of a lease will not come (None: end it). Unknown and ended leases are ignored."""
        self.cache.leases.count_down(lease, children)
        self._life.changes += 1
        self._verify()

    # Steps

    def step(self, now: float) -> StepPlan | None:
        """What to compute next. None: nothing can run now (`idle` says whether anything is left to do)."""
        if self._flight is not None:
            raise IntegrityError(f"step {self._flight.plan.step} has not landed yet")
        running = set(self._life.prefilling) if self.config.running_timeout_s is not None else None
        flight = self._planner.plan(now)
        for seq, error in self._planner.failures:
            self._ready.append(RequestUpdate(seq.request_id, "failed", error=error, spent_tokens=seq.spent_tokens))
            self._life.counters.failed += 1
        self._planner.failures.clear()
        if running is not None:
            self._limit_running(running, now)
        self._flight = flight
        self._verify()
        return flight.plan if flight is not None else None

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> list[RequestUpdate]:
        """The worker's answer to the plan in flight. Returns what it changed, request by request."""
        flight = self._take(plan)
        progress = self._landing.commit(flight, result)
        self._end_deferred(flight)
        self._verify()
        return progress

    def abort_step(self, plan: StepPlan, error: Exception) -> list[RequestUpdate]:
        """The worker raised: every request with a row in the plan fails with `error`, the others go on."""
        progress = self._landing.abort(self._take(plan), error)
        self._verify()
        return progress

    # Time

    def expired(self, now: float) -> list[RequestUpdate]:
        """Requests that ended without a step: out of time, or impossible after all. They are released already."""
        found, self._ready = self._ready, []
        while self._limits and self._limits[0][0] <= now:
            _, seq_id, limit = heapq.heappop(self._limits)
            seq = self._life.by_id.get(seq_id)
            if seq is None or seq.ending is not None or (limit == "waiting" and seq.admitted_s is not None):
                continue
            error = _out_of_time(seq, limit, now)
            found.append(RequestUpdate(seq.request_id, "failed", error=error, spent_tokens=seq.spent_tokens))
            self._life.counters.failed += 1
            self._end(seq, seq.prompt_tokens)
        return found

    def next_deadline(self) -> float | None:
        """When `expired` should be asked at the latest; None if nothing is limited."""
        while self._limits and self._limits[0][1] not in self._life.by_id:
            heapq.heappop(self._limits)
        return self._limits[0][0] if self._limits else None

    # State

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute, to wait for or to report."""
        return not self._life.by_id and not self._ready and self._flight is None

    @property
    def held_pages(self) -> int:
        """Pages that requests and leases hold now: neither free nor evictable."""
        return self.cache.pool.num_pages - self.cache.pool.free_pages - self.cache.tree.evictable_pages

    def flush(self, namespace: Namespace | None = None) -> int:
        """Forget cached prefixes of a namespace (None: of all). What requests and leases hold stays. Returns pages freed."""
        freed = self.cache.flush(namespace)
        self._life.changes += 1
        self._verify()
        return freed

    def check(self) -> None:
        """Raise IntegrityError, naming pages and owners, unless every page is where it belongs."""
        integrity.check(self.cache, self._ownership.holdings(list(self._life.by_id.values())))

    def snapshot(self) -> SchedulerSnapshot:
        """Counters and state."""
        life, counters, cache = self._life, self._life.counters, self.cache
        return SchedulerSnapshot(
            steps=self._planner.steps,
            waiting=len(life.waiting),
            compiling=len(life.compiling),
            running=life.running,
            decoding=len(life.decoding),
            accessed_tokens=counters.accessed_tokens,
            hit_tokens=counters.hit_tokens,
            computed_tokens=counters.computed_tokens,
            generated_tokens=counters.generated_tokens,
            admitted=counters.admitted,
            finished=counters.finished,
            failed=counters.failed,
            cancelled=counters.cancelled,
            retracted=counters.retracted,
            preempted=counters.preempted,
            allocation_failures=counters.allocation_failures,
            new_token_ratio=self._planner.ratio.value,
            leases=len(cache.leases),
            demoted_leases=cache.leases.demoted,
            evicted_pages=cache.evicted_pages,
            total_pages=cache.pool.num_pages,
            free_pages=cache.pool.free_pages,
            tree_pages=cache.pool.tree_pages,
            request_pages=cache.pool.request_pages,
            leased_pages=cache.leases.leased_pages,
            evictable_pages=cache.tree.evictable_pages,
            peak_used_pages=cache.peak_used_pages,
        )

    # Parts

    def _sequence(self, request: Request, now: float) -> Sequence:
        if request.request_id in self._life.by_request:
            raise SpecError(f"request id {request.request_id!r} is in use", hint="give every request its own id")
        limit = self.config.max_queue
        if limit is not None and len(self._life.waiting) + len(self._life.compiling) >= limit:
            raise QueueFullError(f"{limit} requests wait already", hint="try again later, or raise max_queue")
        refuse_impossible(request, self.facts)
        self._next_id += 1
        task = self._task(request)
        band = self.facts.band_of(len(request.prompt_ids)) if task is None else task.band
        return Sequence(self._next_id, request, now, task, band)

    def _task(self, request: Request) -> ScoreTask | None:
        if not isinstance(request, ScoreRequest):
            return None
        for continuation in request.continuations:
            pack(continuation)
        config = self.config
        spare = config.max_batch_tokens - config.max_running + 1  # of the budget, whatever decodes beside it
        return ScoreTask(
            request.continuations,
            prompt_ids=request.prompt_ids,
            unconditional=request.unconditional,
            bos_id=self.facts.bos_id,
            edge_tokens=min(spare, config.prefill_chunk_tokens or spare),
            band_of=self.facts.band_of,
        )

    def _take(self, plan: StepPlan) -> InFlightStep:
        flight, self._flight = self._flight, None
        if flight is None or flight.plan is not plan:
            self._flight = flight
            raise IntegrityError(f"step {plan.step} is not the one in flight")
        return flight

    def _end(self, seq: Sequence, keep_tokens: int) -> None:
        """Now; or, if the step in flight touches it, when that lands."""
        if self._flight is not None and seq.seq_id in self._flight.members():
            seq.ending = keep_tokens
            del self._life.by_request[seq.request_id]
        else:
            self._life.end(seq, keep_tokens)
        self._verify()

    def _end_deferred(self, flight: InFlightStep) -> None:
        if len(self._life.by_request) == len(self._life.by_id):
            return
        for seq_id in flight.members():
            seq = self._life.by_id.get(seq_id)
            if seq is not None and seq.ending is not None:
                self._life.end(seq, seq.ending)

    def _limit(self, at: float, seq: Sequence, limit: Limit) -> None:
        heapq.heappush(self._limits, (at, seq.seq_id, limit))

    def _limit_running(self, before: set[int], now: float) -> None:
        for seq_id, seq in self._life.prefilling.items():
            if seq_id not in before and seq.admitted_s == now and self.config.running_timeout_s is not None:
                self._limit(now + self.config.running_timeout_s, seq, "running")

    def _verify(self) -> None:
        if self.config.check_integrity:
            self.check()


def _refuse_standstill(config: SchedulerConfig, facts: WorkerFacts) -> None:
    """A step has to have room for one page of a prompt beside a full batch of decode rows, or prompts would never end."""
    spare = min(
        config.max_batch_tokens - config.max_running + 1, config.prefill_chunk_tokens or config.max_batch_tokens
    )
    if spare < facts.page_size:
        raise SpecError(
            f"max_batch_tokens={config.max_batch_tokens}, max_running={config.max_running} and prefill_chunk_tokens="
            f"{config.prefill_chunk_tokens} leave no room for a page of {facts.page_size} prompt tokens in a step",
            hint="raise max_batch_tokens or prefill_chunk_tokens",
        )


def _out_of_time(seq: Sequence, limit: Limit, now: float) -> DeadlineError:
    label = seq.request.label
    call = repr(label.name or label.node_id or seq.request_id)
    if limit == "deadline":
        return DeadlineError(f"{call} was not complete at its deadline", hint="allow more time")
    if limit == "waiting":
        waited = now - seq.arrived_s
        return DeadlineError(f"{call} waited {waited:.1f} s and was not admitted", hint="lower the load")
    ran = now - (now if seq.admitted_s is None else seq.admitted_s)
    return DeadlineError(f"{call} ran {ran:.1f} s and is not complete", hint="raise running_timeout_s")
