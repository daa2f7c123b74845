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
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from ...errors import DeadlineError, SpecError, ToolError
from ...ir.evaluation import evaluate
from ...ir.execution import Event, Outcome
from ...ir.nodes import Tool
from .entry import Entry
from .machine import Machine

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
    """One call of a tool."""

    def __init__(self, machine: Machine, entry: Entry, tool: Tool, arguments: str) -> None:
        self.machine = machine
        self.entry = entry
        self.tool = tool
        self.arguments = arguments
        self.timer: threading.Timer | None = None

    def begin(self) -> None:
        """Queue the call, and a timer if it has a limit."""
        limit_s = self._limit_s()
        self.entry.stop = self._stopped
        if limit_s is not None:
            self.timer = threading.Timer(limit_s, self._timed_out, [limit_s])
            self.timer.daemon = True
            self.machine.post(self.timer.start)
        self.machine.post(partial(self.machine.tool_threads.put, self._work))

    def _limit_s(self) -> float | None:
        left_s = self.machine.budget.seconds_left(self.entry)
        limits = [s for s in (left_s, self.tool.timeout_s) if s is not None]
        return min(limits, default=None)

    def _work(self) -> None:
        with self.machine.turn():
            if self.entry.ended:
                return
            self.machine.emit(Event(kind="started", node_id=self.entry.id, at_s=self.machine.now()))
        try:
            value = self._call_again_while_idempotent()
        except Exception as error:  # noqa: BLE001 - a tool is foreign code; its fault is its node's
            self._failed(f"raised {type(error).__name__}: {error}", error)
            return
        with self.machine.turn():
            self._stop_timer()
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
        with self.machine.turn():
            self._stop_timer()
            if not self.entry.ended:
                self.machine.fail(self.entry, error)

    def _timed_out(self, limit_s: float) -> None:
        if self.tool.timeout_s is not None and limit_s >= self.tool.timeout_s:
            self._failed(f"did not answer within {self.tool.timeout_s} s")
            return
        with self.machine.turn():
            if not self.entry.ended:
                error = DeadlineError(f"the run's deadline passed while tool {self.tool.tool!r} was at work")
                self.machine.fail(self.entry, error.at(self.tool.origin))

    def _stopped(self, reason: str) -> None:
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


def _called(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    answer = function(**arguments)
    return asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer


async def _awaited(answer: Any) -> Any:
    return await answer
