"""The requests inside the engine: what each has said and cost so far, who hears of it, and the one place where each ends.

RequestUpdate (of the scheduler) -> LiveRequests.hand_out -> text, stops -> Sink.started / text / done
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

from ...errors import CancelledError, DslError, EngineError
from ...ir.execution import FinishReason, TokenScore
from ..schedule.request import GenerateRequest, GenerateResult, Request, RequestUpdate, Result, ScoreResult, Sink
from ..text.output import OutputText
from ..text.tokenizer import Tokenizer
from .metrics import Clock, Faults, Metrics

if TYPE_CHECKING:
    from ..schedule.scheduler import Scheduler

logger = logging.getLogger("sglang_dsl.engine")


class LiveRequest:
    """A request, where its output goes, what it has generated, and its times on the engine's clock. Owner: the loop.

    output: the text of a generation; None for a scoring. unreported: ids sampled since the sink last heard.
    """

    __slots__ = (
        "admitted_s",
        "cached_tokens",
        "compiling",
        "computed_tokens",
        "first_token_s",
        "generated_tokens",
        "last_token_s",
        "number",
        "output",
        "peak_kv_pages",
        "prompt_scores",
        "prompt_tokens",
        "request",
        "request_id",
        "scores",
        "sink",
        "spent_tokens",
        "submitted_s",
        "unreported",
    )

    def __init__(self, request: Request, sink: Sink, *, number: int, now: float) -> None:
        self.request = request
        self.request_id = request.request_id
        self.sink = sink
        self.number = number  # in order of submission
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
        self.generated_tokens = 0
        self.scores: list[TokenScore] = []
        self.prompt_scores: tuple[TokenScore | None, ...] = ()
        self.output: OutputText | None = None
        self.unreported: list[int] = []


class LiveRequests:
    """By id, in order of submission. Owner: the loop.

    A request leaves through exactly one of a result (`hand_out`), `fail` (the scheduler still holds it), `failed` (it does not any
    more) and `refuse` (it never did); each tells the receiver once.

    by_id: those that the scheduler holds. compiling: how many of them wait for their constraint. held_pages: what all requests and
    leases held in the step whose updates are handed out.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        tokenizer: Tokenizer,
        clock: Clock,
        metrics: Metrics,
        faults: Faults,
        weight_version: str,
    ) -> None:
        self.by_id: dict[str, LiveRequest] = {}
        self.compiling = 0
        self.held_pages = 0
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._clock = clock
        self._metrics = metrics
        self._faults = faults
        self._weight_version = weight_version

    # Entering and leaving

    def enter(self, live: LiveRequest, *, compiling: bool) -> None:
        """The scheduler has taken it."""
        self.by_id[live.request_id] = live
        live.compiling = compiling
        self.compiling += compiling

    def compiled(self, live: LiveRequest) -> None:
        """Its constraint waits for nothing any more."""
        self.compiling -= live.compiling
        live.compiling = False

    def fail(self, live: LiveRequest, error: DslError) -> None:
        """End a request that the scheduler still holds."""
        live.spent_tokens = self._scheduler.spent_tokens(live.request_id) or live.spent_tokens
        release = partial(self._scheduler.cancel, live.request_id)
        self._faults.contain(f"request {live.request_id!r} could not be released", release)
        self.failed(live, error)

    def failed(self, live: LiveRequest, error: Exception) -> None:
        """It has failed, and the scheduler has released it."""
        self._leave(live)
        self.refuse(live, error)

    def refuse(self, live: LiveRequest, error: Exception) -> None:
        """It failed before it entered."""
        if isinstance(error, CancelledError):
            self._metrics.cancelled += 1
        else:
            self._metrics.failed[error.code if isinstance(error, DslError) else EngineError.code] += 1
        if logger.isEnabledFor(logging.DEBUG):
            _log("request.failed", live, str(error))
        if live.spent_tokens and (lost := getattr(live.sink, "lost", None)) is not None:
            self._tell(lost, live.spent_tokens)
        self._tell(live.sink.done, error)

    def _leave(self, live: LiveRequest) -> None:
        """It takes no more tokens. What is left is to tell its receiver."""
        self.by_id.pop(live.request_id, None)
        if live.compiling:
            self.compiled(live)

    def _finish(self, live: LiveRequest, result: Result, reason: str) -> None:
        """It has ended well, has left, and the scheduler has released it."""
        metrics = self._metrics
        metrics.finished[reason] += 1
        metrics.prompt_tokens += live.prompt_tokens
        metrics.cached_tokens += live.cached_tokens
        metrics.computed_tokens += live.computed_tokens
        metrics.request_s.observe(result.finished_s - live.submitted_s)
        if logger.isEnabledFor(logging.DEBUG):
            _log("request.finished", live, reason)
        self._tell(live.sink.done, result)

    def _tell(self, method: Callable[..., None], *arguments: object) -> None:
        """Call a receiver; what it raises, be it SystemExit, is logged and harms nobody."""
        try:
            method(*arguments)
        except BaseException:
            self._metrics.sink_faults += 1
            logger.exception("a receiver of output raised", extra={"event": "sink.fault"})

    # From a step to the receivers

    def in_order(self, updates: Sequence[RequestUpdate]) -> list[RequestUpdate]:
        """By the requests' own order, then by submission (and within a request as it came): races have one outcome."""
        known = [
            ((live.request.order, live.number), update)
            for update in updates
            if (live := self.by_id.get(update.request_id)) is not None
        ]
        return [update for _, update in sorted(known, key=itemgetter(0))]

    def hand_out(self, update: RequestUpdate) -> None:
        """Tell a request's receiver. A fault here ends that request alone."""
        live = self.by_id.get(update.request_id)
        if live is None:  # cancelled since
            return
        live.peak_kv_pages = max(live.peak_kv_pages, self.held_pages)
        try:
            now = self._clock.now()
            if update.kind == "token":
                self._take_token(live, update, now)
            elif update.kind == "admitted":
                live.admitted_s = now if update.admitted_s is None else update.admitted_s
                live.cached_tokens, live.computed_tokens = update.cached_tokens, update.computed_tokens
                self._metrics.queue_s.observe(live.admitted_s - live.submitted_s)
                self._tell(live.sink.started)
            elif update.kind == "failed":
                live.spent_tokens = update.spent_tokens
                self.failed(live, update.error or EngineError("the scheduler gave no reason"))
            else:
                self._take_scores(live, update, now)
        except BaseException as error:  # noqa: BLE001 - whatever a request provokes is its own failure
            self.fail(live, self._faults.blame(error, f"the output of request {live.request_id!r} failed"))

    def _take_token(self, live: LiveRequest, update: RequestUpdate, now: float) -> None:
        """A stop wins over a complete constraint, and that over the length limit, when one token brings several."""
        request, output = live.request, live.output
        if output is None or not isinstance(request, GenerateRequest):
            raise EngineError("a token arrived for a request that only scores")
        if live.last_token_s is None:
            live.first_token_s = now
            live.prompt_scores = tuple(self._spelled(score) for score in update.prompt_scores)
            self._metrics.first_token_s.observe(now - live.submitted_s)
        else:
            self._metrics.inter_token_s.observe(now - live.last_token_s)
        live.last_token_s = now
        self._metrics.generated_tokens += 1
        live.generated_tokens += 1
        live.unreported.append(update.token_id)
        if update.score is not None:
            live.scores.append(update.score)
        delta = output.feed(update.token_id)
        reason: FinishReason | None = None
        if output.ending is not None:
            reason = output.ending.reason
        elif update.ended or live.generated_tokens >= request.sampling.most_tokens:
            reason = "constraint" if update.ended else "length"
            delta += output.finish()
        if reason is not None:
            live.spent_tokens = self._scheduler.finish(live.request_id, output.kept_tokens)
            self._leave(live)
        if delta:
            token_ids, live.unreported = live.unreported, []
            self._tell(live.sink.text, delta, token_ids)
        if reason is not None:
            self._finish(live, self._generated(live, output, reason, now), reason)

    def _take_scores(self, live: LiveRequest, update: RequestUpdate, now: float) -> None:
        if update.scored is None:
            raise EngineError("a scoring ended without scores")
        live.cached_tokens, live.computed_tokens = update.cached_tokens, update.computed_tokens
        live.spent_tokens = update.spent_tokens
        self._leave(live)
        logprobs, unconditional = update.scored
        result = ScoreResult(
            request_id=live.request_id,
            logprobs=logprobs,
            unconditional=unconditional,
            prompt_tokens=live.prompt_tokens,
            cached_tokens=live.cached_tokens,
            computed_tokens=live.computed_tokens,
            spent_tokens=live.spent_tokens,
            peak_kv_pages=live.peak_kv_pages,
            started_s=live.submitted_s if live.admitted_s is None else live.admitted_s,
            finished_s=now,
            weight_version=self._weight_version,
        )
        self._finish(live, result, "scored")

    def _generated(self, live: LiveRequest, output: OutputText, reason: FinishReason, now: float) -> GenerateResult:
        """What a finished generation answers."""
        return GenerateResult(
            request_id=live.request_id,
            token_ids=output.token_ids,
            text=output.text,
            finish_reason=reason,
            tail_text=output.tail_text,
            torn=output.torn,
            matched=None if output.ending is None else output.ending.matched,
            prompt_tokens=live.prompt_tokens,
            cached_tokens=live.cached_tokens,
            computed_tokens=live.computed_tokens,
            spent_tokens=live.spent_tokens,
            peak_kv_pages=live.peak_kv_pages,
            generated_tokens=live.generated_tokens,
            covered_ids=output.covered_ids,
            token_scores=tuple(live.scores[: output.covered_tokens]),
            prompt_scores=live.prompt_scores,
            started_s=live.submitted_s if live.admitted_s is None else live.admitted_s,
            first_token_s=now if live.first_token_s is None else live.first_token_s,
            finished_s=now,
            weight_version=self._weight_version,
        )

    def _spelled(self, score: TokenScore | None) -> TokenScore | None:
        """With the raw bytes of its tokens: the scheduler, where scores of a prompt come from, knows ids only."""
        if score is None:
            return None
        spell = self._tokenizer.token_bytes
        top = tuple((token_id, logprob, spell(token_id)) for token_id, logprob, _ in score.top)
        return replace(score, token_bytes=spell(score.token_id), top=top)


def _log(event: str, live: LiveRequest, outcome: str) -> None:
    label = live.request.label
    fields = {"event": event, "request_id": live.request_id, "run_id": label.run_id, "node_id": label.node_id}
    logger.debug("%s %s: %s", event, live.request_id, outcome, extra={**fields, "outcome": outcome})
