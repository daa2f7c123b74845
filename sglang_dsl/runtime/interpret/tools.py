"""Tools: registered Python functions. One that `takes_objects` gets and gives the Python objects themselves; any other is called
with JSON and answers JSON.

A tool starts once the text before it in its state and its arguments are there; where it runs is said in `user_code.py`. Calls of
a pure tool with equal arguments are one call; an idempotent one that raises is called again.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextvars import Context, copy_context
from typing import Any

from ...errors import SpecError, ToolError
from ...ir.execution import Event, Outcome
from ...ir.nodes import ToolNode, data_of
from ...ir.semantics import evaluate, key_of
from .entries import Entry
from .machine import Machine
from .user_calls import UserCalls, keep_context
from .user_code import UserCallResult

IDEMPOTENT_ATTEMPTS = 3

_log = logging.getLogger(__name__)


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
        return await asyncio.get_running_loop().create_task(again, context=fresh.copy())

    def _given(self, answer: Any) -> Any:
        """What the tool gave: the object itself, or JSON as it comes out of a record."""
        return answer if self._takes_objects else json.loads(json.dumps(answer, ensure_ascii=False, allow_nan=False))

    def _try_again(self, error: Exception) -> None:
        """Raises `error` unless another attempt is left and wanted."""
        self._left -= 1
        if not self._left or not self._wanted():
            raise error
        _log.info("tool %r raised %s and is called again", self._tool.tool, type(error).__name__)
