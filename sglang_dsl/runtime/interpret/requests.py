"""A call as a request: on its way, shared with calls that ask for equal work, or healed at its prompt's last token.

Work is equal if it is greedy or has an explicit seed and sample index, and all else that decides its outcome is the
same: model, namespace, prompt ids, options, constraint. The mock's scripts answer names, so the name counts, too.

Token healing: the prompt's last token is chosen anew together with the first ones of the output.

    prompt "see http:" + output "//x"     tokens  see| http|:      and the model would have written  see| http|://|x
    healed: prompt "see http", and the output has to begin with ":"

Source: token healing as in Microsoft's guidance (`guidance` project, "token healing").
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ...errors import DslError, SpecError
from ...ir.analysis import blank_finding, choices_of
from ...ir.execution import Event
from ...ir.nodes import Gen, Reasoning, RoleBegin, Select, Text
from ...ir.specs import ConstraintSpec
from ..cache.keys import AlikeIds, TokenIds
from ..constrain.regex import literal
from ..schedule.request import GenerateRequest, GenerateResult, Label, Request, Result
from ..text.tokenizer import Tokenizer
from .entries import Entry
from .machine import Machine
from .prompts import Prompt, TargetPrompts
from .target import Target

THINKING = Reasoning()  # the markers of templates that open a block of thoughts themselves


def model_of(machine: Machine, call: Gen | Select) -> TargetPrompts:
    """The model a call names. Raises SpecError listing the aliases there are."""
    if call.model in machine.models:
        return machine.models[call.model]
    known = ", ".join(sorted(alias for alias in machine.models if alias is not None)) or "none"
    raise SpecError(
        f"no model is called {call.model!r} in this run; named models: {known}",
        hint=f"pass RunOptions(models={{{call.model!r}: ...}})",
        origin=call.origin,
    )


class ModelCall:
    """What the call of a gen and that of a select share: model, prompt, who asks. Owner: the run's Machine, under the run's lock."""

    def __init__(self, machine: Machine, entry: Entry, node: Gen | Select) -> None:
        self.machine = machine
        self.entry = entry
        self.model = model_of(machine, node)
        self.target = self.model.target
        anchor = entry.context.anchor if entry.context else None
        self.prompt: Prompt = self.model.seam_after(anchor)
        self.prompt_ids = self.prompt.ids or self.model.prompter.bos_alone()
        # what the call stands right behind: the template's opening of a turn, or text of the program
        self.opening = anchor.outcome.text if anchor and anchor.outcome and isinstance(anchor.node, RoleBegin) else ""
        self.written = "".join(p.text for p in anchor.pieces) if anchor and isinstance(anchor.node, Text) else ""
        closes = getattr(node, "reasoning", None) is None and self.opening.rstrip().endswith(THINKING.begin)
        # ids that end a block of thoughts which the template has opened, for a call that does not think
        self.unthinking = self.model.prompter.marker_ids(f"\n{THINKING.end}\n\n") if closes else ()
        self.findings: tuple[str, ...] = ()
        if isinstance(node, Select) or node.constraint is not None:
            wrong = blank_finding(self.written, choices_of(node))
            self.findings = (wrong,) if wrong else ()
        self.admitted = False
        self.asked_s = machine.now()

    def label(self, *, sample: int = 0, attempt: int = 0) -> Label:
        """Who asks."""
        node = self.entry.node
        return Label(
            run_id=self.machine.run_id,
            node_id=self.entry.id,
            name=getattr(node, "name", None) or "",
            sample=sample,
            attempt=attempt,
            lineage=self.entry.lineage,
        )

    def deadline_s(self, timeout_s: float | None = None) -> float | None:
        """On the target's clock: the run's own, or an earlier one. Raises DeadlineError if the run's is over."""
        if self.machine.budget.deadline_s is None and timeout_s is None:
            return None
        left_s = self.machine.budget.seconds_left(self.entry)
        limits = [s for s in (left_s, timeout_s) if s is not None]
        return self.target.now() + min(limits) if limits else None

    def on_started(self) -> None:
        """The first request was admitted."""
        if not self.admitted:
            self.admitted = True
            self.machine.emit(Event(kind="started", node_id=self.entry.id, at_s=self.machine.now()))

    def on_text(self, delta: str) -> None:
        """Text was released."""


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """Implements `Sink` for one request, on its way or ended. Owner: the run's Machine; the sink's methods begin a turn.

    waiting: who waits for it, and what each wants to be called with. `_said`: what was shown of it so far. `_counted_tokens`: those
    that the run's budget knows of.
    """

    _machine: Machine
    _target: Target
    _request: Request
    waiting: dict[Entry, tuple[ModelCall, Callable[[Any], None]]] = field(default_factory=dict)
    _started: bool = False
    _said: str = ""
    _result: Result | None = None
    _over: bool = False
    _counted_tokens: int = 0

    @property
    def usable(self) -> bool:
        """Whether another call may join: it waits for an end that others wait for, or there is a result."""
        return bool(self.waiting) or self._result is not None

    def join(self, caller: ModelCall, done: Callable[[Any], None]) -> None:
        """Wait for the result; what was missed so far is told at once."""
        entry = caller.entry
        self.waiting[entry] = (caller, done)
        entry.stop = partial(self._withdraw, entry)
        if self._started:
            caller.on_started()
        if self._said:
            caller.on_text(self._said)
        if self._result is not None:
            self._machine.totals.add_shared(self._result)
            self._deliver(entry, _for_free(self._result))

    def started(self) -> None:
        """The request was admitted for the first time."""
        with self._machine.turn():
            self._started = True
            for caller, _ in tuple(self.waiting.values()):
                caller.on_started()

    def text(self, delta: str, token_ids: Sequence[int]) -> None:
        """Text released (UTF-8 complete, past any possible stop) and the ids sampled since the last call."""
        with self._machine.turn():
            self._said += delta
            for caller, _ in tuple(self.waiting.values()):
                caller.on_text(delta)
            self._counted_tokens += len(token_ids)
            self._machine.spend_tokens(len(token_ids))

    def lost(self, tokens: int) -> None:
        """The request ended without a result after so many tokens had been computed for it."""
        with self._machine.turn():
            self._machine.totals.add_lost(tokens)

    def done(self, result: Result | Exception) -> None:
        """The end: a result, or why there is none."""
        with self._machine.turn():
            if self._over:  # an interrupted submission had queued it all the same
                return
            self._over = True
            self._machine.in_flight -= 1
            if isinstance(result, Exception):
                for entry in tuple(self.waiting):
                    self._machine.fail(entry, result.at(entry.node.origin) if isinstance(result, DslError) else result)
                return
            self._result = result
            self._machine.totals.add(result)
            for place, entry in enumerate(tuple(self.waiting)):
                if place:
                    self._machine.totals.add_shared(result)
                self._deliver(entry, _for_free(result) if place else result)
            if isinstance(result, GenerateResult):
                self._machine.spend_tokens(result.generated_tokens - self._counted_tokens)

    def _deliver(self, entry: Entry, result: Result) -> None:
        _, done = self.waiting.pop(entry)
        entry.stop = None
        self._machine.attempt(entry, partial(done, result))

    def _withdraw(self, entry: Entry, reason: str) -> None:
        self.waiting.pop(entry, None)
        if not self.waiting and not self._over:
            self._machine.defer(partial(self._target.cancel, [self._request.request_id], reason))


def send(
    machine: Machine,
    caller: ModelCall,
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
    equal_one = None if key is None else machine.equal_requests.get(key)
    if isinstance(equal_one, InFlightRequest) and equal_one.usable:
        machine.leases.unspend(target, request)
        equal_one.join(caller, done)
        return
    in_flight = InFlightRequest(machine, target, request)
    if key is not None:
        machine.equal_requests[key] = in_flight
    in_flight.join(caller, done)
    machine.requests.setdefault(target, []).append((request, in_flight, in_flight.waiting))
    machine.in_flight += 1


def equal_work(request: Request, *, explicit_seed: bool = False) -> Hashable | None:
    """What two requests have to have in common to be one; None for one that is drawn by a seed of its own."""
    if not isinstance(request, GenerateRequest):
        continuations = tuple(map(tuple, request.continuations))
        return (
            request.namespace,
            request.label.name,
            AlikeIds(request.prompt_ids),
            continuations,
            request.unconditional,
        )
    sampling = replace(request.sampling, seed=None) if request.sampling.greedy else request.sampling
    if not sampling.greedy and not explicit_seed:
        return None
    label = request.label
    return (request.namespace, label.name, label.attempt, AlikeIds(request.prompt_ids), sampling, request.constraint)


def _for_free(result: Result) -> Result:
    """The result as it is for a call that had it from another: nothing was computed."""
    return replace(result, cached_tokens=result.prompt_tokens, computed_tokens=0)


@dataclass(frozen=True, slots=True)
class HealedPrompt:
    """A call without its prompt's last token. `text`: what the output has to begin with, and is not part of it."""

    prompt_ids: TokenIds
    text: str
    constraint: ConstraintSpec


def check_heal(gen: Gen) -> None:
    """Raise SpecError where a gen's constraint cannot be put behind a healed token."""
    if gen.heal and gen.constraint is not None and gen.constraint.kind not in ("regex", "choices"):
        raise SpecError(
            f"heal=True goes with free text, a regex or choices, not with a constraint of kind {gen.constraint.kind!r}",
            hint="leave heal out: structured output begins with a token of its own anyway",
            origin=gen.origin,
        )


def healed(gen: Gen, prompt_ids: Sequence[int], tokenizer: Tokenizer) -> HealedPrompt | None:
    """The healed call, or None where there is nothing to heal.

    That is so where the last token is the only one, is a control token or a part of a character, or where a stop could
    match in its text, which the output does not include.
    """
    last = prompt_ids[-1]
    if not gen.heal or len(prompt_ids) < 2 or last in tokenizer.control_ids:
        return None
    try:
        text = tokenizer.token_bytes(last).decode()
    except UnicodeDecodeError:
        return None
    if not text or gen.sampling.stop_regex or any(_touches(text, stop) for stop in gen.sampling.stop):
        return None
    return HealedPrompt(TokenIds(prompt_ids[:-1]), text, _behind(text, gen.constraint))


def _behind(text: str, constraint: ConstraintSpec | None) -> ConstraintSpec:
    start = literal(text)
    if constraint is None:
        return ConstraintSpec(kind="regex", text=start + r"[\s\S]*")
    if constraint.kind == "regex":
        return replace(constraint, text=f"{start}(?:{constraint.text})")
    return ConstraintSpec.choices(tuple(text + choice for choice in json.loads(constraint.text)))


def _touches(text: str, stop: str) -> bool:
    """Whether a match of `stop` could begin in `text`."""
    return stop in text or any(text.endswith(stop[:length]) for length in range(1, len(stop)))
