"""From what a step brought to what receivers hear: text, stops, results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...errors import EngineError
from ...ir.execution import TokenScore
from ..schedule.progress import Progress
from ..schedule.scheduler import Scheduler
from .calls import Call
from .clock import Clock
from .faults import Faults
from .live import LiveCalls
from .metrics import Metrics


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

    def in_order(self, progress: Sequence[Progress]) -> list[Progress]:
        """By the requests' own order, then by submission (and within a request as it came): races have one outcome."""
        if len(progress) == 1:
            return list(progress) if self._live.get(progress[0].request_id) is not None else []
        known = [
            ((call.request.order, call.order), item)
            for item in progress
            if (call := self._live.get(item.request_id)) is not None
        ]
        return [item for _, item in sorted(known, key=lambda pair: pair[0])]

    def hand_out(self, item: Progress) -> None:
        """Tell a request's receiver. A fault here ends that request alone."""
        call = self._live.get(item.request_id)
        if call is None:  # cancelled since
            return
        call.peak_kv_pages = max(call.peak_kv_pages, self.held_pages)
        try:
            self._handle(call, item)
        except BaseException as error:  # noqa: BLE001 - whatever a request provokes is its own failure
            self._live.fail(call, self._faults.blame(error, f"the output of request {call.request_id!r} failed"))

    def _handle(self, call: Call, item: Progress) -> None:
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

    def _admitted(self, call: Call, item: Progress, now: float) -> None:
        call.admitted_s = now if item.admitted_s is None else item.admitted_s
        call.cached_tokens, call.computed_tokens = item.cached_tokens, item.computed_tokens
        self._metrics.observe("queue_s", call.admitted_s - call.submitted_s)
        self._live.tell(call.sink.started)

    def _token(self, call: Call, item: Progress, now: float) -> None:
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

    def _observe_token(self, call: Call, item: Progress, now: float) -> None:
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

    def _scored(self, call: Call, item: Progress, now: float) -> None:
        if item.scored is None:
            raise EngineError("a scoring ended without scores")
        call.cached_tokens, call.computed_tokens = item.cached_tokens, item.computed_tokens
        call.spent_tokens = item.spent_tokens
        logprobs, unconditional = item.scored
        self._live.finish(call, call.scored(logprobs, unconditional, now, self._weights), "scored")
