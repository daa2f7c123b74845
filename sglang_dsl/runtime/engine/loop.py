"""The engine's loop: one turn is one step of the model; the inbox it takes commands from, and the thread it runs in.

    inbox -> expired -> scheduler.step -> worker.execute -> scheduler.commit -> live requests -> receivers
               |                              |                   |
               '---- failed requests          '- raised:          '- faults fail their request alone
                                                 abort_step

Nothing that a request contains can raise out of a turn. What fails without a request to blame (the scheduler's own state is
wrong) ends the loop: every live request fails, and `health` says why.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from time import perf_counter, sleep
from typing import TypeAlias

from ...errors import CancelledError, EngineClosedError, EngineError, IntegrityError, SpecError
from ..cache.keys import Namespace
from ..schedule.request import GenerateRequest, LeaseId, Request, RequestUpdate, Sink
from ..schedule.scheduler import Scheduler
from ..schedule.step import StepPlan, StepResult, Worker
from ..text.output import OutputText
from ..text.tokenizer import Tokenizer
from .border import EngineConfig
from .live_requests import LiveRequest, LiveRequests
from .metrics import Clock, EngineSnapshot, Faults, Metrics

Command: TypeAlias = Callable[[], None]
logger = logging.getLogger("sglang_dsl.engine")


class Inbox:
    """Commands on their way from any thread to the engine's own, in order. The lock is re-entrant: a finalizer may run inside any
    of these methods.

    commands: those that wait. closed: why commands are refused; "" while they are not.
    """

    def __init__(self) -> None:
        self.commands: deque[Command] = deque()
        self.closed = ""
        self._condition = threading.Condition(threading.RLock())

    def post(self, command: Command) -> None:
        """Append a command and wake the taker.

        Raises:
            EngineClosedError: `close` was called; the command was not queued.
        """
        with self._condition:
            if self.closed:
                raise EngineClosedError(self.closed, hint="open a new engine")
            self.commands.append(command)
            self._condition.notify()

    def take(self) -> list[Command]:
        """Everything queued so far, in order."""
        with self._condition:
            commands = list(self.commands)
            self.commands.clear()
        return commands

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until there is something to take, or the inbox is closed. False: the time ran out."""
        with self._condition:
            return self._condition.wait_for(lambda: bool(self.commands or self.closed), timeout_s)

    def close(self, reason: str) -> None:
        """Refuse all later commands. The first reason stays."""
        with self._condition:
            self.closed = self.closed or reason
            self._condition.notify_all()


CLOSED = "the engine was closed"
GATHER_ROUNDS = 20
RETRY_S = 0.02  # a scheduler that has work but no step (a shortage) is asked again: a stall costs time, never a hang
STALL_S = 1.0  # so long without a step, with work that could run, is told in health


class EngineLoop:
    """Owner of the scheduler, the worker and all live requests. `inbox` is the only way in from other threads.

    `add`, `cancel`, `lease`, `release`, `flush`, `check` and `snapshot` are commands: post them to the inbox.
    """

    def __init__(
        self, worker: Worker, tokenizer: Tokenizer, scheduler: Scheduler, clock: Clock, config: EngineConfig
    ) -> None:
        self.inbox = Inbox()
        self.clock = clock
        self._metrics = Metrics()
        self._faults = Faults(clock, self._metrics, config.health_window_s)
        self.health = self._faults.health
        self._worker = worker
        self._tokenizer = tokenizer
        self._scheduler = scheduler
        self._config = config
        self._live = LiveRequests(scheduler, tokenizer, clock, self._metrics, self._faults, worker.info.weight_version)
        self._unchecked = False  # something ran since the last idle check
        self._waiting_since = 0.0  # real time since when there was work and no step; 0: there is none

    # turning

    def run(self) -> None:
        """Turn until the inbox is closed, then end what is left. The body of the engine's thread."""
        reason = CLOSED
        try:
            self._gather()
            while not self.inbox.closed:
                if not self.turn():
                    self.rest()
        except BaseException as error:
            reason = self._faults.died(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self.end(reason)

    def turn(self) -> bool:
        """One turn. False if there was nothing to do."""
        worked = self._drain()
        worked |= self._expire()
        began = perf_counter()
        plan = self._scheduler.step(self.clock.now())
        if plan is None:
            return self._expire() or worked  # planning may have found requests that cannot run
        self._live.held_pages = self._scheduler.held_pages
        updates = self._run_step(plan, perf_counter() - began)
        began = perf_counter()
        self._drain()
        self._deliver(updates)
        self._metrics.output_s.observe(perf_counter() - began)
        self._unchecked = True
        self._waiting_since, self.health.stalled = 0.0, ""
        return True

    def rest(self) -> None:
        """Nothing to do: check the books once, then sleep until a command, a deadline, or the close."""
        if self._scheduler.idle:
            if not self._unchecked:
                self.inbox.wait(None)
            elif not self.inbox.wait(self._config.idle_check_after_s):
                self._check_books()
            self._gather()
            return
        live = self._live
        nothing_else = self._waiting_since > 0 and not live.compiling and not self.inbox.commands
        seconds = self.clock.rest(self._scheduler.next_deadline(), jump=nothing_else)
        if len(live.by_id) > live.compiling:
            seconds = min(RETRY_S if seconds is None else seconds, RETRY_S)
            self._note_stall()
        if seconds != 0.0:
            self.inbox.wait(seconds)

    def _gather(self) -> None:
        """Let a program that begins to speak finish its sentence: calls of one fork then enter one step."""
        size = 0
        for _ in range(GATHER_ROUNDS if self._config.gather_s else 0):
            if len(self.inbox.commands) == size or self.inbox.closed:
                return
            size = len(self.inbox.commands)
            sleep(self._config.gather_s)

    def end(self, reason: str) -> None:
        """Refuse new work, then fail every live request, in the order of submission. Idempotent."""
        self.health.closed(reason)
        self.inbox.close(reason)
        self._drain()
        for live in list(self._live.by_id.values()):
            self._live.fail(live, EngineClosedError(f"{reason}, before this request ended", hint="open a new engine"))

    # commands

    def add(self, requests: Sequence[tuple[Request, Sink, BaseException | None]]) -> None:
        """Queue requests; one that is refused, here or at the border (with that error), ends at once."""
        now = self.clock.now()
        for request, sink, refusal in requests:
            live = LiveRequest(request, sink, number=self._metrics.submitted, now=now)
            self._metrics.submitted += 1
            try:
                if refusal is not None:
                    raise refusal
                compiling = self._prepare(live)
            except BaseException as error:  # noqa: BLE001 - whatever a request provokes is its own failure
                if request.lease is not None:  # which waits for a child less: the scheduler never sees this one
                    release = partial(self._scheduler.release, request.lease, 1)
                    self._faults.contain("a lease could not be counted down", release)
                self._live.refuse(live, self._faults.blame(error, f"request {live.request_id!r} could not be read"))
                continue
            try:
                self._scheduler.add(request, now, compiling=compiling is not None)
            except BaseException as error:  # noqa: BLE001 - whatever a request provokes is its own failure
                self._live.refuse(live, self._faults.blame(error, f"request {live.request_id!r} could not be queued"))
                continue
            self._live.enter(live, compiling=compiling is not None)
            if compiling is not None:
                compiling.add_done_callback(partial(self._post_compiled, live))

    def cancel(self, request_ids: Sequence[str], reason: str) -> None:
        """End these requests; unknown ids are ignored."""
        for request_id in request_ids:
            if (live := self._live.by_id.get(request_id)) is not None:
                self._live.fail(live, CancelledError(reason or "the request was cancelled"))

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
            live=len(self._live.by_id),
            scheduler=self._scheduler.snapshot(),
        )

    # queueing

    def _drain(self) -> bool:
        commands = self.inbox.take()
        for command in commands:
            self._faults.contain("a command failed", command)
        return bool(commands)

    def _prepare(self, live: LiveRequest) -> Future[None] | None:
        """What may be wrong with a request before the scheduler sees it. Returns the compilation of its constraint, if that is not
        ready yet.

        Raises:
            SpecError: its id is in use, or a stop pattern cannot be used.
            ConstraintError: its constraint cannot be compiled.
        """
        request = live.request
        if live.request_id in self._live.by_id:
            raise SpecError(f"request id {live.request_id!r} is in use", hint="use each id once")
        if not isinstance(request, GenerateRequest):
            return None
        live.output = OutputText(self._tokenizer, request.sampling)
        if request.constraint is None:
            return None
        future = self._worker.prepare(request.constraint)
        if not future.done():
            return future
        future.result()
        return None

    def _post_compiled(self, live: LiveRequest, future: Future[None]) -> None:
        """On another thread, which may outlive the engine."""
        try:
            self.inbox.post(partial(self._compiled, live, future))
        except EngineClosedError:
            return

    def _compiled(self, live: LiveRequest, future: Future[None]) -> None:
        if not live.compiling:  # it has ended
            return
        self._metrics.compile_s.observe(self.clock.now() - live.submitted_s)
        if (error := future.exception()) is not None:
            self._live.fail(live, self._faults.blame(error, "a constraint could not be compiled"))
            return
        self._live.compiled(live)
        self._scheduler.compiled(live.request_id)

    # stepping

    def _run_step(self, plan: StepPlan, planning_s: float) -> Sequence[RequestUpdate]:
        began = perf_counter()
        try:
            result = self._worker.execute(plan)
            _check_shape(plan, result)
        except BaseException as error:  # the worker is foreign code; its rows fail, the loop goes on
            self._metrics.step_faults += 1
            fault = self._faults.note(f"the model failed in step {plan.step}", error)
            updates = self._scheduler.abort_step(plan, fault)
            if isinstance(error, KeyboardInterrupt):  # of an engine that its owner turns by hand
                self._deliver(updates)
                raise
            return updates
        executed = perf_counter()
        self.clock.advance(result.elapsed_s)
        updates = self._scheduler.commit(plan, result, self.clock.now())
        metrics = self._metrics
        metrics.steps += 1
        metrics.schedule_s.observe(planning_s + perf_counter() - executed)
        metrics.worker_s.observe(executed - began)
        metrics.step_rows.observe(len(plan.rows))
        metrics.step_tokens.observe(sum(len(row.token_ids) for row in plan.rows))
        return updates

    def _expire(self) -> bool:
        ended = self._scheduler.expired(self.clock.now())
        if ended:
            self._deliver(ended)
        return bool(ended)

    def _deliver(self, updates: Sequence[RequestUpdate]) -> None:
        """Hand out what came; a cancel that arrives meanwhile counts at once."""
        for update in self._live.in_order(updates) if len(updates) > 1 else updates:
            if self.inbox.commands:
                self._drain()
            self._live.hand_out(update)

    # looking after itself

    def _note_stall(self) -> None:
        self._waiting_since = self._waiting_since or perf_counter()
        if perf_counter() - self._waiting_since > STALL_S:
            self.health.stalled = f"{len(self._live.by_id)} requests wait and none can run"

    def _check_books(self) -> None:
        """The integrity check of an idle engine: pages that nobody owns are reported with their last owner."""
        self._unchecked = False
        try:
            self._scheduler.check()
        except IntegrityError as error:
            self._faults.leak(error)


def _check_shape(plan: StepPlan, result: StepResult) -> None:
    asked = [point.seq_id for point in plan.samples]
    got = [sampled.seq_id for sampled in result.samples]
    if asked != got:
        raise EngineError(f"the worker sampled sequences {got}, asked were {asked}")
    keys = [point.key for point in plan.scores]
    if keys != [scored.key for scored in result.scores]:
        raise EngineError(f"the worker did not answer the score points {keys} in order")


class EngineThread:
    """Runs a loop in a thread: started when first needed, ended with its engine, absent after a fork. Holds the loop but not the
    engine, so that an engine nobody uses can end.

    thread: None until it is started.
    """

    def __init__(self, loop: EngineLoop, worker: Worker, close_timeout_s: float) -> None:
        self._loop = loop
        self._worker = worker
        self._close_timeout_s = close_timeout_s
        self.thread: threading.Thread | None = None
        self._lock = threading.RLock()
        self._taken = False  # whether some thread has become the loop's owner
        self._pid = os.getpid()

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process the engine lives in: its thread is not here."""
        return os.getpid() != self._pid

    @property
    def here(self) -> bool:
        """Whether the caller is on the loop's thread."""
        return self.thread is threading.current_thread()

    def check_process(self) -> None:
        """Raise EngineClosedError in a forked child."""
        if os.getpid() != self._pid:
            raise EngineClosedError(
                f"this engine lives in process {self._pid}; a forked process cannot use it",
                hint="open an engine in each process, or use threads",
            )

    def start(self) -> None:
        """Start the thread, once. Does nothing on a closed loop.

        Ctrl-C may arrive when the thread runs already but is not noted here yet. So it enters itself, and the first to
        `_take` the loop has it.
        """
        if self.thread is not None or self._loop.inbox.closed:
            return
        with self._lock:
            if self.thread is None and not self._taken and not self._loop.inbox.closed:
                thread = threading.Thread(target=self._run, name="sglang-dsl-engine", daemon=True)
                thread.start()
                self.thread = thread

    def close(self) -> None:
        """End the loop and close the worker. Idempotent. Waits for the step in flight, unless called from within it."""
        if self.forked:
            return
        self._loop.inbox.close(CLOSED)
        with self._lock:
            thread = self.thread
            alone = thread is None and self._take()
        if alone:
            self._finish()
        elif thread is not None and thread is not threading.current_thread():
            thread.join(self._close_timeout_s)
            if thread.is_alive():
                logger.warning("the engine's step did not end within %s s", self._close_timeout_s)

    def _run(self) -> None:
        with self._lock:
            if not self._take():
                return
            self.thread = threading.current_thread()
        self._loop.run()
        self._finish()

    def _take(self) -> bool:
        with self._lock:
            first = not self._taken
            self._taken = True
        return first

    def _finish(self) -> None:
        self._loop.end(CLOSED)
        self._worker.close()
