"""A request on its way, and the calls that wait for it: one, or several that asked for equal work.

Work is equal if it is greedy or has an explicit seed and sample index, and all else that decides its outcome is the
same: model, namespace, prompt ids, options, constraint. The mock's scripts answer names, so the name counts, too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...errors import DslError
from ..cache.keys import alike
from ..schedule.request import GenerateRequest, GenerateResult, Request, Result
from .awaited import Awaited, Caller
from .entry import Entry
from .machine import Machine
from .target import Target


class Flight:
    """Implements `Sink` for one request. Owner: the run's Machine; the sink's methods begin a turn."""

    def __init__(self, machine: Machine, target: Target, request: Request) -> None:
        self._machine = machine
        self._target = target
        self._request = request
        self._waiting: dict[Entry, tuple[Caller, Callable[[Any], None]]] = {}
        self._started = False
        self._said = ""
        self._result: Result | None = None
        self._over = False
        self._counted_tokens = 0

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits for it."""
        return bool(self._waiting)

    @property
    def usable(self) -> bool:
        """Whether another call may join: it waits for an end that others wait for, or there is a result."""
        return self.wanted or self._result is not None

    def join(self, caller: Caller, done: Callable[[Any], None]) -> None:
        """Wait for the result; what was missed so far is told at once."""
        entry = caller.entry
        self._waiting[entry] = (caller, done)
        entry.stop = partial(self._leave, entry)
        if self._started:
            caller.on_started()
        if self._said:
            caller.on_text(self._said)
        if self._result is not None:
            self._machine.tally.share(self._result)
            self._land(entry, _for_free(self._result))

    def started(self) -> None:
        """See `Sink`."""
        with self._machine.turn():
            self._started = True
            for caller, _ in tuple(self._waiting.values()):
                caller.on_started()

    def text(self, delta: str, token_ids: Sequence[int]) -> None:
        """See `Sink`."""
        with self._machine.turn():
            self._said += delta
            for caller, _ in tuple(self._waiting.values()):
                caller.on_text(delta)
            self._counted_tokens += len(token_ids)
            self._machine.spend_tokens(len(token_ids))

    def lost(self, tokens: int) -> None:
        """See `Sink`."""
        with self._machine.turn():
            self._machine.tally.lose(tokens)

    def done(self, result: Result | Exception) -> None:
        """See `Sink`."""
        with self._machine.turn():
            if self._over:  # an interrupted submission had queued it all the same
                return
            self._over = True
            self._machine.in_flight -= 1
            if isinstance(result, Exception):
                for entry in tuple(self._waiting):
                    self._machine.fail(entry, result.at(entry.node.origin) if isinstance(result, DslError) else result)
                return
            self._result = result
            self._machine.tally.add(result)
            for place, entry in enumerate(tuple(self._waiting)):
                if place:
                    self._machine.tally.share(result)
                self._land(entry, _for_free(result) if place else result)
            if isinstance(result, GenerateResult):
                self._machine.spend_tokens(result.generated_tokens - self._counted_tokens)

    def _land(self, entry: Entry, result: Result) -> None:
        _, done = self._waiting.pop(entry)
        entry.stop = None
        self._machine.attempt(entry, partial(done, result))

    def _leave(self, entry: Entry, reason: str) -> None:
        self._waiting.pop(entry, None)
        if not self._waiting and not self._over:
            self._machine.post(partial(self._target.cancel, [self._request.request_id], reason))


def send(
    machine: Machine,
    caller: Caller,
    target: Target,
    request: Request,
    done: Callable[[Any], None],
    *,
    equal: Hashable | None = None,
) -> None:
    """Queue a request for a call, or let it wait for an equal one.

    Args:
        equal: what has to be the same for two requests to be one; None: this one is always its own.
    """
    key = None if equal is None else (target, equal)
    equal_one: Awaited | None = None if key is None else machine.flights.get(key)
    if equal_one is not None and equal_one.usable:
        machine.leases.unspend(target, request)
        equal_one.join(caller, done)
        return
    flight = Flight(machine, target, request)
    if key is not None:
        machine.flights[key] = flight
    flight.join(caller, done)
    machine.submit(target, request, flight)


def equal_work(request: Request, *, explicit_seed: bool = False) -> Hashable | None:
    """What two requests have to have in common to be one; None for one that is drawn by a seed of its own."""
    if not isinstance(request, GenerateRequest):
        continuations = tuple(map(tuple, request.continuations))
        return (request.namespace, request.label.name, alike(request.prompt_ids), continuations, request.unconditional)
    sampling = replace(request.sampling, seed=None) if request.sampling.greedy else request.sampling
    if not sampling.greedy and not explicit_seed:
        return None
    label = request.label
    return (request.namespace, label.name, label.attempt, alike(request.prompt_ids), sampling, request.constraint)


def _for_free(result: Result) -> Result:
    """The result as it is for a call that had it from another: nothing was computed."""
    return replace(result, cached_tokens=result.prompt_tokens, computed_tokens=0)
