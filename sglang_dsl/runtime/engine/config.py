"""Every option of an engine in one place."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.specs import number
from ..schedule.config import SchedulerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(SchedulerConfig):
    """The scheduler's options, and the loop's own.

    gather_s: an idle engine that gets a request waits until nothing more came for so long (at most 20 times) before its
        first step, so that the calls of one fork share it. 0: not at all.
    idle_check_after_s: the books (pages, owners) are checked once when nothing ran for so long.
    health_window_s: how long an incident keeps `health()` at "degraded".
    close_timeout_s: how long `close` waits for the step in flight.

    Raises:
        SpecError: an option outside its range.
    """

    gather_s: float = 0.002
    idle_check_after_s: float = 0.2
    health_window_s: float = 60.0
    close_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        SchedulerConfig.__post_init__(self)  # not super(): slots make a new class, which the zero-argument form misses
        for name in ("gather_s", "idle_check_after_s", "health_window_s", "close_timeout_s"):
            object.__setattr__(self, name, number(name, getattr(self, name), 0))
