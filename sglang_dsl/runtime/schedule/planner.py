"""Decides what the next step computes: decode rows first, then unfinished prompts, then new requests, within the budget.

Shortage is never an exception: a chunk is parked, a candidate stays in the queue, leases become hints, and in the end somebody
is retracted. One sequence always stays.
"""

from __future__ import annotations

from ...errors import CapacityError
from ..cache.keys import TOKEN_BYTES, common_bytes
from ..cache.prefix_cache import PrefixCache
from .admission import INITIAL_RATIO, POLICIES, NewTokenRatio, ordered, reserved_pages
from .ownership import Lifecycle, Ownership
from .sequence import Sequence, TokenChunk
from .step import SchedulerConfig
from .step_builder import DecodeBatch, InFlightStep, PartialPage, StepBuilder

WORTH_WAITING_TOKENS = 32  # a sibling's unfinished prefix is waited for if it saves at least so many
STALLED_STEPS = 8  # after a refusal for memory, admission is tried again so many steps later, or when something changes


class Planner:
    """Builds steps for one scheduler. failures: sequences that turned out not to fit even alone. steps: how many were planned."""

    def __init__(self, config: SchedulerConfig, cache: PrefixCache, ownership: Ownership, lifecycle: Lifecycle) -> None:
        self.ratio = NewTokenRatio()
        self.failures: list[tuple[Sequence, CapacityError]] = []
        self.steps = 0
        self._config = config
        self._cache = cache
        self._ownership = ownership
        self._life = lifecycle
        self._policy = POLICIES[config.policy]
        self._stalled: tuple[int, int] = (-STALLED_STEPS, -1)  # step and changes of the last refusal

    def plan(self, now: float) -> InFlightStep | None:
        """The next step; None if nothing can run now."""
        life, every = self._life, self._config.retract_every_steps
        while True:
            self.steps += 1
            if self._ownership.borrowed:
                self._ownership.return_borrowed()
            if every and self.steps % every == 0 and life.decoding:
                life.retract(next(reversed(life.decoding.values())))
            if not life.running:
                self.ratio.value = INITIAL_RATIO
            if life.decoding:
                self._secure_decodes()
            builder = StepBuilder(self._cache.page_size) if life.prefilling or life.waiting else None
            if builder is not None:
                for seq in list(life.prefilling.values()):
                    self._advance(seq, builder)
                if life.waiting:
                    self._admit(builder, now)
            if life.decoding or (builder is not None and builder.chunks):
                return self._write(builder)
            if not life.prefilling:
                return None
            # Nobody can go on: leases become hints, or whoever was admitted last makes room for the others.
            if not self._cache.leases.demote(1):
                life.retract(next(reversed(life.prefilling.values())))

    # Decode rows

    def _secure_decodes(self) -> None:
        """Every decoding sequence gets the page of its next position, or somebody has to go."""
        size = self._cache.page_size
        while True:
            short = [seq for seq in self._life.decoding.values() if len(seq.tokens) > len(seq.pages) * size]
            if not short:
                return
            pages = self._cache.allocate_each([seq.seq_id for seq in short])
            if pages is not None:
                break
            self._make_room(len(short))
        for seq, page in zip(short, pages, strict=True):
            seq.pages.append(page)

    def _make_room(self, pages: int) -> None:
        """Decode rows lack memory: leases first, then the sequence that loses least."""
        if self._cache.leases.demote(pages):
            return
        victim = self._victim()
        lone = self._life.running == 1
        self.ratio.retracted(self._life.decoding.values())
        if lone and self._cache.available_pages < pages:
            self._fail(victim)
        else:
            self._life.retract(victim)

    def _fail(self, seq: Sequence) -> None:
        pool = self._cache.pool
        error = CapacityError(
            f"{len(seq.tokens)} tokens need more than the {pool.num_pages} pages of {pool.page_size} tokens there are",
            hint="give the engine more KV memory",
        )
        self.failures.append((seq, error))
        self._life.end(seq, seq.prompt_tokens)

    def _victim(self) -> Sequence:
        """Who loses least: lowest priority (under that policy), then fewest generated, longest prompt, latest."""
        by_priority = self._config.policy == "priority"
        running = [*self._life.prefilling.values(), *self._life.decoding.values()]
        return min(
            running,
            key=lambda s: (s.request.priority if by_priority else 0, s.generated, -s.prompt_tokens, -s.arrival),
        )

    # Prompts

    def _budget(self, builder: StepBuilder) -> int:
        return self._config.max_batch_tokens - len(self._life.decoding) - builder.tokens

    def _chunk_end(self, seq: Sequence, builder: StepBuilder) -> int:
        """How far `seq` gets in this step; a chunk that is not the last ends at a page boundary."""
        chunk = min(self._budget(builder), self._config.prefill_chunk_tokens or self._config.max_batch_tokens)
        end = min(len(seq.tokens), seq.computed + chunk)
        return end if end == len(seq.tokens) else end - end % self._cache.page_size

    def _advance(self, seq: Sequence, builder: StepBuilder) -> None:
        """Compute more of an admitted sequence, as far as budget and memory allow."""
        if seq.computed < len(seq.tokens):
            end = self._chunk_end(seq, builder)
            within = (len(seq.pages) + self._cache.available_pages) * self._cache.page_size
            end = end if end <= within else within
            if end <= seq.computed or not self._ownership.grow(seq, end):
                return
            self._add(seq, end, builder)
        if seq.task is not None and self._stands_at_end(seq, builder):
            self._add_edges(seq, builder)

    def _add(self, seq: Sequence, end: int, builder: StepBuilder) -> TokenChunk:
        chunk = builder.add(seq, end)
        self._ownership.publish(seq, end)
        if chunk.end % self._cache.page_size:
            builder.leave_open(chunk)
        return chunk

    def _stands_at_end(self, seq: Sequence, builder: StepBuilder) -> bool:
        chunk = builder.writers.get(seq.seq_id)
        return (chunk.end if chunk else seq.computed) == len(seq.tokens)

    def _add_edges(self, seq: Sequence, builder: StepBuilder) -> None:
        task = seq.task
        while task is not None and task.next < len(task.todo):
            edge = task.todo[task.next]
            if len(edge.nodes) > self._budget(builder) or not self._ownership.grow_edge(seq, edge):
                return
            builder.add_edge(seq, edge)
            task.next += 1

    # New requests

    def _admit(self, builder: StepBuilder, now: float) -> None:
        """Admit waiting requests in the policy's order, until budget, memory or places run out."""
        config, life, size = self._config, self._life, self._cache.page_size
        full = life.running >= config.max_running and config.policy != "priority"  # which preempts
        step, changes = self._stalled
        stalled = life.running and self.steps - step < STALLED_STEPS and changes == life.changes
        if full or stalled or self._budget(builder) < size:
            return
        queue = life.waiting
        order = (
            ordered(self._policy, queue, self._cache.tree, now, config.aging_s)
            if len(queue) > 1
            else list(queue.values())
        )
        for seq in order:
            if self._budget(builder) < size:
                return
            if life.prefilling and seq.shares and self._waits_for_sibling(seq, builder):
                continue
            if not (self._try(seq, builder, now) or (self._preempt_for(seq) and self._try(seq, builder, now))):
                self._stalled = (self.steps, life.changes)
                return

    def _waits_for_sibling(self, seq: Sequence, builder: StepBuilder) -> bool:
        """Whether somebody is still computing a prefix that `seq` could share by waiting."""
        worth = max(self._cache.page_size, WORTH_WAITING_TOKENS)
        for other in self._life.prefilling.values():
            chunk = builder.writers.get(other.seq_id)
            there = chunk.end if chunk else other.computed
            if there < len(other.tokens) and other.shares and other.namespace == seq.namespace:
                common = common_bytes(other.key, seq.key, 0, len(seq.key)) // TOKEN_BYTES
                if min(common, seq.match_limit) - there >= worth:
                    return True
        return False

    def _try(self, seq: Sequence, builder: StepBuilder, now: float) -> bool:
        """Admit `seq` if it fits, with its prefix locked while that is computed. Nothing is held after a refusal."""
        if self._life.running >= self._config.max_running:
            return False
        if builder.finals and seq.task is None and seq.prompt_logprobs is None:
            above = builder.finals.get((seq.namespace, seq.key))
            if above is not None and self._join(seq, above, builder, now):
                return True
        self._ownership.take_prefix(seq, seq.match_limit)
        if self._fits(seq) and self._start(seq, builder, now):
            return True
        self._ownership.release(seq, 0)
        return False

    def _fits(self, seq: Sequence) -> bool:
        if self._life.running:
            return self._reserve(seq) + self._reserved_by_running() <= self._cache.available_pages
        need = self._cache.pages_for(len(seq.tokens)) - len(seq.pages)
        if need > self._cache.available_pages:
            self._cache.leases.demote(need - self._cache.available_pages)
        return need <= self._cache.available_pages

    def _start(self, seq: Sequence, builder: StepBuilder, now: float) -> bool:
        """Give `seq` its first chunk. False if there is none, or its pages are not to be had after all."""
        partial = builder.find_partial_page(seq, self._cache.tree) if self._cache.page_size > 1 else None
        end = None if partial is None else self._take_chunk(seq, partial, builder)
        if end is None:
            partial = None  # without it there is one node less to lock
            end = self._take_chunk(seq, None, builder)
        if end is None:
            return False
        self._enter(seq, seq.computed, builder, now)
        if seq.computed < len(seq.tokens):
            chunk = self._add(seq, end, builder)
            if partial is not None:
                builder.fill_partial_page(partial, chunk)
        if seq.task is not None and self._stands_at_end(seq, builder):
            self._add_edges(seq, builder)
        return True

    def _take_chunk(self, seq: Sequence, partial: PartialPage | None, builder: StepBuilder) -> int | None:
        """Pages for the first chunk behind the matched prefix and `partial`. Returns where it ends; None: `seq` stands where it stood."""
        before = seq.computed
        borrowed = None
        if partial is not None:
            seq.computed += partial.tokens
            if partial.node is not None:
                borrowed = self._ownership.borrow(partial.node, seq)
        end = self._chunk_end(seq, builder)
        if seq.computed == len(seq.tokens) or (end > seq.computed and self._ownership.grow(seq, end)):
            return end
        self._life.counters.allocation_failures += end > seq.computed
        seq.computed = before
        if borrowed is not None:
            self._ownership.return_one(borrowed)
        return None

    def _join(self, seq: Sequence, above: TokenChunk, builder: StepBuilder, now: float) -> bool:
        """`seq` ends where `above` does: it samples from that row and computes nothing."""
        size, tokens = self._cache.page_size, len(seq.tokens)
        self._ownership.take_prefix(seq, tokens)
        if seq.computed == tokens - tokens % size and self._fits(seq) and self._ownership.grow(seq, tokens):
            if tokens % size:
                builder.share_partial_page(above, seq.pages[-1], tokens, None)
            above.takers.append(seq)
            self._enter(seq, tokens, builder, now)
            return True
        self._ownership.release(seq, 0)
        return False

    def _enter(self, seq: Sequence, cached_tokens: int, builder: StepBuilder, now: float) -> None:
        if seq.admitted_s is None:
            seq.cached_tokens = cached_tokens
        if seq.receipt is not None:
            seq.receipt.node.hits += 1
        self._life.admit(seq, now)
        builder.open(seq)

    def _preempt_for(self, seq: Sequence) -> bool:
        """Under the priority policy: retract decoding sequences of lower priority, if that is enough for `seq`."""
        if self._config.policy != "priority":
            return False
        lower = [s for s in self._life.decoding.values() if s.request.priority < seq.request.priority]
        lower.sort(key=lambda s: (s.request.priority, s.generated, -s.arrival))
        need = self._missing_pages(seq)
        for count, victim in enumerate(lower, 1):
            need -= self._ownership.sole_pages(victim) + self._reserve(victim)
            if need <= 0:
                for chosen in lower[:count]:
                    self._life.retract(chosen)
                    self._life.counters.preempted += 1
                return True
        return False

    def _missing_pages(self, seq: Sequence) -> int:
        """Pages by which `seq` does not fit beside all that run."""
        ids = seq.request.prompt_ids
        node, tokens = self._cache.tree.peek(seq.namespace, seq.key, seq.match_limit, ids=ids)
        locked = tokens // self._cache.page_size if node is not None and node.lock and seq.shares else 0
        return self._reserve(seq) - locked - self._cache.available_pages + self._reserved_by_running()

    def _reserve(self, seq: Sequence) -> int:
        return reserved_pages(seq, self.ratio.value, self._cache.page_size)

    def _reserved_by_running(self) -> int:
        return sum(map(self._reserve, (*self._life.prefilling.values(), *self._life.decoding.values())))

    def _write(self, builder: StepBuilder | None) -> InFlightStep:
        """Write the step down, with what it costs each request."""
        life, least = self._life, self._config.cascade_min_tokens
        if life.decoding:
            self.ratio.decay()
        closes = tuple(life.closes)
        life.closes.clear()
        if builder is not None and builder.chunks:
            for chunk in builder.chunks:
                life.counters.computed_tokens += len(chunk.token_ids)
                chunk.seq.spent_tokens += len(chunk.token_ids)
            return builder.build(self.steps, list(life.decoding.values()), closes, least)
        if life.decode_batch is None:
            life.decode_batch = DecodeBatch.of(list(life.decoding.values()), least)
        return life.decode_batch.step(self.steps, closes)
