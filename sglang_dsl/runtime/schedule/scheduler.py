"""The scheduler: requests in, one StepPlan of integers at a time out, a StepResult in, updates of requests out.

    step:    planner decides what runs -> step_builder writes it down -> StepPlan, for the worker
    commit:  StepResult -> computed tokens, the tree, sampled tokens, scores -> RequestUpdates, for the engine

No threads, no text, no tensors; owned by the engine's thread. One step is in flight at a time. What is asked while one is (cancel,
finish) is done when its result is committed, before any of its tokens is reported.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Many
from typing import Literal

from ...errors import DeadlineError, IntegrityError, QueueFullError, SpecError
from ...ir.outcome import TokenScore
from ..cache import integrity
from ..cache.keys import Namespace, TokenIds, pack
from ..cache.prefix_cache import PrefixCache
from .admission import refuse_impossible
from .ownership import Lifecycle, Ownership
from .planner import Planner
from .request import LeaseId, Logprobs, Request, RequestUpdate, SchedulerSnapshot, ScoreRequest
from .sequence import ScoreTask, Sequence
from .step import Sampled, SchedulerConfig, Scored, StepPlan, StepResult, WorkerFacts
from .step_builder import InFlightStep, ScoreTarget

Limit = Literal["deadline", "waiting", "running"]


class Scheduler:
    """Decides what runs, and keeps the books of it. Raises only where it says so; shortage of memory is never an exception."""

    def __init__(self, config: SchedulerConfig, facts: WorkerFacts) -> None:
        _refuse_standstill(config, facts)
        self.config = config
        self.facts = facts
        self.cache = PrefixCache(facts.num_pages, facts.page_size, config.eviction)
        self._ownership = Ownership(self.cache)
        self._life = Lifecycle(self.cache, self._ownership)
        self._planner = Planner(config, self.cache, self._ownership, self._life)
        self._in_flight: InFlightStep | None = None
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
        if self.config.check_integrity:
            self.check()

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

    def finish(self, request_id: str, kept_tokens: int) -> int:
        """The request is complete with its first `kept_tokens` generated tokens; these stay cached. Returns what had been put
        through the model for it. Idempotent; 0 then.
        """
        seq = self._life.by_request.get(request_id)
        if seq is None:
            return 0
        self._life.counters.finished += 1
        self._end(seq, seq.prompt_tokens + kept_tokens)
        return seq.spent_tokens

    def lease(
        self, prompt_ids: Many[int], namespace: Namespace, children: int, *, lease_id: LeaseId | None = None
    ) -> LeaseId:
        """Keep the state of `prompt_ids`, computed or yet to be, until so many requests that name the lease were admitted
        or have ended. lease_id: a positive id of the caller's own, not used before.
        """
        if children < 1:
            raise SpecError(f"a lease for {children} children holds nothing", hint="lease for at least one child")
        space = namespace.of_band(self.facts.band_of(len(prompt_ids)))
        key = prompt_ids.packed() if isinstance(prompt_ids, TokenIds) else pack(prompt_ids)
        lease = self.cache.leases.open(space, key, children, lease_id, ids=prompt_ids)
        if self.config.check_integrity:
            self.check()
        return lease

    def release(self, lease: LeaseId, children: int | None = None) -> None:
        """So many children of a lease will not come (None: end it). Unknown and ended leases are ignored."""
        self.cache.leases.count_down(lease, children)
        self._life.changes += 1
        if self.config.check_integrity:
            self.check()

    # Steps

    def step(self, now: float) -> StepPlan | None:
        """What to compute next. None: nothing can run now (`idle` says whether anything is left to do)."""
        if self._in_flight is not None:
            raise IntegrityError(f"step {self._in_flight.plan.step} has not landed yet")
        running = set(self._life.prefilling) if self.config.running_timeout_s is not None else None
        step = self._planner.plan(now)
        if self._planner.failures:
            for seq, error in self._planner.failures:
                self._ready.append(_failed(seq, error))
            self._life.counters.failed += len(self._planner.failures)
            self._planner.failures.clear()
        if running is not None:
            self._limit_running(running, now)
        self._in_flight = step
        if self.config.check_integrity:
            self.check()
        if step is None:
            return None
        self.cache.note_use()
        return step.plan

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> list[RequestUpdate]:
        """The worker's answer to the plan in flight. Returns what it changed, request by request."""
        step, life = self._take(plan), self._life
        updates: list[RequestUpdate] = []
        for seq in step.decodes:
            seq.computed += 1
        if step.chunks:
            self._commit_chunks(step, result.scores, updates)
        self._commit_samples(result.samples, updates)
        for chunk in step.chunks:
            if chunk.seq.task is not None:
                self._finish_scoring(chunk.seq, chunk.seq.task, updates)
        if len(life.by_request) != len(life.by_id):  # something ended while the step was in flight
            for seq_id in step.members():
                ended = life.by_id.get(seq_id)
                if ended is not None and ended.ending is not None:
                    life.end(ended, ended.ending)
        if self.config.check_integrity:
            self.check()
        return updates

    def abort_step(self, plan: StepPlan, error: Exception) -> list[RequestUpdate]:
        """The worker raised: every request with a row in the plan fails with `error` and keeps nothing that the step was to
        compute; the others go on.
        """
        step, life = self._take(plan), self._life
        members = [life.by_id[seq_id] for seq_id in sorted(step.members())]
        updates = [_failed(seq, error) for seq in members if seq.ending is None]
        for seq in members:
            life.end(seq, seq.prompt_tokens)
        life.close_again(plan.closes)
        self._ownership.return_borrowed()
        self.cache.tree.drop_pending()
        life.counters.failed += len(updates)
        if self.config.check_integrity:
            self.check()
        return updates

    def _commit_chunks(self, step: InFlightStep, scores: Many[Scored], updates: list[RequestUpdate]) -> None:
        """Prompts and edges are computed: their pages go to the tree, and whoever samples from them begins to decode."""
        if self.cache.tree.pending:
            self.cache.commit_pending()
        for chunk in step.chunks:
            seq = chunk.seq
            if chunk.edge is not None and seq.task is not None:
                self.cache.pool.free(seq.task.commit(chunk.edge))
            else:
                seq.computed = chunk.end
                self._ownership.settle(seq)
            for member in (seq, *chunk.takers):
                if not member.announced and member.ending is None:
                    member.announced = True
                    updates.append(_counted(member, "admitted"))
            for taker in chunk.takers:
                taker.computed = chunk.end
                self._life.decode(taker)
        if self._ownership.borrowed:
            self._ownership.return_borrowed()
        if self.cache.leases.incomplete:
            self.cache.leases.follow()
        for scored in scores:
            _note(step.scores[scored.key], scored)

    def _commit_samples(self, samples: Many[Sampled], updates: list[RequestUpdate]) -> None:
        """Each sampled token is its sequence's next; one that could not be sampled ends its request."""
        life, bands = self._life, bool(self.facts.length_borders)
        by_id, counters = life.by_id, life.counters
        for seq_id, token_id, ended, score, error in samples:
            seq = by_id[seq_id]
            if seq.ending is not None:
                continue
            if error is not None:
                updates.append(_failed(seq, error))
                life.end(seq, seq.prompt_tokens)
                counters.failed += 1
                continue
            seq.tokens.append(token_id)
            counters.generated_tokens += 1
            if seq.prompt_logprobs is None:
                updates.append(RequestUpdate(seq.request_id, "token", token_id, ended, score))
            else:  # the first token: all scores of the prompt have come
                known, seq.prompt_scores, seq.prompt_logprobs = tuple(seq.prompt_scores or ()), None, None
                updates.append(RequestUpdate(seq.request_id, "token", token_id, ended, score, prompt_scores=known))
            if bands:
                band = self.facts.band_of(len(seq.tokens))
                if band != seq.band and seq.max_new:
                    life.move(seq, band)

    def _finish_scoring(self, seq: Sequence, task: ScoreTask, updates: list[RequestUpdate]) -> None:
        """A ScoreRequest ends once its prompt and every edge of its trie are computed."""
        if seq.phase != "done" and seq.ending is None and seq.computed == len(seq.tokens) and task.done:
            updates.append(_counted(seq, "scored", task.answer()))
            self._life.end(seq, seq.prompt_tokens)
            self._life.counters.finished += 1

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
            found.append(_failed(seq, error))
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
        return not self._life.by_id and not self._ready and self._in_flight is None

    @property
    def held_pages(self) -> int:
        """Pages that requests and leases hold now: neither free nor evictable."""
        return self.cache.pool.num_pages - self.cache.available_pages

    def flush(self, namespace: Namespace | None = None) -> int:
        """Forget cached prefixes of a namespace (None: of all). What requests and leases hold stays. Returns pages freed."""
        freed = self.cache.flush(namespace)
        self._life.changes += 1
        if self.config.check_integrity:
            self.check()
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
        task = self._score_task(request) if isinstance(request, ScoreRequest) else None
        band = 0 if task is None else task.band
        if task is None and self.facts.length_borders:
            band = self.facts.band_of(len(request.prompt_ids))
        return Sequence(self._next_id, request, now, task, band=band, shares=self.config.prefix_cache)

    def _score_task(self, request: ScoreRequest) -> ScoreTask:
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
        step = self._in_flight
        if step is None or step.plan is not plan:
            raise IntegrityError(f"step {plan.step} is not the one in flight")
        self._in_flight = None
        return step

    def _end(self, seq: Sequence, keep_tokens: int) -> None:
        """Now; or, if the step in flight touches it, when that is committed."""
        if self._in_flight is not None and seq.seq_id in self._in_flight.members():
            seq.ending = keep_tokens
            del self._life.by_request[seq.request_id]
        else:
            self._life.end(seq, keep_tokens)
        if self.config.check_integrity:
            self.check()

    def _limit(self, at: float, seq: Sequence, limit: Limit) -> None:
        heapq.heappush(self._limits, (at, seq.seq_id, limit))

    def _limit_running(self, before: set[int], now: float) -> None:
        for seq_id, seq in self._life.prefilling.items():
            if seq_id not in before and seq.admitted_s == now and self.config.running_timeout_s is not None:
                self._limit(now + self.config.running_timeout_s, seq, "running")


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


def _failed(seq: Sequence, error: Exception) -> RequestUpdate:
    return RequestUpdate(seq.request_id, "failed", error=error, spent_tokens=seq.spent_tokens)


def _counted(
    seq: Sequence, kind: Literal["admitted", "scored"], scored: tuple[Logprobs, Logprobs] | None = None
) -> RequestUpdate:
    """With the counts of the request's prompt: of its first admission, whatever was retracted and computed again."""
    return RequestUpdate(
        seq.request_id,
        kind,
        scored=scored,
        prompt_tokens=seq.prompt_tokens,
        cached_tokens=seq.cached_tokens,
        computed_tokens=seq.prompt_tokens - seq.cached_tokens,
        admitted_s=seq.admitted_s,
        spent_tokens=seq.spent_tokens,
    )


def _note(target: ScoreTarget, scored: Scored) -> None:
    """Keep a score where it belongs: at a trie node's children, or at a position of the prompt."""
    if target.node is not None:
        for child, logprob in zip(target.node.children.values(), scored.logprobs, strict=True):
            child.logprob = logprob
        return
    seq = target.seq
    if seq.prompt_scores is None:
        seq.prompt_scores = [None] * seq.prompt_tokens
    top = tuple((token_id, logprob, b"") for token_id, logprob in scored.top)
    seq.prompt_scores[target.position] = TokenScore(
        token_id=seq.tokens[target.position], logprob=scored.logprobs[0], top=top
    )
