"""The threads on which a run's tools and validators work."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

TOOL_THREADS = 8  # per run: enough to overlap slow services, few enough not to drown them


class Job:
    """A call of foreign code, which doesn't raise. Owner of its marks: the ToolThreads that it was given to."""

    __slots__ = ("abandoned", "at_work", "work")

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self.at_work = False
        self.abandoned = False


class ToolThreads:
    """A bounded crew of daemon threads that take jobs in order. Thread-safe.

    Python cannot stop a function: a thread whose job nobody waits for any more leaves the crew, so that it holds back no other job.
    """

    def __init__(self, size: int = TOOL_THREADS) -> None:
        self._size = size
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._crew = 0
        self._open = 0  # jobs that wait or are at work, without the abandoned ones

    def put(self, job: Job) -> None:
        """Queue a job; one more thread is started while fewer are at work than jobs wait."""
        with self._lock:
            self._open += 1
            self._jobs.put(job)
            self._hire()

    def abandon(self, job: Job) -> None:
        """Wait no more for a job: if it is at work, its thread gives up its place. Idempotent."""
        with self._lock:
            if job.at_work and not job.abandoned:
                job.abandoned = True
                self._crew -= 1
                self._open -= 1
                self._hire()

    def close(self) -> None:
        """Let the threads end once their jobs are done. Idempotent."""
        with self._lock:
            for _ in range(self._crew):
                self._jobs.put(None)
            self._crew = 0

    def _hire(self) -> None:
        if self._open > self._crew < self._size:
            threading.Thread(target=self._work, name=f"tool-{self._crew}", daemon=True).start()
            self._crew += 1

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            with self._lock:
                job.at_work = True
            job.work()
            with self._lock:
                job.at_work = False
                if job.abandoned:
                    return
                self._open -= 1
