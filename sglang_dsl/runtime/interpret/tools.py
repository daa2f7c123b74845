"""Tools: registered Python functions, called with JSON and answering JSON.

A tool starts once the text before it in its state and its arguments are there, on one of the run's few threads. Calls of
a pure tool with equal arguments are one call; an idempotent one that raises is called again. Python cannot stop a function: what one that outlived its timeout or its
run returns is dropped.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from ...errors import DeadlineError, DslError, SpecError, ToolError
from ...ir.evaluation import evaluate
from ...ir.execution import Event, Outcome
from ...ir.nodes import Tool
from .alarms import Alarm
from .entry import Entry
from .machine import Machine
from .threads import Job

IDEMPOTENT_ATTEMPTS = 3

_log = logging.getLogger(__name__)


def check_tool(machine: Machine, entry: Entry) -> None:
    """Raise SpecError if no such tool is registered. Remembers the caller's context variables for the call."""
    if not isinstance(entry.node, Tool):
        return
    if entry.node.tool not in machine.registry:
        known = ", ".join(sorted(machine.registry)) or "none"
        raise SpecError(f"no tool is registered as {entry.node.tool!r}; registered: {known}", origin=entry.node.origin)
    entry.variables = contextvars.copy_context()


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
        self.arguments = arguments
        self.job = Job(self._work)
        self.limits: list[Alarm] = []

    def begin(self) -> None:
        """Queue the call. Raises DeadlineError where the run's deadline has passed."""
        self.entry.stop = self._stopped
        left_s = self.machine.budget.seconds_left(self.entry)
        if left_s is not None:
            self.machine.post(partial(self._end_after, left_s, self._out_of_time))
        self.machine.post(partial(self.machine.tool_threads.put, self.job))

    def _end_after(self, seconds: float, ending: Callable[[], None]) -> None:
        self.limits.append(self.machine.tool_limits.after(seconds, ending))

    def _work(self) -> None:
        with self.machine.turn():
            if self.entry.ended:
                self._lift_limits()
                return
            self.machine.emit(Event(kind="started", node_id=self.entry.id, at_s=self.machine.now()))
            if self.tool.timeout_s is not None:
                self.machine.post(partial(self._end_after, self.tool.timeout_s, self._timed_out))
        try:
            value = self._call_again_while_idempotent()
        except Exception as error:  # noqa: BLE001 - a tool is foreign code; its fault is its node's
            self._failed(f"raised {type(error).__name__}: {error}", error)
            return
        with self.machine.turn():
            self._lift_limits()
            self.machine.finish(self.entry, Outcome(value=value))

    def _call_again_while_idempotent(self) -> Any:
        for _ in range(IDEMPOTENT_ATTEMPTS - 1 if self.tool.idempotent else 0):
            try:
                return self._call()
            except Exception as error:  # noqa: BLE001 - whatever it was, calling again is harmless
                _log.info("tool %r raised %r and is called again", self.tool.tool, error)
        return self._call()

    def _call(self) -> Any:
        function = self.machine.registry[self.tool.tool]
        variables = self.entry.variables or contextvars.copy_context()
        answer = variables.run(_called, function, json.loads(self.arguments))
        return json.loads(json.dumps(answer, ensure_ascii=False, allow_nan=False))

    def _failed(self, what: str, cause: Exception | None = None) -> None:
        error = ToolError(
            f"tool {self.tool.tool!r} {what}",
            hint="a tool takes and returns plain JSON values; catch in it what it can handle itself",
            origin=self.tool.origin,
        )
        error.__cause__ = cause
        self._fail(error)

    def _fail(self, error: DslError) -> None:
        with self.machine.turn():
            self._lift_limits()
            if not self.entry.ended:
                self.machine.fail(self.entry, error)

    def _timed_out(self) -> None:
        self._failed(f"did not answer within {self.tool.timeout_s} s")
        self.machine.tool_threads.abandon(self.job)

    def _out_of_time(self) -> None:
        error = DeadlineError(f"the run's deadline passed while tool {self.tool.tool!r} was at work")
        self._fail(error.at(self.tool.origin))
        self.machine.tool_threads.abandon(self.job)

    def _stopped(self, reason: str) -> None:
        self._lift_limits()
        self.machine.tool_threads.abandon(self.job)

    def _lift_limits(self) -> None:
        for limit in self.limits:
            self.machine.tool_limits.cancel(limit)


def _called(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    answer = function(**arguments)
    return asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer


async def _awaited(answer: Any) -> Any:
    return await answer
