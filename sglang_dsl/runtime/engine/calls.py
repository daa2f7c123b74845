"""One request inside the engine, from submission to its end."""

from __future__ import annotations

from ...ir.execution import FinishReason, TokenScore
from ..schedule.request import GenerateRequest, GenerateResult, Request, ScoreResult, Sink
from ..text.protocol import Tokenizer
from .output import SequenceOutput


class Call:
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
