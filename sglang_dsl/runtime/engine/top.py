"""A live view of an engine as a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from rich.console import Console
from rich.live import Live
from rich.table import Table

from .metrics import EngineSnapshot, Health, HistogramName

_STYLES = {"ok": "green", "degraded": "yellow", "closed": "red"}

_LATENCIES: dict[HistogramName, str] = {
    "first_token_s": "first token",
    "inter_token_s": "next token",
    "request_s": "request",
}
_STEP_PARTS: dict[HistogramName, str] = {"schedule_s": "schedule", "worker_s": "model", "output_s": "output"}


@runtime_checkable
class Observable(Protocol):
    """What can be shown: an Engine."""

    def snapshot(self) -> EngineSnapshot:
        """All counters."""

    def health(self) -> Health:
        """Its state."""


@contextmanager
def live(engine: Observable, console: Console | None = None, *, per_second: float = 2.0) -> Iterator[None]:
    """Show the table while the block runs, and leave its last state on the screen.

    Args:
        console: stderr by default, so that what a program prints stays apart.
    """
    shown = [engine.snapshot()]

    def render() -> Table:
        shown.append(engine.snapshot())
        return table(shown[-1], engine.health(), before=shown.pop(0))

    with Live(console=console or Console(stderr=True), get_renderable=render, refresh_per_second=per_second):
        yield


def table(snapshot: EngineSnapshot, health: Health, *, before: EngineSnapshot | None = None) -> Table:
    """One row per group of numbers. With `before`, an earlier snapshot, also the rates since then."""
    shown = Table(title=f"engine {snapshot.model}", title_justify="left", show_header=False, expand=False)
    shown.add_column(style="bold")
    shown.add_column()
    shown.add_row("health", f"[{_STYLES[health.status]}]{health.status}[/] {'; '.join(health.reasons)}".strip())
    for name, text in _rows(snapshot, before):
        shown.add_row(name, text)
    return shown


def _rows(now: EngineSnapshot, before: EngineSnapshot | None) -> Iterator[tuple[str, str]]:
    pages = now.scheduler
    yield (
        "requests",
        f"{pages.running} running, {pages.waiting} waiting, {pages.compiling} compiling, {now.ended} ended",
    )
    yield "failed", f"{sum(now.failed.values())} failed, {now.cancelled} cancelled, {now.step_faults} step faults"
    yield (
        "prompt tokens",
        f"{now.prompt_tokens:,} asked, {now.computed_tokens:,} computed, {now.cache_hit_rate:.1%} from the cache",
    )
    yield "generated", f"{now.generated_tokens:,} tokens{_rate(now, before)}"
    yield (
        "pages",
        f"{pages.free_pages:,} free, {pages.evictable_pages:,} cached, of {pages.total_pages:,}; peak {pages.peak_used_pages:,}",
    )
    yield "latency", ", ".join(_latencies(now))
    yield "step", ", ".join(_step_split(now))


def _rate(now: EngineSnapshot, before: EngineSnapshot | None) -> str:
    if before is None or now.at_s <= before.at_s:
        return ""
    return f", {(now.generated_tokens - before.generated_tokens) / (now.at_s - before.at_s):,.0f} per second"


def _latencies(now: EngineSnapshot) -> Iterator[str]:
    for name, label in _LATENCIES.items():
        histogram = now.histograms[name]
        yield f"{label} p50 ≤ {histogram.quantile(0.5):g} s, p95 ≤ {histogram.quantile(0.95):g} s"


def _step_split(now: EngineSnapshot) -> Iterator[str]:
    yield f"{now.steps:,} steps"
    for name, label in _STEP_PARTS.items():
        yield f"{label} {now.histograms[name].mean * 1000:.2f} ms"
    yield f"{now.histograms['step_rows'].mean:.1f} rows"
