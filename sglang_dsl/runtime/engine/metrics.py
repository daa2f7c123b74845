"""How an engine is doing: counters and histograms, what went wrong, health, and all of it for Prometheus. The engine's loop keeps the
figures and notes the faults; others read frozen snapshots of them.

Here is also the one clock that deadlines, aging and timestamps read. It is virtual in the mock, so tests of time take none.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, cast

from ...errors import DslError, EngineError, IntegrityError, MissingExtraError
from ..schedule.request import SchedulerSnapshot

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> float:
        """Seconds, monotonic."""

    def advance(self, seconds: float) -> None:
        """A step took `seconds`: real clocks ignore it, virtual ones move."""

    def rest(self, until_s: float | None, *, jump: bool) -> float | None:
        """How many real seconds to sleep until `until_s` (None: until something happens).

        A virtual clock goes to `until_s` at once and answers 0, but only with `jump`: nothing else that takes real
        time (a compiling constraint) is under way. Otherwise it answers None.
        """


class WallClock:
    """`time.monotonic`."""

    def now(self) -> float:
        """Seconds."""
        return time.monotonic()

    def advance(self, seconds: float) -> None:
        """Real time passes by itself."""

    def rest(self, until_s: float | None, *, jump: bool) -> float | None:
        """The time left."""
        return None if until_s is None else max(until_s - self.now(), 0.0)


class VirtualClock:
    """Moves only when told to. Moved by the engine's thread; any thread may read it."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        """Seconds."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move on. Raises ValueError for a step back."""
        if seconds < 0:
            raise ValueError(f"time cannot go back by {-seconds} s")
        self._now_s += seconds

    def rest(self, until_s: float | None, *, jump: bool) -> float | None:
        """Go there at once, with `jump`."""
        if until_s is None or not jump:
            return None
        self._now_s = max(self._now_s, until_s)
        return 0.0


logger = logging.getLogger("sglang_dsl.engine")
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
    queue_s: Histogram = field(default_factory=partial(Histogram, SECONDS))
    compile_s: Histogram = field(default_factory=partial(Histogram, SECONDS))
    first_token_s: Histogram = field(default_factory=partial(Histogram, SECONDS))
    inter_token_s: Histogram = field(default_factory=partial(Histogram, SECONDS))
    request_s: Histogram = field(default_factory=partial(Histogram, SECONDS))
    schedule_s: Histogram = field(default_factory=partial(Histogram, MICROSECONDS))
    worker_s: Histogram = field(default_factory=partial(Histogram, SECONDS))
    output_s: Histogram = field(default_factory=partial(Histogram, MICROSECONDS))
    step_tokens: Histogram = field(default_factory=partial(Histogram, COUNTS))
    step_rows: Histogram = field(default_factory=partial(Histogram, COUNTS))

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
            histograms={name: getattr(self, name).snapshot() for name in _HISTOGRAMS},
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How an engine is: fine, working with something wrong, or closed. `reasons` is empty only where status is "ok"."""

    status: Literal["ok", "degraded", "closed"]
    reasons: tuple[str, ...] = ()


class HealthLog:
    """Incidents of an engine. Written by its loop, read by any thread.

    An incident degrades the engine for `window_s`; a lasting one (a leak) until it is closed.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._incidents: deque[tuple[float, str]] = deque(maxlen=16)
        self._lasting: dict[str, None] = {}
        self._closed: str | None = None
        self.stalled = ""

    def incident(self, now: float, reason: str) -> None:
        """Something failed that was no request's own fault."""
        self._incidents.append((now, reason))

    def lasting(self, reason: str) -> None:
        """Something is wrong and will stay so."""
        self._lasting[reason] = None

    def closed(self, reason: str) -> None:
        """The engine takes no more requests. The first reason stays."""
        if self._closed is None:
            self._closed = reason

    def read(self, now: float) -> Health:
        """The state at `now` on the engine's clock."""
        if self._closed is not None:
            return Health(status="closed", reasons=(self._closed,))
        recent = [reason for at, reason in tuple(self._incidents) if now - at <= self._window_s]
        reasons = (*self._lasting, *dict.fromkeys(recent), *([self.stalled] if self.stalled else []))
        return Health(status="degraded" if reasons else "ok", reasons=reasons)


class Faults:
    """What goes wrong without a request to blame: noted in health and in the log, never raised. Owner: the loop; `health` is read by
    any thread.
    """

    def __init__(self, clock: Clock, metrics: Metrics, window_s: float) -> None:
        self.health = HealthLog(window_s)
        self._clock = clock
        self._metrics = metrics

    def note(self, what: str, error: BaseException) -> EngineError:
        """A fault of the engine or the worker; returned as the error that requests get for it."""
        fault = EngineError(
            f"{what}: {type(error).__name__}: {error}",
            hint="the engine goes on: send the request again; `health()` and the log have the cause",
            retryable=True,
        )
        fault.__cause__ = error
        self.health.incident(self._clock.now(), fault.what)
        logger.error("%s", what, exc_info=error, extra={"event": "engine.fault"})
        return fault

    def blame(self, error: BaseException, what: str) -> DslError:
        """The error a request ends with: its own where it is one of ours, else a fault that is noted."""
        if isinstance(error, DslError) and not isinstance(error, IntegrityError):
            return error
        self._metrics.request_faults += 1
        return self.note(what, error)

    def contain(self, what: str, act: Callable[[], object]) -> None:
        """Do something whose failure must not stop what comes after it."""
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - this is the border; it is noted
            self.note(what, error)

    def leak(self, error: IntegrityError) -> None:
        """Pages without an owner, or with two. The report stays in health until the engine is closed."""
        self._metrics.leaks += 1
        self.health.lasting(str(error))
        logger.error("%s", error, extra={"event": "engine.leak"})

    def died(self, error: BaseException) -> str:
        """The loop cannot go on; returns the reason to give."""
        reason = f"the engine's loop died: {type(error).__name__}: {error}"
        logger.critical("%s", reason, exc_info=error, extra={"event": "engine.died"})
        return reason


PREFIX = "sglang_dsl_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_COUNTERS = {
    "submitted": "Requests taken in.",
    "cancelled": "Requests that were cancelled.",
    "prompt_tokens": "Prompt tokens of finished requests.",
    "cached_tokens": "Of these, found in the prefix cache or shared with a sibling.",
    "computed_tokens": "Of these, put through the model.",
    "generated_tokens": "Tokens sampled.",
    "steps": "Steps of the model.",
    "step_faults": "Steps in which the model raised.",
    "request_faults": "Requests that failed through a fault of the engine.",
    "sink_faults": "Exceptions raised by receivers of output.",
    "leaks": "Idle checks that found pages without an owner.",
}
_HISTOGRAMS: Mapping[HistogramName, str] = {
    "queue_s": "Seconds from submission to admission.",
    "compile_s": "Seconds a request waited for its constraint to be compiled.",
    "first_token_s": "Seconds from submission to the first token.",
    "inter_token_s": "Seconds between two tokens of a request.",
    "request_s": "Seconds from submission to the end.",
    "schedule_s": "Seconds per step spent on planning and bookkeeping.",
    "worker_s": "Seconds per step spent in the model.",
    "output_s": "Seconds per step spent on text, stops and receivers.",
    "step_tokens": "Tokens computed per step.",
    "step_rows": "Sequences per step.",
}


def render(snapshot: EngineSnapshot) -> str:
    """All counters, gauges and histograms in Prometheus' text format 0.0.4 (see `CONTENT_TYPE`), labelled with the model's name.

    Raises:
        MissingExtraError: the library prometheus-client is not installed.
    """
    try:
        from prometheus_client import generate_latest
    except ImportError as error:
        raise MissingExtraError(
            "text for Prometheus needs the prometheus-client library", hint="pip install 'sglang-dsl[engine]'"
        ) from error
    return generate_latest(cast("Collector", _Families(snapshot))).decode()


@dataclass(frozen=True, slots=True)
class _Families:
    """What prometheus-client collects: one metric family after the other."""

    snapshot: EngineSnapshot

    def collect(self) -> Iterator[Metric]:
        """Every family with its samples."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        snapshot, model = self.snapshot, self.snapshot.model
        for name, text in _COUNTERS.items():
            family = CounterMetricFamily(PREFIX + name, text, labels=["model"])
            family.add_metric([model], getattr(snapshot, name))
            yield family
        for name, text, label, counts in (
            ("finished", "Requests that ended well, by finish reason.", "reason", snapshot.finished),
            ("failed", "Requests that failed, by error code.", "code", snapshot.failed),
        ):
            family = CounterMetricFamily(PREFIX + name, text, labels=["model", label])
            for value, count in sorted(counts.items()):
                family.add_metric([model, value], count)
            yield family
        now = {"live": (snapshot.live, "Requests submitted and not ended.")}
        for item in fields(snapshot.scheduler):
            count = getattr(snapshot.scheduler, item.name)
            now[f"scheduler_{item.name}"] = (count, f"The scheduler's {item.name.replace('_', ' ')}.")
        for name, (count, text) in now.items():
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=["model"])
            gauge.add_metric([model], count)
            yield gauge
        for name, text in _HISTOGRAMS.items():
            unit = f"{name.removesuffix('_s')}_seconds" if name.endswith("_s") else name
            histogram, found = HistogramMetricFamily(PREFIX + unit, text, labels=["model"]), snapshot.histograms[name]
            ends = [*map(repr, found.bounds), "+Inf"]
            histogram.add_metric([model], list(zip(ends, accumulate(found.counts), strict=True)), found.total)
            yield histogram
