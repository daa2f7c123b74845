"""The thread a loop runs in: started when first needed, ended with its engine, absent after a fork."""

from __future__ import annotations

import logging
import os
import threading

from ...errors import EngineClosedError
from .loop import CLOSED, Loop
from .worker import Worker

logger = logging.getLogger("sglang_dsl.engine")


class LoopThread:
    """Owns the thread. Holds the loop but not the engine, so that an engine nobody uses can end."""

    def __init__(self, loop: Loop, worker: Worker, close_timeout_s: float) -> None:
        self._loop = loop
        self._worker = worker
        self._close_timeout_s = close_timeout_s
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()
        self._taken = False  # whether some thread has become the loop's owner
        self._pid = os.getpid()

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process the engine lives in: its thread is not here."""
        return os.getpid() != self._pid

    @property
    def here(self) -> bool:
        """Whether the caller is on the loop's thread."""
        return self._thread is threading.current_thread()

    def check_process(self) -> None:
        """Raise EngineClosedError in a forked child."""
        if self.forked:
            raise EngineClosedError(
                f"this engine lives in process {self._pid}; a forked process cannot use it",
                hint="open an engine in each process, or use threads",
            )

    def start(self) -> None:
        """Start the thread, once. Does nothing on a closed loop.

        Ctrl-C may arrive when the thread runs already but is not noted here yet. So it enters itself, and the first to
        `_take` the loop has it.
        """
        if self._thread is not None or self._loop.inbox.closed:
            return
        with self._lock:
            if self._thread is None and not self._taken and not self._loop.inbox.closed:
                thread = threading.Thread(target=self._run, name="sglang-dsl-engine", daemon=True)
                thread.start()
                self._thread = thread

    def close(self) -> None:
        """End the loop and close the worker. Idempotent. Waits for the step in flight, unless called from within it."""
        if self.forked:
            return
        self._loop.inbox.close(CLOSED)
        with self._lock:
            thread = self._thread
            alone = thread is None and self._take()
        if alone:
            self._finish()
        elif thread is not None and thread is not threading.current_thread():
            thread.join(self._close_timeout_s)
            if thread.is_alive():
                logger.warning("the engine's step did not end within %s s", self._close_timeout_s)

    def _run(self) -> None:
        with self._lock:
            if not self._take():
                return
            self._thread = threading.current_thread()
        self._loop.run()
        self._finish()

    def _take(self) -> bool:
        with self._lock:
            first = not self._taken
            self._taken = True
        return first

    def _finish(self) -> None:
        self._loop.end(CLOSED)
        self._worker.close()
