"""How an engine is: fine, working with something wrong, or closed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """`reasons` is empty only where status is "ok"."""

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
