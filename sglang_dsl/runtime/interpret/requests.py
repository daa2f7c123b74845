"""A request on its way, and the calls that wait for it: one, or several that asked for equal work.

Work is equal if it is greedy or has an explicit seed and sample index, and all else that decides its outcome is the
same: model, namespace, prompt ids, options, constraint. The mock's scripts answer names, so the name counts, too.

Token healing: the prompt's last token is chosen anew together with the first ones of the output.

    prompt "see http:" + output "//x"     tokens  see| http|:      and the model would have written  see| http|://|x
    healed: prompt "see http", and the output has to begin with ":"

Source: token healing as in Microsoft's guidance (`guidance` project, "token healing").

Which choice of a select wins, by four methods. Ties go to the choice that stands first.

    mean            average log-probability per token: long, predictable choices are not punished
    sum             total log-probability: the probability of the text itself
    greedy          token by token the most likely one; a choice that ends where a longer one goes on competes with the
                    end of the text, and drops out where the longer one's next token is the most likely (> 1/2)
    unconditional   average gain in log-probability over the same choice without the prompt

Source of mean and unconditional: token-length normalisation and unconditional likelihood normalisation as named in
SGLang's `lang/choices.py`; without its skipping of zeros and its padding by means.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ...errors import DslError, RunError, SpecError
from ...ir.execution import ChoiceScore
from ...ir.nodes import Gen
from ...ir.specs import ConstraintSpec, SelectMethod
from ..cache.keys import AlikeIds, TokenIds
from ..constrain.regex import literal
from ..schedule.request import GenerateRequest, GenerateResult, Request, Result, ScoreResult
from ..text.tokenizer import Tokenizer
from .entries import Entry, JoinableRequest, WaitingCall
from .machine import Machine
from .target import Target


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """Implements `Sink` for one request. Owner: the run's Machine; the sink's methods begin a turn.

    waiting: who waits for it, and what each wants to be called with. `_said`: what was shown of it so far. `_counted_tokens`: those
    that the run's budget knows of.
    """

    _machine: Machine
    _target: Target
    _request: Request
    waiting: dict[Entry, tuple[WaitingCall, Callable[[Any], None]]] = field(default_factory=dict)
    _started: bool = False
    _said: str = ""
    _result: Result | None = None
    _over: bool = False
    _counted_tokens: int = 0

    @property
    def usable(self) -> bool:
        """Whether another call may join: it waits for an end that others wait for, or there is a result."""
        return bool(self.waiting) or self._result is not None

    def join(self, caller: WaitingCall, done: Callable[[Any], None]) -> None:
        """Wait for the result; what was missed so far is told at once."""
        entry = caller.entry
        self.waiting[entry] = (caller, done)
        entry.stop = partial(self._leave, entry)
        if self._started:
            caller.on_started()
        if self._said:
            caller.on_text(self._said)
        if self._result is not None:
            self._machine.totals.share(self._result)
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
            self._machine.totals.lose(tokens)

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
                    self._machine.totals.share(result)
                self._deliver(entry, _for_free(result) if place else result)
            if isinstance(result, GenerateResult):
                self._machine.spend_tokens(result.generated_tokens - self._counted_tokens)

    def _deliver(self, entry: Entry, result: Result) -> None:
        _, done = self.waiting.pop(entry)
        entry.stop = None
        self._machine.attempt(entry, partial(done, result))

    def _leave(self, entry: Entry, reason: str) -> None:
        self.waiting.pop(entry, None)
        if not self.waiting and not self._over:
            self._machine.post(partial(self._target.cancel, [self._request.request_id], reason))


def send(
    machine: Machine,
    caller: WaitingCall,
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
    equal_one: JoinableRequest | None = None if key is None else machine.equal_requests.get(key)
    if equal_one is not None and equal_one.usable:
        machine.leases.unspend(target, request)
        equal_one.join(caller, done)
        return
    in_flight = InFlightRequest(machine, target, request)
    if key is not None:
        machine.equal_requests[key] = in_flight
    in_flight.join(caller, done)
    machine.requests.setdefault(target, []).append((request, in_flight))
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


def distinct(choices: Sequence[str]) -> tuple[str, ...]:
    """The choices, each once, at its first place.

    Raises:
        SpecError: there is none, or one is empty.
    """
    if not choices:
        raise SpecError("a select without choices", hint="give at least one choice")
    if "" in choices:
        raise SpecError(
            f"choice {list(choices).index('')} of the select is empty: an empty text has no tokens to compare",
            hint="leave it out, or give it a word of its own such as 'none'",
        )
    return tuple(dict.fromkeys(choices))


def scored(
    choices: Sequence[str], ids: Sequence[tuple[int, ...]], result: ScoreResult, method: SelectMethod
) -> tuple[ChoiceScore, ...]:
    """Each choice with its score, in order. Scores are comparable within one select only."""
    if any(math.isnan(logprob) for path in result.logprobs for logprob in path):
        raise RunError("the model scored a choice as NaN", hint="check the model's weights and dtype")
    unconditional = result.unconditional or ((),) * len(choices)
    scores = (
        _greedy(ids, result.logprobs)
        if method == "greedy"
        else [_score(path, free, method) for path, free in zip(result.logprobs, unconditional, strict=True)]
    )
    return tuple(
        ChoiceScore(text=text, score=score, token_ids=path_ids, logprobs=tuple(path), unconditional=tuple(free))
        for text, score, path_ids, path, free in zip(choices, scores, ids, result.logprobs, unconditional, strict=True)
    )


def best(scores: Sequence[ChoiceScore]) -> int:
    """Index of the winner."""
    return max(range(len(scores)), key=lambda i: (scores[i].score, -i))


def _score(path: Sequence[float], free: Sequence[float], method: SelectMethod) -> float:
    if method == "sum":
        return math.fsum(path)
    if method == "mean":
        return math.fsum(path) / len(path)
    return math.fsum(p - u for p, u in zip(path, free, strict=True)) / len(path)


def _greedy(ids: Sequence[tuple[int, ...]], logprobs: Sequence[Sequence[float]]) -> list[float]:
    """How many tokens each choice survived, and among survivors of the same length the last token's log-probability
    as a fraction, so that the winner has the highest score.
    """
    survived = [0] * len(ids)
    alive = list(range(len(ids)))
    depth = 0
    while alive:
        longer = [i for i in alive if len(ids[i]) > depth]
        if not longer:
            break
        top = max(logprobs[i][depth] for i in longer)
        ended = [i for i in alive if len(ids[i]) == depth]
        if ended and top <= math.log(0.5):
            alive = ended
            break
        winner_id = next(ids[i][depth] for i in longer if logprobs[i][depth] == top)
        alive = [i for i in longer if ids[i][depth] == winner_id]
        depth += 1
        for i in alive:
            survived[i] = depth
    return [float(survived[i]) + (0.5 if i in alive else 0.0) for i in range(len(ids))]
