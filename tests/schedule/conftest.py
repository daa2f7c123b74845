"""A worker that is an oracle: the next token is a hash of the sequence's content, read through its pages.

Every slot remembers its token and position. Whatever mixes pages up (a page used twice, freed too early, not re-pointed, a
missing copy) changes what is read, so it is either found at once or changes the output.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

import pytest

from sglang_dsl.ir.specs import SamplingSpec
from sglang_dsl.runtime.cache.keys import Namespace
from sglang_dsl.runtime.schedule.request import GenerateRequest, RequestUpdate, ScoreRequest
from sglang_dsl.runtime.schedule.scheduler import Scheduler
from sglang_dsl.runtime.schedule.step import Sampled, SchedulerConfig, Scored, StepPlan, StepResult, WorkerFacts

VOCAB = 50


class CanaryError(AssertionError):
    """A slot does not hold what the row that reads it relies on."""


def next_token(content: Sequence[int]) -> int:
    return hash(tuple(content)) % VOCAB


def logprob(content: Sequence[int], token: int) -> float:
    return -(hash((tuple(content), token)) % 10_000 + 1) / 1000


def top_tokens(content: Sequence[int], count: int) -> tuple[tuple[int, float], ...]:
    ranked = sorted(((t, logprob(content, t)) for t in range(VOCAB)), key=lambda pair: (-pair[1], pair[0]))
    return tuple(ranked[:count])


class OracleWorker:
    """Executes plans on slots of (token, position)."""

    def __init__(self, facts: WorkerFacts) -> None:
        self.size = facts.page_size
        self.slots: list[list[tuple[int, int] | None]] = [[None] * facts.page_size for _ in range(facts.num_pages)]
        self.known: dict[int, list[int]] = {}
        self.rows = 0
        self.tokens = 0
        self.plans: list[StepPlan] = []
        self.fail_next: Exception | None = None

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        self._open(plan)
        for copy in plan.copies:
            self.slots[copy.target][: copy.tokens] = self.slots[copy.source][: copy.tokens]
        self._scatter(plan)
        contents = [self._read(row.pages, row.start + len(row.token_ids)) for row in plan.rows]
        self._check(plan, contents)
        return StepResult(self._sample(plan, contents), self._score(plan, contents), 0.01)

    def _open(self, plan: StepPlan) -> None:
        for seq_id in plan.closes:
            self.known.pop(seq_id, None)
        for opened in plan.opens:
            assert opened.seq_id not in self.known
            self.known[opened.seq_id] = [*opened.prompt_ids, *opened.generated]

    def _scatter(self, plan: StepPlan) -> None:
        written = set()
        for row in plan.rows:
            self.tokens += len(row.token_ids)
            assert row.token_ids, "an empty row"
            for position, token in enumerate(row.token_ids, row.start):
                place = (row.pages[position // self.size], position % self.size)
                assert place not in written, f"slot {place} is written twice in a step"
                written.add(place)
                self.slots[place[0]][place[1]] = (token, position)
        for mirror in plan.mirrors:
            row = plan.rows[mirror.row]
            place = (mirror.page, mirror.offset)
            assert place not in written
            written.add(place)
            self.slots[mirror.page][mirror.offset] = (row.token_ids[mirror.position - row.start], mirror.position)
        self.rows += len(plan.rows)
        self._check_order(plan)

    def _check_order(self, plan: StepPlan) -> None:
        """Whoever computes a prefix stands before all that read it: models that go through a step in tiles rely on it."""
        writer = {}
        for number, row in enumerate(plan.rows):
            for position in range(row.start, row.start + len(row.token_ids)):
                writer[row.pages[position // self.size], position % self.size] = number
        writer.update({(mirror.page, mirror.offset): mirror.row for mirror in plan.mirrors})
        for number, row in enumerate(plan.rows):
            for position in range(row.start):
                by = writer.get((row.pages[position // self.size], position % self.size), -1)
                if by > number:
                    raise CanaryError(f"row {number} reads what row {by} computes")

    def _read(self, pages: Sequence[int], end: int) -> list[int]:
        content = []
        for position in range(end):
            slot = self.slots[pages[position // self.size]][position % self.size]
            if slot is None or slot[1] != position:
                raise CanaryError(f"position {position} reads {slot} on page {pages[position // self.size]}")
            content.append(slot[0])
        return content

    def _check(self, plan: StepPlan, contents: list[list[int]]) -> None:
        for row, content in zip(plan.rows, contents, strict=True):
            known = self.known.get(row.seq_id)
            if known is not None and known[: len(content)] != content:
                raise CanaryError(f"sequence {row.seq_id} reads {content}, but is {known}")
        ends = [0] * len(plan.rows)
        for level in plan.levels:
            assert list(level) == sorted(level)
            for group in level:
                assert group.end_row - group.first_row > 1
                assert group.start % self.size == group.end % self.size == 0
                span = slice(group.start // self.size, group.end // self.size)
                for row in range(group.first_row, group.end_row):
                    assert ends[row] == group.start, "a level begins where the one above ends"
                    ends[row] = group.end
                    assert plan.rows[row].start >= group.end
                    assert plan.rows[row].pages[span] == plan.rows[group.first_row].pages[span]
        assert [row.own_start for row in plan.rows] == ends

    def _sample(self, plan: StepPlan, contents: list[list[int]]) -> list[Sampled]:
        found = []
        for point in plan.samples:
            row = plan.rows[point.row]
            content = contents[point.row][: row.start + point.offset + 1]
            token = next_token(content)
            assert len(self.known[point.seq_id]) == len(content), "sampled from somewhere else than its end"
            assert self.known[point.seq_id] == content
            self.known[point.seq_id].append(token)
            found.append(Sampled(point.seq_id, token))
        return found

    def _score(self, plan: StepPlan, contents: list[list[int]]) -> list[Scored]:
        found = []
        for point in plan.scores:
            content = contents[point.row][: plan.rows[point.row].start + point.offset + 1]
            logprobs = [logprob(content, token) for token in point.token_ids]
            found.append(Scored(point.key, logprobs, top_tokens(content, point.top)))
        return found


class Lab:
    """A scheduler with an oracle worker, a clock, and what an engine would do: finish requests at their length."""

    def __init__(
        self, *, num_pages: int = 256, page_size: int = 1, context: int = 4096, bos: int | None = None, **config: object
    ) -> None:
        self.facts = WorkerFacts(num_pages=num_pages, page_size=page_size, context_tokens=context, bos_id=bos)
        config.setdefault("check_integrity", True)
        self.scheduler = Scheduler(SchedulerConfig(**config), self.facts)  # type: ignore[arg-type]
        self.worker = OracleWorker(self.facts)
        self.now = 0.0
        self.refusals = 0
        self.requests: dict[str, GenerateRequest | ScoreRequest] = {}
        self.tokens: dict[str, list[int]] = {}
        self.progress: dict[str, list[RequestUpdate]] = {}
        self.ended: dict[str, str] = {}
        self.errors: dict[str, Exception] = {}

    def generate(self, request_id: str, prompt: Iterable[int], max_tokens: int = 4, **more: object) -> str:
        compiling = bool(more.pop("compiling", False))
        request = GenerateRequest(
            request_id=request_id,
            prompt_ids=tuple(prompt),
            sampling=SamplingSpec(max_tokens=max_tokens),
            **more,  # type: ignore[arg-type]
        )
        self.requests[request_id] = request
        self.scheduler.add(request, self.now, compiling=compiling)
        self.tokens[request_id] = []
        return request_id

    def score(
        self, request_id: str, prompt: Iterable[int], continuations: Sequence[Sequence[int]], **more: object
    ) -> str:
        request = ScoreRequest(
            request_id=request_id,
            prompt_ids=tuple(prompt),
            continuations=continuations,
            **more,  # type: ignore[arg-type]
        )
        self.requests[request_id] = request
        self.scheduler.add(request, self.now)
        return request_id

    def cancel(self, request_id: str) -> bool:
        known = self.scheduler.cancel(request_id)
        if known:
            self.ended[request_id] = "cancelled"
        return known

    def break_allocations(self, rng: random.Random, rate: float) -> None:
        """From now on the pool refuses now and then, whatever it has. `refusals` counts how often."""
        pool = self.scheduler.cache.pool
        honest = pool.allocate_each

        def allocate_each(owners: Sequence[int]) -> list[int] | None:
            if len(owners) and rng.random() < rate:
                self.refusals += 1
                return None
            return honest(owners)

        pool.allocate_each = allocate_each  # type: ignore[method-assign]

    def mend_allocations(self) -> None:
        """The pool is honest again."""
        vars(self.scheduler.cache.pool).pop("allocate_each", None)

    def turn(self) -> StepPlan | None:
        """One turn of an engine's loop."""
        self.take(self.scheduler.expired(self.now))
        plan = self.scheduler.step(self.now)
        if plan is None:
            self.take(self.scheduler.expired(self.now))
            return None
        self.land(plan)
        return plan

    def land(self, plan: StepPlan) -> None:
        try:
            result = self.worker.execute(plan)
        except CanaryError:
            raise
        except RuntimeError as error:
            self.take(self.scheduler.abort_step(plan, error))
            return
        self.now += result.elapsed_s
        self.take(self.scheduler.commit(plan, result, self.now))

    def take(self, progress: list[RequestUpdate]) -> None:
        for event in progress:
            assert event.request_id not in self.ended, f"{event} after the end"
            self.progress.setdefault(event.request_id, []).append(event)
            if event.kind == "token":
                self.tokens[event.request_id].append(event.token_id)
                if len(self.tokens[event.request_id]) == self.requests[event.request_id].sampling.max_tokens:  # type: ignore[union-attr]
                    self.ended[event.request_id] = "finished"
                    self.scheduler.finish(event.request_id, len(self.tokens[event.request_id]))
            elif event.kind in ("scored", "failed"):
                self.ended[event.request_id] = event.kind
                if event.error is not None:
                    self.errors[event.request_id] = event.error

    def run(self, steps: int = 10_000) -> None:
        """Until nothing is left to do."""
        for _ in range(steps):
            if self.scheduler.idle:
                return
            self.turn()
        raise AssertionError(f"not done after {steps} steps: {self.scheduler.snapshot()}")

    def admitted(self, request_id: str) -> RequestUpdate:
        return next(p for p in self.progress[request_id] if p.kind in ("admitted", "scored"))

    def expect_cold_outputs(self) -> None:
        """Every finished request has the tokens it would have had alone on an empty engine."""
        for request_id, how in self.ended.items():
            request = self.requests[request_id]
            if how == "finished" and isinstance(request, GenerateRequest):
                assert self.tokens[request_id] == cold_tokens(request.prompt_ids, request.sampling.max_tokens)
            if how == "scored" and isinstance(request, ScoreRequest):
                scored = self.progress[request_id][-1].scored
                assert scored is not None
                assert scored[0] == cold_scores(request.prompt_ids, request.continuations, self.facts.bos_id)
                if request.unconditional:
                    assert scored[1] == cold_scores((), request.continuations, self.facts.bos_id)

    def expect_all_released(self) -> None:
        """Idle, nothing leased or held: free + evictable = total, and a flush gets everything back."""
        self.scheduler.check()
        snapshot = self.scheduler.snapshot()
        assert snapshot.free_pages + snapshot.evictable_pages == snapshot.total_pages
        assert snapshot.request_pages == 0
        self.scheduler.flush()
        assert self.scheduler.snapshot().free_pages == snapshot.total_pages


def cold_tokens(prompt: Sequence[int], count: int) -> list[int]:
    content = list(prompt)
    for _ in range(count):
        content.append(next_token(content))
    return content[len(prompt) :]


def cold_scores(
    prompt: Sequence[int], continuations: Sequence[Sequence[int]], bos: int | None
) -> tuple[tuple[float, ...], ...]:
    context = list(prompt) or ([] if bos is None else [bos])
    return tuple(
        tuple(logprob([*context, *c[:i]], token) if context or i else 0.0 for i, token in enumerate(c))
        for c in continuations
    )


@pytest.fixture
def lab() -> Callable[..., Lab]:
    """Makes a Lab."""
    return Lab


@pytest.fixture
def namespace() -> Callable[[str], Namespace]:
    """Makes a namespace of a user."""
    return lambda user: Namespace(user_key=user)
