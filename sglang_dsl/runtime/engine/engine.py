"""The engine: one model, its scheduler and its cache behind a loop in a thread of this process.

    from sglang_dsl.runtime.engine.engine import Engine

    with Engine(worker, text) as engine:
        result = engine.generate("Once upon a time", SamplingSpec(max_tokens=32, temperature=0))
        print(result.text, result.cached_tokens)

Prompts are token ids, or text for the model's tokenizer (as content: control tokens in it are plain text). Requests of
all threads and coroutines share the batch and the prefix cache.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Self, TypeAlias, TypeVar, Unpack

from ...errors import DslError, EngineClosedError, EngineError, SpecError
from ...ir.execution import ConstraintReport, check_models_allowed, on_loop
from ...ir.specs import ConstraintSpec, SamplingSpec, entries
from ..cache.keys import Namespace
from ..schedule.request import GenerateRequest, GenerateResult, LeaseId, Request, ScoreResult, Sink, TargetInfo
from ..schedule.scheduler import Scheduler
from ..schedule.step import Worker, WorkerFacts, WorkerInfo
from ..text.tokenizer import TextModel
from .border import (
    GENERATE_OPTIONS,
    CallOptions,
    EngineConfig,
    GenerateOptions,
    NativeRequests,
    Prompt,
    checked_cancel,
    checked_item,
    checked_lease,
    checked_release,
    checked_request,
    instance,
    known_options,
    refusable,
)
from .loop import Command, EngineLoop, EngineThread
from .metrics import Clock, EngineSnapshot, Health, WallClock
from .streams import PendingResult, TextStream

Auditor: TypeAlias = Callable[[ConstraintSpec], ConstraintReport]
T = TypeVar("T")
R = TypeVar("R", GenerateResult, ScoreResult)
_DEFAULTS = SamplingSpec()


class Engine:
    """Thread-safe. The loop's thread starts with the first request and ends with `close`, at exit, or when the engine is
    dropped. In a forked child every call raises EngineClosedError.

    Args:
        worker: the model. The engine owns it: `close` closes it.
        text: its tokenizer and template.
        clock: where deadlines and timestamps come from.
        audit: findings of a constraint, for `audit`.
        background: False runs no thread; the owner calls `turn` (tests). `generate`, `score` and `flush` then turn
            the loop themselves.
    """

    def __init__(
        self,
        worker: Worker,
        text: TextModel,
        *,
        config: EngineConfig | None = None,
        clock: Clock | None = None,
        audit: Auditor | None = None,
        background: bool = True,
    ) -> None:
        config = config or EngineConfig()
        facts = worker.info
        self.text = text
        self.info = TargetInfo(
            model=facts.model,
            context_tokens=facts.context_tokens,
            kv_bytes_per_token=facts.kv_bytes_per_token,
            namespace=Namespace(
                model=facts.fingerprint, weight_version=facts.weight_version, kv_layout=facts.kv_layout
            ),
        )
        self._worker = worker
        self._audit = audit
        self._background = background
        scheduler = Scheduler(config, _scheduler_facts(facts, text.tokenizer.bos_id))
        self._loop = EngineLoop(worker, text.tokenizer, scheduler, clock or WallClock(), config)
        self._thread = EngineThread(self._loop, worker, config.close_timeout_s)
        self._requests = NativeRequests(text.tokenizer, self.info, self._loop.clock)
        self._leases = itertools.count(1)
        self.now = self._loop.clock.now  # seconds on the engine's clock
        self._finalizer = weakref.finalize(self, self._thread.close)

    # Target: what the interpreter uses

    def submit(self, requests: Sequence[tuple[Request, Sink]]) -> None:
        """Queue requests; those of one call are admitted together where they fit. Errors arrive at each Sink.

        Raises:
            EngineClosedError: nothing was queued.
            SpecError: an item is no pair of a request and a receiver, so nobody could be told. All others were queued.
        """
        check_models_allowed(f"asked the model {self.info.model!r}")
        checked: list[tuple[Request, Sink, BaseException | None]] = []
        unusable: SpecError | None = None
        for place, item in enumerate(entries("requests", requests, "submit([(request, sink), ...])")):
            try:
                request, sink = checked_item(place, item)
            except SpecError as error:
                unusable = unusable or error
                continue
            try:
                checked.append((checked_request(request, self._worker.info), sink, None))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - a field with a mind of its own fails its request alone
                checked.append((refusable(request), sink, error))
        self._post(partial(self._loop.add, checked))
        if unusable is not None:
            raise unusable

    def cancel(self, request_ids: Sequence[str], reason: str = "") -> None:
        """End these requests wherever they stand, exactly once each; their sinks get CancelledError. Unknown or ended
        ids, and a closed engine, are ignored.
        """
        ids, why = checked_cancel(request_ids, reason)
        try:
            self._post(partial(self._loop.cancel, ids, why))
        except EngineClosedError:
            return

    def lease(self, prompt_ids: Sequence[int], namespace: Namespace, children: int) -> LeaseId:
        """Keep the state of `prompt_ids` until `children` requests that name the lease were admitted or ended, or `release`."""
        check_models_allowed(f"asked the model {self.info.model!r}")
        ids, space, count = checked_lease(prompt_ids, namespace, children, self._worker.info)
        lease_id = next(self._leases)
        self._post(partial(self._loop.lease, lease_id, ids, space, count))
        return lease_id

    def release(self, lease: LeaseId, children: int | None = None) -> None:
        """So many children will not come (None: end the lease). Idempotent after the end, and on a closed engine."""
        lease_id, count = checked_release(lease, children)
        try:
            self._post(partial(self._loop.release, lease_id, count))
        except EngineClosedError:
            return

    def audit(self, constraint: ConstraintSpec) -> ConstraintReport:
        """Findings and forced tokens. Raises ConstraintError. Also starts compiling it in the background."""
        instance("constraint", constraint, ConstraintSpec)
        report = self._audit(constraint) if self._audit is not None else ConstraintReport()
        self._worker.prepare(constraint)
        return report

    # native use

    def generate(
        self, prompt: Prompt, sampling: SamplingSpec = _DEFAULTS, **options: Unpack[GenerateOptions]
    ) -> GenerateResult:
        """Generate after `prompt` and wait for the end. Ctrl-C, or any exception while waiting, cancels the request.

        Raises:
            ContextLengthError, CapacityError, QueueFullError, ConstraintError, SpecError: the request was refused.
            DeadlineError, CancelledError, SamplingError, EngineError: it was taken, and failed.
        """
        return self._wait(self._requests.generate(prompt, sampling, options), PendingResult(GenerateResult))

    async def agenerate(
        self, prompt: Prompt, sampling: SamplingSpec = _DEFAULTS, **options: Unpack[GenerateOptions]
    ) -> GenerateResult:
        """`generate` for coroutines: cancelling the task cancels the request."""
        return await self._await(self._requests.generate(prompt, sampling, options), PendingResult(GenerateResult))

    def generate_batch(
        self, prompts: Sequence[Prompt], sampling: SamplingSpec = _DEFAULTS, **options: Unpack[GenerateOptions]
    ) -> list[GenerateResult | BaseException]:
        """Generate after each of `prompts`, admitted together; in their order, each one's result or its error."""
        known_options(options, GENERATE_OPTIONS)
        calls: list[tuple[GenerateRequest, PendingResult[GenerateResult]]] = []
        every: list[PendingResult[GenerateResult]] = []
        for prompt in entries("prompts", prompts, 'generate_batch(["first prompt", "second prompt"])'):
            every.append(PendingResult(GenerateResult))
            try:
                calls.append((self._requests.generate(prompt, sampling, options), every[-1]))
            except DslError as error:  # of this prompt: the others get their answers
                every[-1].done(error)
        with self._cancelling([request.request_id for request, _ in calls]):
            self.submit(calls)
            self._drive([pending.future for _, pending in calls])
        return [pending.future.exception() or pending.future.result() for pending in every]

    def stream(
        self, prompt: Prompt, sampling: SamplingSpec = _DEFAULTS, **options: Unpack[GenerateOptions]
    ) -> TextStream:
        """Start generating after `prompt`; the stream is read by `for`, `async for`, `read` and `result`."""
        request = self._requests.generate(prompt, sampling, options)
        stream = TextStream(lambda: self.cancel([request.request_id]))
        with self._cancelling([request.request_id]):
            self.submit([(request, stream)])
        return stream

    async def astream(
        self, prompt: Prompt, sampling: SamplingSpec = _DEFAULTS, **options: Unpack[GenerateOptions]
    ) -> AsyncIterator[str]:
        """The text of one generation as it comes. Closing the iterator, or cancelling its task, cancels the request."""
        with self.stream(prompt, sampling, **options) as stream:
            async for delta in stream:
                yield delta

    def score(
        self,
        prompt: Prompt,
        continuations: Sequence[Prompt],
        *,
        unconditional: bool = False,
        **options: Unpack[CallOptions],
    ) -> ScoreResult:
        """Log-probability of each token of each continuation after `prompt`; shared prefixes are computed once.

        Args:
            unconditional: also without the prompt.

        Raises:
            see `generate`.
        """
        request = self._requests.score(prompt, continuations, options, unconditional=unconditional)
        return self._wait(request, PendingResult(ScoreResult))

    async def ascore(
        self,
        prompt: Prompt,
        continuations: Sequence[Prompt],
        *,
        unconditional: bool = False,
        **options: Unpack[CallOptions],
    ) -> ScoreResult:
        """`score` for coroutines: cancelling the task cancels the request."""
        request = self._requests.score(prompt, continuations, options, unconditional=unconditional)
        return await self._await(request, PendingResult(ScoreResult))

    # the engine itself

    def flush(self, namespace: Namespace | None = None) -> int:
        """Forget cached prefixes (None: of all namespaces) that no running request or lease holds; pages freed."""
        space = None if namespace is None else instance("namespace", namespace, Namespace)
        return self._ask(partial(self._loop.flush, space))

    def check(self) -> None:
        """Raise IntegrityError if a page has no owner or two; the message names pages and owners."""
        self._ask(self._loop.check)

    def snapshot(self) -> EngineSnapshot:
        """All counters, between two steps; after `close`, the last ones."""
        try:
            return self._ask(self._loop.snapshot)
        except EngineClosedError:
            self._thread.check_process()
            self.close()
            return self._loop.snapshot()

    def health(self) -> Health:
        """Its state: "ok", "degraded" (with reasons: recent faults, leaks, a stall) or "closed". Never waits."""
        if self._thread.forked:
            return Health(status="closed", reasons=("this is a forked process; the engine lives in its parent",))
        return self._loop.health.read(self.now())

    def turn(self) -> bool:
        """With `background=False`: one turn of the loop. False if there was nothing to do."""
        if self._background:
            raise EngineError("this engine turns by itself", hint="open it with background=False to turn it by hand")
        return self._loop.turn()

    def close(self) -> None:
        """End everything: requests in flight get EngineClosedError, the thread ends, the worker is closed. Idempotent."""
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _post(self, command: Command) -> None:
        self._thread.check_process()
        self._loop.inbox.post(command)
        if self._background and self._thread.thread is None:
            self._thread.start()

    def _ask(self, question: Callable[[], T]) -> T:
        """Have the loop's thread answer between two steps."""
        if self._thread.here or not self._background:
            return question()
        answer: Future[T] = Future()
        self._post(partial(_answer, answer, question))
        return answer.result()

    def _wait(self, request: Request, pending: PendingResult[R]) -> R:
        with self._cancelling([request.request_id]):
            self.submit([(request, pending)])
            self._drive([pending.future])
            return pending.future.result()

    async def _await(self, request: Request, pending: PendingResult[R]) -> R:
        with self._cancelling([request.request_id]):
            self.submit([(request, pending)])
            if not self._background:
                self._drive([pending.future])
            return await on_loop(pending.future)

    @contextmanager
    def _cancelling(self, request_ids: Iterable[str]) -> Iterator[None]:
        """Cancel these requests if the block is left by an exception (Ctrl-C, a cancelled task)."""
        try:
            yield
        except BaseException:
            self.cancel(list(request_ids))
            raise

    def _drive(self, futures: Sequence[Future[R]]) -> None:
        if self._thread.here:
            raise EngineError("a receiver of output cannot wait for the engine", hint="submit, and return")
        if self._background:
            wait(futures)
            return
        while not all(future.done() for future in futures):
            if not self._loop.turn():
                self._loop.rest()


def _scheduler_facts(facts: WorkerInfo, bos_id: int | None) -> WorkerFacts:
    return WorkerFacts(
        num_pages=facts.num_pages,
        page_size=facts.page_size,
        context_tokens=facts.context_tokens,
        bos_id=bos_id,
        length_borders=facts.length_borders,
    )


def _answer(answer: Future[T], question: Callable[[], T]) -> None:
    try:
        answer.set_result(question())
    except Exception as error:  # noqa: BLE001 - raised again where it was asked
        answer.set_exception(error)
