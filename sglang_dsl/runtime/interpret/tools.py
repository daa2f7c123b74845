"""Tools: registered Python functions, called with JSON and answering JSON.

A tool starts once the text before it in its state and its arguments are there; where it runs is said in `user_code.py`. Calls of
a pure tool with equal arguments are one call; an idempotent one that raises is called again.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ...errors import SpecError, ToolError
from ...ir.evaluation import evaluate
from ...ir.execution import Event, Outcome
from ...ir.nodes import Tool
from .entry import Entry
from .machine import Machine
from .user_calls import UserCalls, keep_context
from .user_code import Answer

IDEMPOTENT_ATTEMPTS = 3

_log = logging.getLogger(__name__)


def check_tool(machine: Machine, entry: Entry) -> None:
    """Raise SpecError if no such tool is registered."""
    if not isinstance(entry.node, Tool):
        return
    if entry.node.tool not in machine.registry:
        known = ", ".join(sorted(machine.registry)) or "none"
        raise SpecError(f"no tool is registered as {entry.node.tool!r}; registered: {known}", origin=entry.node.origin)
    keep_context(entry)


def begin_tool(machine: Machine, entry: Entry) -> None:
    """Call the tool, or share the call of an equal one if it is pure."""
    if not isinstance(entry.node, Tool):
        return
    tool = entry.node
    arguments = json.dumps(evaluate(tool.arguments, machine.lookup(entry)), ensure_ascii=False)
    if tool.pure:
        first = machine.pure_calls.setdefault((tool.tool, arguments), entry)
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


class ToolCall:
    """One call of a tool. Its timeout counts from its start, the run's deadline also while it is queued."""

    def __init__(self, machine: Machine, entry: Entry, tool: Tool, arguments: str) -> None:
        self.machine = machine
        self.entry = entry
        self.tool = tool
        self.attempts = Attempts(machine.registry[tool.tool], arguments, tool, lambda: not entry.ended)
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

    def _answered(self, answers: Sequence[Answer]) -> None:
        answer = answers[0]
        if answer.error is not None:
            raise self._error(f"raised {answer.said}") from answer.error
        self.machine.finish(self.entry, Outcome(value=answer.value))

    def _timed_out(self) -> ToolError:
        return self._error(f"did not answer within {self.tool.timeout_s} s")

    def _error(self, what: str) -> ToolError:
        return ToolError(
            f"tool {self.tool.tool!r} {what}",
            hint="a tool takes and returns plain JSON values; catch in it what it can handle itself",
            origin=self.tool.origin,
        )


class Attempts:
    """A tool's function with its arguments: called once, or again while an idempotent one raises and somebody still waits."""

    def __init__(self, function: Callable[..., Any], arguments: str, tool: Tool, wanted: Callable[[], bool]) -> None:
        self._function = function
        self._arguments = arguments
        self._tool = tool
        self._wanted = wanted
        self._left = IDEMPOTENT_ATTEMPTS if tool.idempotent else 1

    def __call__(self) -> Any:
        """The answer, or an awaitable of it."""
        while True:
            try:
                answer = self._function(**json.loads(self._arguments))
                return self._later(answer) if inspect.isawaitable(answer) else _as_json(answer)
            except Exception as error:  # noqa: BLE001 - whatever it was, calling again is harmless
                self._try_again(error)

    async def _later(self, answer: Awaitable[Any]) -> Any:
        try:
            return _as_json(await answer)
        except Exception as error:  # noqa: BLE001 - whatever it was, calling again is harmless
            self._try_again(error)
        again = self()
        return await again if inspect.isawaitable(again) else again

    def _try_again(self, error: Exception) -> None:
        """Raises `error` unless another attempt is left and wanted."""
        self._left -= 1
        if not self._left or not self._wanted():
            raise error
        _log.info("tool %r raised %s and is called again", self._tool.tool, type(error).__name__)


def _as_json(answer: Any) -> Any:
    """What a tool gave, as it comes out of a record."""
    return json.loads(json.dumps(answer, ensure_ascii=False, allow_nan=False))
