"""Acts that must not happen under the run's lock, done in the order in which they were decided."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Outbox:
    """A queue that whoever flushes first drains, for all threads.

    Calls to a target, futures and listeners can call back into the run; so they are posted under the run's lock and
    done after it is released. One thread drains at a time, so a cancel never overtakes the submit it belongs to.
    """

    def __init__(self) -> None:
        self._acts: deque[Callable[[], None]] = deque()
        self._draining = threading.Lock()

    def post(self, act: Callable[[], None]) -> None:
        """Queue an act. What it raises is logged: it can't be allowed to stop the acts behind it."""
        self._acts.append(act)

    def flush(self) -> None:
        """Do what is queued, unless another thread (or a caller up the stack) is doing so already."""
        while self._acts and self._draining.acquire(blocking=False):
            try:
                while self._acts:
                    self._do(self._acts.popleft())
            finally:
                self._draining.release()

    @staticmethod
    def _do(act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException:  # noqa: BLE001 - a listener's or callback's own fault, be it SystemExit; the run goes on
            _log.exception("a callback of a run raised")
