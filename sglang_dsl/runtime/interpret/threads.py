"""The threads on which a run's tools work."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

TOOL_THREADS = 8  # per run: enough to overlap slow services, few enough not to drown them


class ToolThreads:
    """A bounded crew of daemon threads that take jobs in order. Thread-safe."""

    def __init__(self, size: int = TOOL_THREADS) -> None:
        self._size = size
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._waiting = 0

    def put(self, job: Callable[[], None]) -> None:
        """Queue a job that doesn't raise; one more thread is started while fewer are at work than jobs wait."""
        with self._lock:
            self._waiting += 1
            self._jobs.put(job)
            if self._waiting > len(self._threads) < self._size:
                thread = threading.Thread(target=self._work, name=f"tool-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def close(self) -> None:
        """Let the threads end once their jobs are done. Idempotent."""
        with self._lock:
            for _ in self._threads:
                self._jobs.put(None)
            self._threads.clear()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            finally:
                with self._lock:
                    self._waiting -= 1
