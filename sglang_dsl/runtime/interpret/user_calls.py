"""A node that waits for functions of its user: they are called side by side, and the node goes on once all have answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any, TypeAlias

from ...errors import DeadlineError, DslError, RunError
from .entries import Entry
from .machine import Machine
from .user_code import Alarm, UserCall, UserCallResult

Answered: TypeAlias = Callable[[Sequence[UserCallResult]], None]
calling: ContextVar[Entry | None] = ContextVar("calling", default=None)  # whose code runs in this context, of any run


def keep_context(entry: Entry) -> None:
    """Remember the context variables of the statement that an entry comes from: those of whoever appends it, or of the
    region it stands in. For entries that call user code, or have such entries inside.
    """
    region = entry.scope.region
    entry.variables = copy_context() if region is None else region.variables


class UserCalls:
    """Functions that one entry has called. They end with the run's deadline, and where the entry ends.

    Args:
        functions: take nothing; what they give may be awaitable.
        answered: gets what each came to, in order, in a turn and as an action of the entry; not called where it has ended.
        what: what they are, in a message.
        began: called in a turn when the first one is about to run.
    """

    def __init__(
        self,
        machine: Machine,
        entry: Entry,
        functions: Sequence[Callable[[], Any]],
        answered: Answered,
        *,
        what: str,
        began: Callable[[], None] | None = None,
    ) -> None:
        self._machine = machine
        self._entry = entry
        self._answered = answered
        self._what = what
        self._began = began
        self._answers = [UserCallResult()] * len(functions)
        self._missing = len(functions)
        self._limits: list[Alarm] = []
        self._calls = [
            UserCall(function, _context_of(entry), self._begins, partial(self._ends, index))
            for index, function in enumerate(functions)
        ]

    def begin(self) -> None:
        """Queue the calls. Raises DeadlineError where the run's deadline has passed."""
        left_s = self._machine.budget.seconds_left(self._entry)
        self._entry.stop = self._stop
        if left_s is not None:
            self.end_after(left_s, self._out_of_time)
        for call in self._calls:
            self._machine.post(partial(self._machine.user_code.begin, call))

    def end_after(self, seconds: float, error: Callable[[], DslError]) -> None:
        """In so many seconds from now the entry fails with `error()`, if it has not ended."""

        def late() -> None:
            with self._machine.turn():
                if not self._entry.ended and self._missing:
                    self._machine.fail(self._entry, error())

        def set_alarm() -> None:
            self._limits.append(self._machine.user_code.alarms.after(seconds, late))
            if self._entry.ended or not self._missing:
                self._lift_limits()

        self._machine.post(set_alarm)

    def _begins(self) -> bool:
        with self._machine.turn():
            if self._entry.ended:
                return False
            began, self._began = self._began, None
            if began is not None:
                began()
        return True

    def _ends(self, index: int, answer: UserCallResult) -> None:
        with self._machine.turn():
            if self._entry.ended:
                return
            self._answers[index] = answer
            self._missing -= 1
            if not self._missing:
                self._entry.stop = None
                self._machine.post(self._lift_limits)
                self._machine.attempt(self._entry, partial(self._answered, self._answers))

    def _out_of_time(self) -> DslError:
        return DeadlineError(
            f"the run's deadline passed while {self._what} was at work",
            hint="raise RunOptions(deadline_s=...)",
            origin=self._entry.node.origin,
        )

    def _stop(self, reason: str) -> None:
        """The entry has ended: nobody waits for what is not there."""
        self._machine.post(self._drop)

    def _drop(self) -> None:
        self._lift_limits()
        for call in self._calls:
            self._machine.user_code.drop(call)

    def _lift_limits(self) -> None:
        while self._limits:
            self._machine.user_code.alarms.cancel(self._limits.pop())


def _context_of(entry: Entry) -> Context:
    """A copy of its own for each call: a context can be entered once at a time, and what a call sets is nobody else's."""
    context = copy_context() if entry.variables is None else entry.variables.copy()
    context.run(calling.set, entry)
    return context


def waits_for_itself(caller: Entry, wanted: Entry) -> DslError | None:
    """The error for code of `caller` that wants a value which cannot be there before this very code has ended; None elsewhere."""
    if caller.ended or wanted.ended:
        return None
    seen, work = {caller.id}, [caller]
    while work:
        entry = work.pop()
        if entry is wanted:
            which = "which itself waits for that code" if wanted is caller else f"which waits for {caller.id!r}"
            return RunError(
                f"the code that {caller.id!r} calls waits for {wanted.id!r}, {which}",
                hint="hand the code what it needs as an argument",
                origin=caller.node.origin,
            )
        for follower in (*entry.on_place, *entry.on_done):
            if follower.id not in seen:
                seen.add(follower.id)
                work.append(follower)
    return None
