"""Functions of the user that a node calls: tools, and by the same way validators, keys of joins and what writes objects as JSON.

`UserCalls` has functions of one entry called side by side, and the entry goes on once all have answered; where they run is said
in `user_code.py`. A tool starts once the text before it in its state and its arguments are there. One that `takes_objects` gets
and gives the Python objects themselves; any other is called with JSON and answers JSON. Calls of a pure tool with equal
arguments are one call; an idempotent one that raises is called again.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any, TypeAlias

from ...errors import DeadlineError, DslError, RunError, SpecError, ToolError
from ...ir.execution import Event, Outcome
from ...ir.nodes import ToolNode, data_of
from ...ir.semantics import evaluate, key_of
from .entries import Entry
from .machine import Machine
from .user_code import Alarm, UserCall, UserCallResult, await_in

IDEMPOTENT_ATTEMPTS = 3  # of a tool that may be called again

_log = logging.getLogger(__name__)

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
            self._machine.defer(partial(self._machine.user_code.begin, call))

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

        self._machine.defer(set_alarm)

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
                self._machine.defer(self._lift_limits)
                self._machine.attempt(self._entry, partial(self._answered, self._answers))

    def _out_of_time(self) -> DslError:
        return DeadlineError(
            f"the run's deadline passed while {self._what} was at work",
            hint="raise RunOptions(deadline_s=...)",
            origin=self._entry.node.origin,
        )

    def _stop(self, reason: str) -> None:
        """The entry has ended: nobody waits for what is not there."""
        self._machine.defer(self._drop)

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


def check_tool(machine: Machine, entry: Entry) -> None:
    """Raise SpecError if no such tool is registered."""
    if not isinstance(entry.node, ToolNode):
        return
    if entry.node.tool not in machine.registry:
        known = ", ".join(sorted(machine.registry)) or "none"
        raise SpecError(f"no tool is registered as {entry.node.tool!r}; registered: {known}", origin=entry.node.origin)
    keep_context(entry)


def begin_tool(machine: Machine, entry: Entry) -> None:
    """Call the tool, or share the call of an equal one if it is pure."""
    if not isinstance(entry.node, ToolNode):
        return
    tool = entry.node
    arguments = ToolArguments(machine, entry, tool)
    if tool.pure:
        first = machine.pure_calls.setdefault((tool.tool, arguments.key), entry)
        if first is not entry:
            _share(machine, entry, first)
            return
    ToolCall(machine, entry, tool, arguments).begin()


def _share(machine: Machine, entry: Entry, first: Entry) -> None:
    def ended(source: Entry) -> None:
        if source.outcome is not None:
            machine.finish(entry, source.outcome)
        elif source.error is not None:
            machine.fail(entry, source.error)

    if first.ended:
        ended(first)
    else:
        first.watchers.append(ended)


class ToolArguments:
    """What a call is made with. The values that it mentions are those of its beginning."""

    def __init__(self, machine: Machine, entry: Entry, tool: ToolNode) -> None:
        self._values: dict[str, Any] = evaluate(tool.arguments, machine.lookup(entry))
        self._objects = tool.objects
        sources = (entry.scope.find(node_id) for node_id in data_of(tool)) if tool.objects is not None else ()
        self._outcomes = {source.node.id: source.outcome or Outcome() for source in sources}

    @property
    def key(self) -> Hashable:
        """Equal for equal arguments."""
        return key_of(self._values)

    def for_call(self, *, takes_objects: bool) -> dict[str, Any]:
        """The arguments, fresh for each call. May run code of the program: not for the engine's thread."""
        if takes_objects:
            return self._values if self._objects is None else self._objects.fill(self._outcomes.__getitem__)
        plain: dict[str, Any] = json.loads(json.dumps(self._values, ensure_ascii=False))
        return plain


class ToolCall:
    """One call of a tool. Its timeout counts from its start, the run's deadline also while it is queued."""

    def __init__(self, machine: Machine, entry: Entry, tool: ToolNode, arguments: ToolArguments) -> None:
        self.machine = machine
        self.entry = entry
        self.tool = tool
        self.attempts = ToolAttempts(machine.registry[tool.tool], arguments, tool, lambda: not entry.ended)
        self.calls = UserCalls(
            machine, entry, [self.attempts], self._answered, what=f"tool {tool.tool!r}", began=self._began
        )

    def begin(self) -> None:
        """Queue the call. Raises DeadlineError where the run's deadline has passed."""
        self.calls.begin()

    def _began(self) -> None:
        self.machine.emit(Event(kind="started", node_id=self.entry.id, at_s=self.machine.now()))
        if self.tool.timeout_s is not None:
            self.calls.end_after(self.tool.timeout_s, self._timed_out)

    def _answered(self, answers: Sequence[UserCallResult]) -> None:
        answer = answers[0]
        if answer.error is not None:
            raise self._error(f"raised {answer.said}") from answer.error
        self.machine.finish(self.entry, Outcome(value=answer.value, to_json=self.attempts.to_json))

    def _timed_out(self) -> ToolError:
        return self._error(f"did not answer within {self.tool.timeout_s} s")

    def _error(self, what: str) -> ToolError:
        return ToolError(
            f"tool {self.tool.tool!r} {what}",
            hint="catch in the tool what it can handle itself",
            origin=self.tool.origin,
        )


class ToolAttempts:
    """A tool's function with its arguments: called once, or again while an idempotent one raises and somebody still waits.

    It is called in the context of its call; each further attempt has a copy of how that was at first.
    """

    def __init__(
        self, function: Callable[..., Any], arguments: ToolArguments, tool: ToolNode, wanted: Callable[[], bool]
    ) -> None:
        self._function = function
        self._arguments = arguments
        self._tool = tool
        self._wanted = wanted
        self._left = IDEMPOTENT_ATTEMPTS if tool.idempotent else 1
        self._takes_objects = getattr(function, "takes_objects", False)
        self.to_json: Callable[[Any], Any] | None = getattr(function, "to_json", None)

    def __call__(self) -> Any:
        """The answer, or an awaitable of it."""
        fresh = copy_context()
        try:
            return self._attempt(fresh)
        except Exception as error:  # noqa: BLE001 - whatever it was, calling again is harmless
            self._try_again(error)
        return fresh.copy().run(self)

    def _attempt(self, fresh: Context) -> Any:
        answer = self._function(**self._arguments.for_call(takes_objects=self._takes_objects))
        return self._later(answer, fresh) if inspect.isawaitable(answer) else self._given(answer)

    async def _later(self, answer: Awaitable[Any], fresh: Context) -> Any:
        try:
            return self._given(await answer)
        except Exception as error:  # noqa: BLE001 - as above
            self._try_again(error)
        again = fresh.copy().run(self)
        if not inspect.iscoroutine(again):
            return again
        return await await_in(fresh.copy(), again)

    def _given(self, answer: Any) -> Any:
        """What the tool gave: the object itself, or JSON as it comes out of a record."""
        return answer if self._takes_objects else json.loads(json.dumps(answer, ensure_ascii=False, allow_nan=False))

    def _try_again(self, error: Exception) -> None:
        """Raises `error` unless another attempt is left and wanted."""
        self._left -= 1
        if not self._left or not self._wanted():
            raise error
        _log.info("tool %r raised %s and is called again", self._tool.tool, type(error).__name__)
