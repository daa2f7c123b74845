"""The engine's loop: one turn is one step of the model.

    inbox -> expired -> scheduler.step -> worker.execute -> scheduler.commit -> output -> sinks
               |                              |                   |
               '---- failed requests          '- raised:          '- faults fail their request alone
                                                 abort_step

Nothing a request contains can raise out of a turn. What fails without a request to blame (the scheduler's own state is
wrong) ends the loop: every live request fails, and `health` says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from time import perf_counter

from ...errors import CancelledError, DslError, EngineClosedError, EngineError, IntegrityError, SpecError
from ...ir.execution import FinishReason
from ..cache.namespace import Namespace
from ..schedule.progress import Progress
from ..schedule.request import GenerateRequest, LeaseId, Request, Result, Sink
from ..schedule.scheduler import Scheduler
from ..schedule.step import StepPlan, StepResult
from ..text.protocol import Tokenizer
from .border import check_request
from .calls import Call
from .clock import Clock
from .config import EngineConfig
from .health import HealthLog
from .inbox import Inbox
from .metrics import EngineSnapshot, Metrics
from .output import SequenceOutput
from .worker import Worker

CLOSED = "the engine was closed"
RETRY_S = 0.02  # a scheduler that has work but no step (a shortage) is asked again: a stall costs time, never a hang
STALL_S = 1.0  # so long without a step, with work that could run, is told in health

logger = logging.getLogger("sglang_dsl.engine")


class Loop:
    """Owner of the scheduler, the worker and all live requests. `inbox` is the only way in from other threads.

    Methods but `run` and `turn` are commands: post them to the inbox.
    """

    def __init__(
        self, worker: Worker, tokenizer: Tokenizer, scheduler: Scheduler, clock: Clock, config: EngineConfig
    ) -> None:
        self.inbox = Inbox()
        self.health = HealthLog(config.health_window_s)
        self.clock = clock
        self._worker = worker
        self._tokenizer = tokenizer
        self._scheduler = scheduler
        self._config = config
        self._metrics = Metrics()
        self._live: dict[str, Call] = {}
        self._compiling = 0
        self._unchecked = False  # something ran since the last idle check
        self._waiting_since = 0.0  # real time since when there was work and no step; 0: there is none

    # the loop

    def run(self) -> None:
        """Turn until the inbox is closed, then end what is left. The body of the engine's thread."""
        reason = CLOSED
        try:
            while not self.inbox.closed:
                if not self.turn():
                    self.rest()
        except BaseException as error:
            reason = f"the engine's loop died: {type(error).__name__}: {error}"
            logger.critical("%s", reason, exc_info=True, extra={"event": "engine.died"})
            if not isinstance(error, Exception):
                raise
        finally:
            self.end(reason)

    def turn(self) -> bool:
        """One turn. False if there was nothing to do."""
        worked = self._drain()
        began = perf_counter()
        now = self.clock.now()
        ended = self._scheduler.expired(now)
        self._deliver(ended)
        plan = self._scheduler.step(now)
        if plan is None:
            return worked or bool(ended)
        progress = self._run_step(plan, perf_counter() - began)
        began = perf_counter()
        self._drain()
        self._deliver(progress)
        self._metrics.observe("output_s", perf_counter() - began)
        self._unchecked = True
        self._waiting_since, self.health.stalled = 0.0, ""
        return True

    def rest(self) -> None:
        """Nothing to do: check the books once, then sleep until a command, a deadline, or the close."""
        scheduler = self._scheduler
        if scheduler.idle and self._unchecked:
            if not self.inbox.wait(self._config.idle_check_after_s):
                self._check_books()
            return
        seconds = self.clock.rest(scheduler.next_deadline(), jump=not self._compiling and not self.inbox.pending)
        if not scheduler.idle and not self._compiling:
            seconds = min(RETRY_S if seconds is None else seconds, RETRY_S)
            self._note_stall()
        if seconds != 0.0:
            self.inbox.wait(seconds)

    def end(self, reason: str) -> None:
        """Refuse new work, then fail every live request, in the order of submission. Idempotent."""
        self.health.closed(reason)
        self.inbox.close(reason)
        self._drain()
        for call in list(self._live.values()):
            self._fail(call, EngineClosedError(f"{reason}, before this request ended", hint="open a new engine"))

    # commands

    def add(self, requests: Sequence[tuple[Request, Sink]]) -> None:
        """Queue requests; one that is refused ends at once."""
        now = self.clock.now()
        for request, sink in requests:
            call = Call(request, sink, order=self._metrics.submitted, now=now)
            self._metrics.submitted += 1
            try:
                compiling = self._examine(call)
            except Exception as error:  # noqa: BLE001 - whatever a request provokes is its own failure
                self._count_down(request)
                self._end_failed(call, self._blame(error, f"request {request.request_id!r} could not be read"))
            else:
                self._queue(call, compiling, now)

    def cancel(self, request_ids: Sequence[str], reason: str) -> None:
        """End these requests; unknown ids are ignored."""
        for request_id in request_ids:
            if (call := self._live.get(request_id)) is not None:
                self._fail(call, CancelledError(reason or "the request was cancelled"))

    def lease(self, lease_id: LeaseId, prompt_ids: Sequence[int], namespace: Namespace, children: int) -> None:
        """Keep the state of a prefix for `children` requests."""
        self._scheduler.lease(prompt_ids, namespace, children, lease_id=lease_id)

    def release(self, lease_id: LeaseId, children: int | None) -> None:
        """So many children will not come."""
        self._scheduler.release(lease_id, children)

    def flush(self, namespace: Namespace | None) -> int:
        """Forget cached prefixes that nothing holds; pages freed."""
        return self._scheduler.flush(namespace)

    def check(self) -> None:
        """Raise IntegrityError if the books do not balance."""
        self._scheduler.check()

    def snapshot(self) -> EngineSnapshot:
        """All counters."""
        return self._metrics.snapshot(
            model=self._worker.info.model,
            at_s=self.clock.now(),
            live=len(self._live),
            scheduler=self._scheduler.snapshot(),
        )

    # queueing

    def _drain(self) -> bool:
        commands = self.inbox.take()
        for command in commands:
            try:
                command()
            except Exception as error:  # noqa: BLE001 - a command has no request to fail
                self._fault("a command failed", error)
        return bool(commands)

    def _examine(self, call: Call) -> Future[None] | None:
        """What may be wrong with a request before the scheduler sees it. Returns its constraint's compilation, if any."""
        if call.request_id in self._live:
            raise SpecError(f"request id {call.request_id!r} is in use", hint="use each id once")
        check_request(call.request, self._worker.info)
        call.open_output(self._tokenizer)
        return self._prepare(call.request)

    def _queue(self, call: Call, compiling: Future[None] | None, now: float) -> None:
        try:
            self._scheduler.add(call.request, now, compiling=compiling is not None)
        except Exception as error:  # noqa: BLE001 - whatever a request provokes is its own failure
            self._end_failed(call, self._blame(error, f"request {call.request_id!r} could not be queued"))
            return
        self._live[call.request_id] = call
        if compiling is not None:
            call.compiling = True
            self._compiling += 1
            compiling.add_done_callback(lambda future: self._post_quietly(lambda: self._compiled(call, future)))

    def _count_down(self, request: Request) -> None:
        """The lease of a request that the scheduler never sees waits for one child less."""
        if (lease := request.lease) is not None:
            self._quietly(f"lease {lease} could not be counted down", self._scheduler.release, lease, 1)

    def _prepare(self, request: Request) -> Future[None] | None:
        """The compilation of a constraint that is not ready yet. Raises ConstraintError."""
        if not isinstance(request, GenerateRequest) or request.constraint is None:
            return None
        future = self._worker.prepare(request.constraint)
        if not future.done():
            return future
        future.result()
        return None

    def _compiled(self, call: Call, future: Future[None]) -> None:
        if not call.compiling:
            return
        self._metrics.observe("compile_s", self.clock.now() - call.submitted_s)
        if (error := future.exception()) is not None:
            self._fail(call, self._blame(error, "its constraint could not be compiled"))
            return
        self._settle_compile(call)
        self._scheduler.compiled(call.request_id)

    def _settle_compile(self, call: Call) -> None:
        self._compiling -= call.compiling
        call.compiling = False

    def _post_quietly(self, command: Callable[[], None]) -> None:
        try:
            self.inbox.post(command)
        except EngineClosedError:
            logger.debug("a constraint finished compiling after the engine was closed")

    # the step

    def _run_step(self, plan: StepPlan, planning_s: float) -> Sequence[Progress]:
        began = perf_counter()
        try:
            result = self._worker.execute(plan)
            _check_shape(plan, result)
        except Exception as error:  # noqa: BLE001 - the worker is foreign code; its rows fail, the loop goes on
            self._metrics.step_faults += 1
            return self._scheduler.abort_step(plan, self._fault(f"the model failed in step {plan.step}", error))
        executed = perf_counter()
        self.clock.advance(result.elapsed_s)
        progress = self._scheduler.commit(plan, result, self.clock.now())
        self._observe_step(plan, planning_s + perf_counter() - executed, executed - began)
        return progress

    def _observe_step(self, plan: StepPlan, schedule_s: float, worker_s: float) -> None:
        self._metrics.steps += 1
        self._metrics.observe("schedule_s", schedule_s)
        self._metrics.observe("worker_s", worker_s)
        self._metrics.observe("step_rows", len(plan.rows))
        self._metrics.observe("step_tokens", sum(len(row.token_ids) for row in plan.rows))

    # output

    def _deliver(self, progress: Sequence[Progress]) -> None:
        """Hand out what a step brought, by order of submission; a cancel that arrives meanwhile counts at once."""
        known = [(call.order, item) for item in progress if (call := self._live.get(item.request_id)) is not None]
        for _, item in sorted(known, key=lambda pair: pair[0]):
            if self.inbox.pending:
                self._drain()
            if (call := self._live.get(item.request_id)) is None:
                continue
            try:
                self._handle(call, item)
            except Exception as error:  # noqa: BLE001 - whatever a request provokes is its own failure
                self._fail(call, self._blame(error, f"the output of request {call.request_id!r} failed"))

    def _handle(self, call: Call, item: Progress) -> None:
        now = self.clock.now()
        if item.kind == "failed":
            error = item.error or EngineError("the scheduler gave no reason")
            self._forget(call)
            self._end_failed(call, error)
        elif item.kind == "admitted":
            self._admitted(call, item, now)
        elif item.kind == "token":
            self._token(call, item, now)
        else:
            self._scored(call, item, now)

    def _admitted(self, call: Call, item: Progress, now: float) -> None:
        call.admitted_s = now
        call.cached_tokens, call.computed_tokens = item.cached_tokens, item.computed_tokens
        self._metrics.observe("queue_s", now - call.submitted_s)
        self._tell(call.sink.started)

    def _token(self, call: Call, item: Progress, now: float) -> None:
        output = call.output
        if output is None:
            raise EngineError("a token arrived for a request that only scores")
        self._observe_token(call, item, now)
        call.unreported.append(item.token_id)
        delta = output.take(item.token_id, item.score, ended=item.ended)
        if output.finish_reason is not None:
            self._scheduler.finish(call.request_id, len(output.token_ids))
            self._forget(call)
        if delta:
            token_ids, call.unreported = call.unreported, []
            self._tell(call.sink.text, delta, token_ids)
        if output.finish_reason is not None:
            self._finished(call, output, output.finish_reason, now)

    def _observe_token(self, call: Call, item: Progress, now: float) -> None:
        if call.last_token_s is None:
            call.first_token_s = now
            call.prompt_scores = item.prompt_scores
            self._metrics.observe("first_token_s", now - call.submitted_s)
        else:
            self._metrics.observe("inter_token_s", now - call.last_token_s)
        call.last_token_s = now
        self._metrics.generated_tokens += 1

    def _finished(self, call: Call, output: SequenceOutput, reason: FinishReason, now: float) -> None:
        self._end_well(call, call.generated(output, reason, now, self._worker.info.weight_version), reason)

    def _scored(self, call: Call, item: Progress, now: float) -> None:
        if item.scored is None:
            raise EngineError("a scoring ended without scores")
        call.cached_tokens, call.computed_tokens = item.cached_tokens, item.computed_tokens
        logprobs, unconditional = item.scored
        self._forget(call)
        self._end_well(call, call.scored(logprobs, unconditional, now, self._worker.info.weight_version), "scored")

    # endings: each request goes through exactly one of these

    def _end_well(self, call: Call, result: Result, reason: str) -> None:
        self._metrics.finished[reason] += 1
        self._metrics.prompt_tokens += call.prompt_tokens
        self._metrics.cached_tokens += call.cached_tokens
        self._metrics.computed_tokens += call.computed_tokens
        self._metrics.observe("request_s", result.finished_s - call.submitted_s)
        _log("request.finished", call, reason)
        self._tell(call.sink.done, result)

    def _fail(self, call: Call, error: DslError) -> None:
        """End a request that the scheduler still holds."""
        self._forget(call)
        self._quietly(f"request {call.request_id!r} could not be released", self._scheduler.cancel, call.request_id)
        self._end_failed(call, error)

    def _end_failed(self, call: Call, error: Exception) -> None:
        if isinstance(error, CancelledError):
            self._metrics.cancelled += 1
        else:
            self._metrics.failed[error.code if isinstance(error, DslError) else EngineError.code] += 1
        _log("request.failed", call, str(error))
        self._tell(call.sink.done, error)

    def _forget(self, call: Call) -> None:
        self._live.pop(call.request_id, None)
        self._settle_compile(call)

    # faults

    def _note_stall(self) -> None:
        self._waiting_since = self._waiting_since or perf_counter()
        if perf_counter() - self._waiting_since > STALL_S:
            self.health.stalled = f"{len(self._live)} requests wait and none can run"

    def _tell(self, method: Callable[..., None], *arguments: object) -> None:
        try:
            method(*arguments)
        except Exception:
            self._metrics.sink_faults += 1
            logger.exception("a receiver of output raised", extra={"event": "sink.fault"})

    def _blame(self, error: BaseException, what: str) -> DslError:
        """The error a request ends with: its own where it is one of ours, else a fault, noted in health."""
        if isinstance(error, DslError) and not isinstance(error, IntegrityError):
            return error
        self._metrics.request_faults += 1
        return self._fault(what, error)

    def _fault(self, what: str, error: BaseException) -> EngineError:
        """Note in health and log what no request is to blame for; returns it as an error."""
        fault = EngineError(f"{what}: {type(error).__name__}: {error}", retryable=True)
        fault.__cause__ = error
        self.health.incident(self.clock.now(), fault.what)
        logger.error("%s", what, exc_info=error, extra={"event": "engine.fault"})
        return fault

    def _quietly(self, what: str, method: Callable[..., object], *arguments: object) -> None:
        """Call the scheduler where its failure must not keep a request's end from its receiver."""
        try:
            method(*arguments)
        except Exception as error:  # noqa: BLE001 - noted in health; see above
            self._fault(what, error)

    def _check_books(self) -> None:
        """The integrity check of an idle engine: pages that nobody owns are reported with their last owner."""
        self._unchecked = False
        try:
            self._scheduler.check()
        except IntegrityError as error:
            self._metrics.leaks += 1
            self.health.lasting(str(error))
            logger.error("%s", error, extra={"event": "engine.leak"})


def _check_shape(plan: StepPlan, result: StepResult) -> None:
    asked = [point.seq_id for point in plan.samples]
    got = [sampled.seq_id for sampled in result.samples]
    if asked != got:
        raise EngineError(f"the worker sampled sequences {got}, asked were {asked}")
    keys = [point.key for point in plan.scores]
    if keys != [scored.key for scored in result.scores]:
        raise EngineError(f"the worker did not answer the score points {keys} in order")


def _log(event: str, call: Call, outcome: str) -> None:
    if logger.isEnabledFor(logging.DEBUG):
        label = call.request.label
        fields = {"event": event, "request_id": call.request_id, "run_id": label.run_id, "node_id": label.node_id}
        logger.debug("%s %s: %s", event, call.request_id, outcome, extra={**fields, "outcome": outcome})
