"""What goes wrong without a request to blame: noted in health and in the log, never raised."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...errors import DslError, EngineError, IntegrityError
from .clock import Clock
from .health import HealthLog
from .metrics import Metrics

logger = logging.getLogger("sglang_dsl.engine")


class Faults:
    """Owner: the loop; `health` is read by any thread."""

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
