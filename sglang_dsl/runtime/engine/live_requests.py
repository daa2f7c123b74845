"""The requests inside the engine, and the one place where each of them ends.

What one generate request has said so far, when it ends, and the result it ends with.

One request inside the engine, from submission to its end.

From what a step brought to what receivers hear: text, stops, results.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ...errors import CancelledError, DslError, EngineError
from ...ir.execution import FinishReason, TokenScore
from ...ir.outcome import Torn
from ..schedule.request import GenerateRequest, GenerateResult, Request, RequestUpdate, Result, ScoreResult, Sink
from ..schedule.scheduler import Scheduler
from ..text.output import OutputText
from ..text.tokenizer import Tokenizer
from .clock import Clock
from .metrics import Faults, Metrics


class SequenceOutput:
    """Ids, scores and text of one sequence. Owner: the engine's loop.

        output = SequenceOutput(request, tokenizer)
        delta = output.take(token_id, score, ended=...)     # until output.finish_reason is set

    Raises:
        SpecError: a stop pattern that cannot be used.
    """

    def __init__(self, request: GenerateRequest, tokenizer: Tokenizer) -> None:
        self._text = OutputText(tokenizer, request.sampling)
        self._max_tokens = request.sampling.most_tokens
        self._scores: list[TokenScore] = []
        self.generated_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.matched: str | int | None = None

    def take(self, token_id: int, score: TokenScore | None, *, ended: bool) -> str:
        """Add a sampled token (`ended`: its constraint is complete); returns the text that may be shown now.

        A stop wins over a complete constraint, and that over the length limit, when one token brings several.
        """
        self.generated_tokens += 1
        if score is not None:
            self._scores.append(score)
        delta = self._text.feed(token_id)
        if (ending := self._text.ending) is not None:
            self.finish_reason, self.matched = ending
        elif ended or self.generated_tokens >= self._max_tokens:
            self.finish_reason = "constraint" if ended else "length"
            delta += self._text.finish()
        return delta

    @property
    def token_ids(self) -> tuple[int, ...]:
        """After the end: the whole tokens kept."""
        return tuple(self._text.token_ids)

    @property
    def covered_ids(self) -> tuple[int, ...]:
        """After the end: the tokens that the text comes from, one that a stop cut included."""
        return tuple(self._text.covered_ids)

    @property
    def scores(self) -> tuple[TokenScore, ...]:
        """After the end: scores of the covered tokens."""
        return tuple(self._scores[: self._text.covered_tokens])

    @property
    def text(self) -> str:
        """Text released so far; after the end all of it."""
        return self._text.text

    @property
    def tail_text(self) -> str:
        """After the end: text kept after the last whole token."""
        return self._text.tail_text

    @property
    def torn(self) -> Torn | None:
        """After the end: where the text begins or ends inside a character."""
        return self._text.torn


class LiveRequest:
    """A request, where its output goes, and its times on the engine's clock. Owner: the loop.

    Raises:
        SpecError: a stop pattern that cannot be used.
    """

    __slots__ = (
        "admitted_s",
        "cached_tokens",
        "compiling",
        "computed_tokens",
        "first_token_s",
        "last_token_s",
        "order",
        "output",
        "peak_kv_pages",
        "prompt_scores",
        "prompt_tokens",
        "request",
        "sink",
        "spent_tokens",
        "submitted_s",
        "unreported",
    )

    def __init__(self, request: Request, sink: Sink, *, order: int, now: float) -> None:
        self.request = request
        self.sink = sink
        self.order = order
        self.submitted_s = now
        self.admitted_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.compiling = False
        self.prompt_tokens = len(request.prompt_ids)
        self.peak_kv_pages = 0
        self.cached_tokens = 0
        self.computed_tokens = 0
        self.spent_tokens = 0
        self.prompt_scores: tuple[TokenScore | None, ...] = ()
        self.output: SequenceOutput | None = None
        self.unreported: list[int] = []  # ids sampled since the sink last heard

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.request.request_id

    def open_output(self, tokenizer: Tokenizer) -> None:
        """Prepare for tokens. Raises SpecError: a stop pattern that cannot be used."""
        if isinstance(self.request, GenerateRequest):
            self.output = SequenceOutput(self.request, tokenizer)

    def generated(self, output: SequenceOutput, reason: FinishReason, now: float, weights: str) -> GenerateResult:
        """What a finished generation answers."""
        return GenerateResult(
            request_id=self.request_id,
            token_ids=output.token_ids,
            text=output.text,
            finish_reason=reason,
            tail_text=output.tail_text,
            torn=output.torn,
            matched=output.matched,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            computed_tokens=self.computed_tokens,
            spent_tokens=self.spent_tokens,
            peak_kv_pages=self.peak_kv_pages,
            generated_tokens=output.generated_tokens,
            covered_ids=output.covered_ids,
            token_scores=output.scores,
            prompt_scores=self.prompt_scores,
            started_s=self.submitted_s if self.admitted_s is None else self.admitted_s,
            first_token_s=now if self.first_token_s is None else self.first_token_s,
            finished_s=now,
            weight_version=weights,
        )

    def scored(
        self,
        logprobs: tuple[tuple[float, ...], ...],
        unconditional: tuple[tuple[float, ...], ...],
        now: float,
        weights: str,
    ) -> ScoreResult:
        """What a finished scoring answers."""
        return ScoreResult(
            request_id=self.request_id,
            logprobs=logprobs,
            unconditional=unconditional,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            computed_tokens=self.computed_tokens,
            spent_tokens=self.spent_tokens,
            peak_kv_pages=self.peak_kv_pages,
            started_s=self.submitted_s if self.admitted_s is None else self.admitted_s,
            finished_s=now,
            weight_version=weights,
        )


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
        self._calls: dict[str, LiveRequest] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._calls

    def get(self, request_id: str) -> LiveRequest | None:
        """The call of this id, if it lives."""
        return self._calls.get(request_id)

    def all(self) -> list[LiveRequest]:
        """Every living call."""
        return list(self._calls.values())

    def enter(self, call: LiveRequest, *, compiling: bool) -> None:
        """The scheduler has taken it."""
        self._calls[call.request_id] = call
        call.compiling = compiling
        self.compiling += compiling

    def compiled(self, call: LiveRequest) -> None:
        """Its constraint waits for nothing any more."""
        self.compiling -= call.compiling
        call.compiling = False

    def leave(self, call: LiveRequest) -> None:
        """It takes no more tokens. What is left is to tell its receiver."""
        self._calls.pop(call.request_id, None)
        self.compiled(call)

    def finish(self, call: LiveRequest, result: Result, reason: str) -> None:
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

    def fail(self, call: LiveRequest, error: DslError) -> None:
        """End a call that the scheduler still holds."""
        call.spent_tokens = self._scheduler.spent_tokens(call.request_id) or call.spent_tokens
        release = partial(self._scheduler.cancel, call.request_id)
        self._faults.contain(f"request {call.request_id!r} could not be released", release)
        self.failed(call, error)

    def failed(self, call: LiveRequest, error: Exception) -> None:
        """It has failed, and the scheduler has released it."""
        self.leave(call)
        self.refuse(call, error)

    def refuse(self, call: LiveRequest, error: Exception) -> None:
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


def _log(event: str, call: LiveRequest, outcome: str) -> None:
    if logger.isEnabledFor(logging.DEBUG):
        label = call.request.label
        fields = {"event": event, "request_id": call.request_id, "run_id": label.run_id, "node_id": label.node_id}
        logger.debug("%s %s: %s", event, call.request_id, outcome, extra={**fields, "outcome": outcome})


class Delivery:
    """Owner: the loop. `held_pages`: what requests and leases hold in the step whose progress is handed out.

    Args:
        token_bytes: the raw bytes of a token (the scheduler, where prompt scores come from, knows ids only).
    """

    def __init__(
        self,
        live: LiveCalls,
        scheduler: Scheduler,
        clock: Clock,
        metrics: Metrics,
        faults: Faults,
        weights: str,
        token_bytes: Callable[[int], bytes],
    ) -> None:
        self._live = live
        self._scheduler = scheduler
        self._clock = clock
        self._metrics = metrics
        self._faults = faults
        self._weights = weights
        self._token_bytes = token_bytes
        self.held_pages = 0

    def in_order(self, progress: Sequence[RequestUpdate]) -> list[RequestUpdate]:
        """By the requests' own order, then by submission (and within a request as it came): races have one outcome."""
        if len(progress) == 1:
            return list(progress) if self._live.get(progress[0].request_id) is not None else []
        known = [
            ((call.request.order, call.order), item)
            for item in progress
            if (call := self._live.get(item.request_id)) is not None
        ]
        return [item for _, item in sorted(known, key=lambda pair: pair[0])]

    def hand_out(self, item: RequestUpdate) -> None:
        """Tell a request's receiver. A fault here ends that request alone."""
        call = self._live.get(item.request_id)
        if call is None:  # cancelled since
            return
        call.peak_kv_pages = max(call.peak_kv_pages, self.held_pages)
        try:
            self._handle(call, item)
        except BaseException as error:  # noqa: BLE001 - whatever a request provokes is its own failure
            self._live.fail(call, self._faults.blame(error, f"the output of request {call.request_id!r} failed"))

    def _handle(self, call: LiveRequest, item: RequestUpdate) -> None:
        now = self._clock.now()
        if item.kind == "failed":
            call.spent_tokens = item.spent_tokens
            self._live.failed(call, item.error or EngineError("the scheduler gave no reason"))
        elif item.kind == "admitted":
            self._admitted(call, item, now)
        elif item.kind == "token":
            self._token(call, item, now)
        else:
            self._scored(call, item, now)

    def _admitted(self, call: LiveRequest, item: RequestUpdate, now: float) -> None:
        call.admitted_s = now if item.admitted_s is None else item.admitted_s
        call.cached_tokens, call.computed_tokens = item.cached_tokens, item.computed_tokens
        self._metrics.observe("queue_s", call.admitted_s - call.submitted_s)
        self._live.tell(call.sink.started)

    def _token(self, call: LiveRequest, item: RequestUpdate, now: float) -> None:
        output = call.output
        if output is None:
            raise EngineError("a token arrived for a request that only scores")
        self._observe_token(call, item, now)
        call.unreported.append(item.token_id)
        delta = output.take(item.token_id, item.score, ended=item.ended)
        reason = output.finish_reason
        if reason is not None:
            call.spent_tokens = self._scheduler.spent_tokens(call.request_id)
            self._scheduler.finish(call.request_id, len(output.token_ids))
            self._live.leave(call)
        if delta:
            token_ids, call.unreported = call.unreported, []
            self._live.tell(call.sink.text, delta, token_ids)
        if reason is not None:
            self._live.finish(call, call.generated(output, reason, now, self._weights), reason)

    def _observe_token(self, call: LiveRequest, item: RequestUpdate, now: float) -> None:
        if call.last_token_s is None:
            call.first_token_s = now
            call.prompt_scores = tuple(self._spelled(score) for score in item.prompt_scores)
            self._metrics.observe("first_token_s", now - call.submitted_s)
        else:
            self._metrics.observe("inter_token_s", now - call.last_token_s)
        call.last_token_s = now
        self._metrics.generated_tokens += 1

    def _spelled(self, score: TokenScore | None) -> TokenScore | None:
        if score is None:
            return None
        top = tuple((token_id, logprob, self._token_bytes(token_id)) for token_id, logprob, _ in score.top)
        return replace(score, token_bytes=self._token_bytes(score.token_id), top=top)

    def _scored(self, call: LiveRequest, item: RequestUpdate, now: float) -> None:
        if item.scored is None:
            raise EngineError("a scoring ended without scores")
        call.cached_tokens, call.computed_tokens = item.cached_tokens, item.computed_tokens
        call.spent_tokens = item.spent_tokens
        logprobs, unconditional = item.scored
        self._live.finish(call, call.scored(logprobs, unconditional, now, self._weights), "scored")
