"""Counters and histograms of one engine: kept by its loop, read as frozen snapshots."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ..schedule.progress import SchedulerSnapshot

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
MICROSECONDS = (5e-5, 1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 5e-3, 2e-2, 0.1, 0.5, 2.0, 10.0)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)

HistogramName: TypeAlias = Literal[
    "queue_s",
    "compile_s",
    "first_token_s",
    "inter_token_s",
    "request_s",
    "schedule_s",
    "worker_s",
    "output_s",
    "step_tokens",
    "step_rows",
]

_BOUNDS: Mapping[HistogramName, Sequence[float]] = {
    "queue_s": SECONDS,
    "compile_s": SECONDS,
    "first_token_s": SECONDS,
    "inter_token_s": SECONDS,
    "request_s": SECONDS,
    "schedule_s": MICROSECONDS,
    "worker_s": SECONDS,
    "output_s": MICROSECONDS,
    "step_tokens": COUNTS,
    "step_rows": COUNTS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramSnapshot:
    """counts[i]: values in (bounds[i-1], bounds[i]]; one more count for those above the last bound."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """How many values were seen."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Their mean; 0 where there are none."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """The bound of the bucket in which the `share`-quantile lies (an upper estimate); 0 where there are no values."""
        target, seen = share * self.count, 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            if seen >= target and seen:
                return bound
        return self.bounds[-1] if self.count else 0.0


class Histogram:
    """Values in fixed buckets. Owner: the loop."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def snapshot(self) -> HistogramSnapshot:
        """A frozen copy."""
        return HistogramSnapshot(bounds=self._bounds, counts=tuple(self._counts), total=self._total)


@dataclass(slots=True)
class Metrics:
    """Running totals since the engine was made. Owner: the loop.

    Times of requests are on the engine's clock; those of steps (`schedule_s`, `worker_s`, `output_s`) are real ones.
    Prompt tokens are counted once per request, when it ends well: prompt = cached + computed.
    """

    submitted: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    cancelled: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    step_faults: int = 0
    request_faults: int = 0
    sink_faults: int = 0
    leaks: int = 0
    histograms: dict[HistogramName, Histogram] = field(
        default_factory=lambda: {name: Histogram(bounds) for name, bounds in _BOUNDS.items()}
    )

    def observe(self, name: HistogramName, value: float) -> None:
        """Count a value in a histogram."""
        self.histograms[name].observe(value)

    def snapshot(self, *, model: str, at_s: float, live: int, scheduler: SchedulerSnapshot) -> EngineSnapshot:
        """A frozen copy, with the scheduler's own counters."""
        return EngineSnapshot(
            model=model,
            at_s=at_s,
            live=live,
            submitted=self.submitted,
            finished=dict(self.finished),
            failed=dict(self.failed),
            cancelled=self.cancelled,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            computed_tokens=self.computed_tokens,
            generated_tokens=self.generated_tokens,
            steps=self.steps,
            step_faults=self.step_faults,
            request_faults=self.request_faults,
            sink_faults=self.sink_faults,
            leaks=self.leaks,
            histograms={name: histogram.snapshot() for name, histogram in self.histograms.items()},
            scheduler=scheduler,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSnapshot:
    """Everything the engine counts, at one moment between two steps.

    at_s: the engine's clock. live: requests submitted and not ended. finished: by finish reason (a scoring counts as
    "scored"). failed: by error code. step_faults: steps in which the worker raised. request_faults: requests that
    failed through a fault of the engine, not of their own. sink_faults: exceptions raised by receivers of output.
    leaks: idle checks that found pages without an owner.
    """

    model: str
    at_s: float
    live: int
    submitted: int
    finished: Mapping[str, int]
    failed: Mapping[str, int]
    cancelled: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    generated_tokens: int
    steps: int
    step_faults: int
    request_faults: int
    sink_faults: int
    leaks: int
    histograms: Mapping[HistogramName, HistogramSnapshot]
    scheduler: SchedulerSnapshot

    @property
    def ended(self) -> int:
        """Requests that have ended, well or not. submitted = live + ended."""
        return sum(self.finished.values()) + sum(self.failed.values()) + self.cancelled

    @property
    def cache_hit_rate(self) -> float:
        """Share of prompt tokens that did not have to be computed."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
