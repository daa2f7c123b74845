"""What a run's calls cost, added up."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.execution import Usage
from ..schedule.request import GenerateResult, Result


@dataclass(slots=True)
class Tally:
    """Running totals. Owner: the run's Machine. Every attempt counts."""

    calls: int = 0
    asked_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    peak_kv_pages: int = 0
    lost_tokens: int = 0
    reused_tokens: int = 0

    def add(self, result: Result) -> None:
        """Count a finished request."""
        self.calls += 1
        self.asked_tokens += result.prompt_tokens
        self.computed_tokens += result.computed_tokens if result.spent_tokens is None else result.spent_tokens
        self.reused_tokens += result.prompt_tokens - result.computed_tokens
        self.peak_kv_pages = max(self.peak_kv_pages, result.peak_kv_pages)
        if isinstance(result, GenerateResult):
            self.generated_tokens += result.generated_tokens

    def share(self, result: Result) -> None:
        """Count a call that was given another's result."""
        self.calls += 1
        self.asked_tokens += result.prompt_tokens
        self.reused_tokens += result.prompt_tokens

    def lose(self, tokens: int) -> None:
        """Count what was computed for a call that was cancelled or failed."""
        self.computed_tokens += tokens
        self.lost_tokens += tokens

    def usage(self, wall_s: float) -> Usage:
        """The totals so far."""
        return Usage(
            calls=self.calls,
            asked_tokens=self.asked_tokens,
            computed_tokens=self.computed_tokens,
            reused_tokens=self.reused_tokens,
            lost_tokens=self.lost_tokens,
            generated_tokens=self.generated_tokens,
            peak_kv_pages=self.peak_kv_pages,
            wall_s=wall_s,
        )
