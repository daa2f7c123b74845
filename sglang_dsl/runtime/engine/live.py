"""The requests inside the engine, and the one place where each of them ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from ...errors import CancelledError, DslError, EngineError
from ..schedule.request import Result
from ..schedule.scheduler import Scheduler
from .calls import Call
from .faults import Faults
from .metrics import Metrics

logger = logging.getLogger("sglang_dsl.engine")


class LiveCalls:
    """By id, in order of submission. Owner: the loop.

    A call leaves through exactly one of `finish`, `fail` (the scheduler still holds it), `failed` (it does not any
    more) and `refuse` (it never did); each tells the receiver once.
    """

    def __init__(self, scheduler: Scheduler, metrics: Metrics, faults: Faults) -> None:
        self.compiling = 0
        self._scheduler = scheduler
        self._metrics = metrics
        self._faults = faults
        self._calls: dict[str, Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._calls

    def get(self, request_id: str) -> Call | None:
        """The call of this id, if it lives."""
        return self._calls.get(request_id)

    def all(self) -> list[Call]:
        """Every living call."""
        return list(self._calls.values())

    def enter(self, call: Call, *, compiling: bool) -> None:
        """The scheduler has taken it."""
        self._calls[call.request_id] = call
        call.compiling = compiling
        self.compiling += compiling

    def compiled(self, call: Call) -> None:
        """Its constraint waits for nothing any more."""
        self.compiling -= call.compiling
        call.compiling = False

    def leave(self, call: Call) -> None:
        """It takes no more tokens. What is left is to tell its receiver."""
        self._calls.pop(call.request_id, None)
        self.compiled(call)

    def finish(self, call: Call, result: Result, reason: str) -> None:
        """It ended well; the scheduler has released it."""
        self.leave(call)
        metrics = self._metrics
        metrics.finished[reason] += 1
        metrics.prompt_tokens += call.prompt_tokens
        metrics.cached_tokens += call.cached_tokens
        metrics.computed_tokens += call.computed_tokens
        metrics.observe("request_s", result.finished_s - call.submitted_s)
        _log("request.finished", call, reason)
        self.tell(call.sink.done, result)

    def fail(self, call: Call, error: DslError) -> None:
        """End a call that the scheduler still holds."""
        call.spent_tokens = self._scheduler.spent_tokens(call.request_id) or call.spent_tokens
        release = partial(self._scheduler.cancel, call.request_id)
        self._faults.contain(f"request {call.request_id!r} could not be released", release)
        self.failed(call, error)

    def failed(self, call: Call, error: Exception) -> None:
        """It has failed, and the scheduler has released it."""
        self.leave(call)
        self.refuse(call, error)

    def refuse(self, call: Call, error: Exception) -> None:
        """It failed before it entered."""
        if isinstance(error, CancelledError):
            self._metrics.cancelled += 1
        else:
            self._metrics.failed[error.code if isinstance(error, DslError) else EngineError.code] += 1
        _log("request.failed", call, str(error))
        if call.spent_tokens and (lost := getattr(call.sink, "lost", None)) is not None:
            self.tell(lost, call.spent_tokens)
        self.tell(call.sink.done, error)

    def tell(self, method: Callable[..., None], *arguments: object) -> None:
        """Call a receiver; what it raises, be it SystemExit, is logged and harms nobody."""
        try:
            method(*arguments)
        except BaseException:
            self._metrics.sink_faults += 1
            logger.exception("a receiver of output raised", extra={"event": "sink.fault"})


def _log(event: str, call: Call, outcome: str) -> None:
    if logger.isEnabledFor(logging.DEBUG):
        label = call.request.label
        fields = {"event": event, "request_id": call.request_id, "run_id": label.run_id, "node_id": label.node_id}
        logger.debug("%s %s: %s", event, call.request_id, outcome, extra={**fields, "outcome": outcome})
