"""What a run may take: time until its deadline, and generated tokens."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import DeadlineError
from ...ir.specs import RunOptions
from .entry import Entry


class Budget:
    """Owner: the run's Machine. `now`: seconds since the run began, on its default model's clock."""

    def __init__(self, options: RunOptions, now: Callable[[], float]) -> None:
        self._deadline_s = options.deadline_s
        self._tokens = options.token_budget
        self._now = now
        self._generated_tokens = 0

    def seconds_left(self, entry: Entry) -> float | None:
        """Until the deadline, if there is one.

        Raises:
            DeadlineError: it has passed before `entry` began.
        """
        if self._deadline_s is None:
            return None
        left_s = self._deadline_s - self._now()
        if left_s <= 0:
            raise DeadlineError(
                f"the run's deadline of {self._deadline_s} s passed before {entry.id!r} began",
                hint="raise RunOptions(deadline_s=...)",
                origin=entry.node.origin,
            )
        return left_s

    def check(self, entry: Entry) -> None:
        """Raise DeadlineError if no token may be generated any more."""
        if self._tokens is not None and self._generated_tokens >= self._tokens:
            raise self.error(entry)

    def spend(self, tokens: int) -> bool:
        """Count generated tokens. True if they were more than there were; so many calls as run may go over by a step."""
        self._generated_tokens += tokens
        return self._tokens is not None and self._generated_tokens > self._tokens

    def error(self, entry: Entry) -> DeadlineError:
        """Why `entry` cannot go on."""
        return DeadlineError(
            f"the run's token budget of {self._tokens} was spent before {entry.id!r} ended",
            hint="raise RunOptions(token_budget=...), or lower max_tokens",
            origin=entry.node.origin,
        )
