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
        """Do what is queued, unless another thread (or a caller up the stack) is doing so already.

        Raises:
            KeyboardInterrupt: Ctrl-C came meanwhile. It is raised once all acts are done: those behind must not be lost.
        """
        interrupted: KeyboardInterrupt | None = None
        while self._acts and self._draining.acquire(blocking=False):
            try:
                while self._acts:
                    interrupted = self._do(self._acts.popleft()) or interrupted
            finally:
                self._draining.release()
        if interrupted is not None:
            raise interrupted

    @staticmethod
    def _do(act: Callable[[], None]) -> KeyboardInterrupt | None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - a listener's or callback's own fault, be it SystemExit; the run goes on
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                return error
            _log.exception("a callback of a run raised")
        return None
