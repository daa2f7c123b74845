"""Gens and selects: from a ready entry to requests, and from results to values."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...errors import CancelledError, DslError, InvalidValueError, RunError, SpecError
from ...ir.execution import Event, Meta, Outcome
from ...ir.nodes import Gen, Reasoning, Reference, Select
from ...ir.operations import text_of
from ...ir.outcome import Accepted, PartialCharacters
from ...ir.semantics import evaluate
from ...ir.specs import DEFAULT_MAX_TOKENS, ConstraintSpec, SamplingSpec
from ..schedule.request import GenerateRequest, GenerateResult, ScoreRequest, ScoreResult
from .answers import best, checked_at_once, distinct, judged, prepare, scored, value_of
from .entries import CallOutput, Entry
from .machine import SEED_BITS, Machine
from .requests import ModelCall, check_heal, equal_work, healed, model_of, send
from .tools import UserCalls, keep_context
from .user_code import UserCallResult

KEPT_PART = 4  # of `max_tokens`, a quarter is kept for the answer after thoughts that do not end


def check_gen(machine: Machine, entry: Entry) -> None:
    """What the border can see of a gen: alias, constraint, validator, and a prompt that is too long already.

    Raises:
        DslError: see `Run.extend`.
    """
    gen = entry.node
    if not isinstance(gen, Gen):
        return
    model = model_of(machine, gen)
    if gen.constraint is not None or gen.reasoning is not None:
        model.audit(gen.constraint)
        model.audit(_constraint_of(gen.reasoning))
        prepare(gen.constraint)
        check_heal(gen)
    if gen.validator is not None and gen.validator not in machine.registry:
        raise SpecError(f"no validator is registered as {gen.validator!r}", origin=gen.origin)
    if gen.validator is not None or gen.constraint is not None:
        keep_context(entry)
    wanted = gen.sampling.max_tokens or max(1, gen.sampling.min_tokens)  # not given: what is left, so one at least
    known = model.prompt_after(entry.known.anchor if entry.known else None)  # of its path, as far as it is encoded
    model.check_length(len(known.ids), wanted, entry)


def check_select(machine: Machine, entry: Entry) -> None:
    """What the border can see of a select: alias and degenerate choices. Raises SpecError."""
    select = entry.node
    if not isinstance(select, Select):
        return
    model_of(machine, select)
    distinct([choice if isinstance(choice, str) else "..." for choice in select.choices])


def begin_gen(machine: Machine, entry: Entry) -> None:
    """Start the first attempt."""
    if isinstance(entry.node, Gen):
        GenCall(machine, entry, entry.node).begin()


def begin_select(machine: Machine, entry: Entry) -> None:
    """Score the choices."""
    if isinstance(entry.node, Select):
        SelectCall(machine, entry, entry.node).begin()


def _constraint_of(reasoning: Reasoning | None) -> ConstraintSpec | None:
    """What thoughts have to match, if anything."""
    return None if reasoning is None or reasoning.regex is None else ConstraintSpec(kind="regex", text=reasoning.regex)


def call_seed(run_seed: int, node_id: str, own: int | None, sample: int, attempt: int) -> int:
    """What one attempt at one sample of a call begins with: H(run seed, node id, sample, attempt).

    own: the gen's `seed=`, if it has one, replaces run seed and node id; the first attempt at its first sample gets it as it is.
    """
    if own is not None and sample == attempt == 0:
        return own
    parts = ("node", run_seed, node_id, sample, attempt) if own is None else ("own", own, sample, attempt)
    fields = b"".join(f"{len(text)}:{text}".encode() for text in map(str, parts))
    return int.from_bytes(hashlib.sha256(fields).digest()[:8]) >> (64 - SEED_BITS)


class GenCall(ModelCall):
    """One gen: its reasoning part if it has one, then its answer; again, if the answer is refused and retries are left.

    prompt | begin marker, reasoning, end marker | answer
           ^ `self.prompt_ids`                   ^ `self.lead` ends here
    """

    def __init__(self, machine: Machine, entry: Entry, gen: Gen) -> None:
        super().__init__(machine, entry, gen)
        self.gen = gen
        self.attempt = 0
        # whether the block of thoughts is open already: the template has begun it, or the program's own text has
        self.opened = gen.reasoning is not None and any(
            said.rstrip().endswith(gen.reasoning.begin) for said in (self.opening, self.written)
        )
        self.lead: tuple[int, ...] = ()  # ids between the prompt and the answer
        self.reasoning = ""
        self.reasoning_cut = False
        self.reasoning_tokens = 0
        self.in_answer = False
        self.seed = 0
        heals = gen.heal and not gen.reasoning and not self.unthinking
        self.healed = healed(gen, self.prompt_ids, self.target.text.tokenizer) if heals else None
        self.unsaid = ""  # of a healed token: text that comes again and is not the output's

    def begin(self) -> None:
        """Send the first request of an attempt."""
        self.asked_s = self.machine.now()
        self.lead, self.reasoning, self.reasoning_tokens, self.reasoning_cut = self.unthinking, "", 0, False
        gen = self.gen
        self.seed = call_seed(self.machine.seed, self.entry.id, gen.sampling.seed, gen.sample, self.attempt)
        if gen.reasoning is None:
            self._send(gen.sampling, answers=True, done=self._answered)
        else:
            self._ask_reasoning(gen.reasoning)

    def _ask_reasoning(self, reasoning: Reasoning) -> None:
        """Think first. What thinking and answer may generate together is `max_tokens`; a part of it is kept for the answer."""
        prompter, sampling = self.model.prompter, self.gen.sampling
        self.lead = () if self.opened else prompter.marker_ids(reasoning.begin)
        most = self._most_tokens(reasoning) - max(1, sampling.min_tokens, self._most_tokens(reasoning) // KEPT_PART)
        if reasoning.budget_tokens is not None:
            most = min(most, reasoning.budget_tokens)
        if most < 1:
            self.reasoning_cut = True
            self.lead += prompter.marker_ids(reasoning.end)
            self._ask_answer(reasoning)
            return
        end_ids = prompter.marker_ids(reasoning.end)
        thinking = replace(
            sampling,
            max_tokens=most,
            min_tokens=0,
            stop=(reasoning.end,),
            stop_token_ids=end_ids if len(end_ids) == 1 else (),  # an end marker that is a token without a text
            stop_regex=(),
            include_stop=False,
            ignore_eos=False,
            logprobs=None,
        )
        self._send(thinking, answers=False, done=partial(self._reasoned, reasoning))

    def _most_tokens(self, reasoning: Reasoning) -> int:
        """What thinking and answer may generate together."""
        given = self.gen.sampling.max_tokens
        if given is not None:
            return given
        markers = sum(len(self.model.prompter.marker_ids(marker)) for marker in (reasoning.begin, reasoning.end))
        room = self.target.info.context_tokens - len(self.prompt_ids) - markers
        return max(1, min(DEFAULT_MAX_TOKENS + (reasoning.budget_tokens or 0), room))

    def _reasoned(self, reasoning: Reasoning, result: GenerateResult) -> None:
        end = self.model.prompter.marker_ids(reasoning.end)
        tail = self.model.prompter.encode(result.tail_text) if result.tail_text else ()
        self.lead = (*self.lead, *result.token_ids, *tail, *end)
        self.reasoning, self.reasoning_tokens = result.text, result.generated_tokens
        self.reasoning_cut = result.finish_reason == "length"
        self._ask_answer(reasoning)

    def _ask_answer(self, reasoning: Reasoning) -> None:
        """With what the thoughts have left of `max_tokens`."""
        left = max(1, self._most_tokens(reasoning) - self.reasoning_tokens)
        self._send(replace(self.gen.sampling, max_tokens=left), answers=True, done=self._answered)

    def _send(self, sampling: SamplingSpec, *, answers: bool, done: Callable[[GenerateResult], None]) -> None:
        self.in_answer = answers
        prompt_ids = self.prompt_ids.then(self.lead)
        constraint = self.gen.constraint if answers else _constraint_of(self.gen.reasoning)
        if self.healed is not None:
            prompt_ids, constraint, self.unsaid = self.healed.prompt_ids, self.healed.constraint, self.healed.text
        sampling = sampling.fitting(len(prompt_ids), self.target.info.context_tokens)
        self.model.check_length(len(prompt_ids), sampling.most_tokens, self.entry)
        if self.machine.budget.tokens is not None:
            self.machine.budget.check(self.entry)
        deadline_s = self.deadline_s(self.gen.timeout_s)
        options = self.machine.spec.options
        request = GenerateRequest(
            request_id=f"{self.machine.run_id}/{self.entry.id}/{self.attempt}{'' if answers else '/reasoning'}",
            prompt_ids=prompt_ids,
            sampling=replace(sampling, seed=self.seed),
            constraint=constraint,
            namespace=self.model.namespace,
            lease=None if self.entry.claim is None else self.machine.leases.spend(self.entry.claim, self.target),
            priority=options.priority,
            deadline_s=deadline_s,
            critical_tokens=self.machine.critical_tokens(self.entry),
            order=self.entry.place,
            label=self.label(sample=self.gen.sample, attempt=self.attempt),
        )
        explicit = self.gen.sampling.seed is not None
        equal = equal_work(request, explicit_seed=explicit) if self.machine.share_equal else None
        send(self.machine, self, self.target, request, done, equal=equal and (equal, self.gen.timeout_s))

    def on_text(self, delta: str) -> None:
        """Pass text on, unless it may yet be refused and made again."""
        if self.unsaid:
            skipped = min(len(self.unsaid), len(delta))
            delta, self.unsaid = delta[skipped:], self.unsaid[skipped:]
        if delta and self.in_answer and self.gen.retries == 0:
            self.machine.emit(Event(kind="text", node_id=self.entry.id, text=delta, at_s=self.machine.now()))

    def _answered(self, result: GenerateResult) -> None:
        text = result.text if self.healed is None else result.text[len(self.healed.text) :]
        if self.gen.constraint is None and self.gen.validator is None and self.gen.decode == "text":
            self._accepted(result, text, text, None)  # free text is its own value
            return
        cut, tokens = result.finish_reason in ("length", "stop"), result.generated_tokens
        stop = result.matched if result.finish_reason == "stop" else None
        validator = None if self.gen.validator is None else self.machine.registry[self.gen.validator]
        if validator is not None or not checked_at_once(self.gen, text):
            judge = partial(judged, self.gen, text, validator, cut=cut, tokens=tokens, stop=stop)
            what = f"the validator of {self.entry.id!r}"
            UserCalls(self.machine, self.entry, [judge], partial(self._judged, result, text), what=what).begin()
            return
        try:
            value = value_of(self.gen, text, cut=cut, tokens=tokens, stop=stop)
        except InvalidValueError as error:
            self._refused(error)
        else:
            self._accepted(result, text, value, None)

    def _judged(self, result: GenerateResult, text: str, answers: Sequence[UserCallResult]) -> None:
        answer, error, said = answers[0]
        if error is None:
            value, accepted = answer
            self._accepted(result, text, value, accepted)
        elif isinstance(error, InvalidValueError):
            self._refused(error)
        elif isinstance(error, DslError) and not isinstance(error, CancelledError):
            raise error
        else:
            raise RunError(
                f"the validator of {self.gen.name or self.gen.id!r} raised {said}",
                hint="a validator refuses by returning False or raising ValueError",
                origin=self.gen.origin,
            ) from error

    def _refused(self, error: InvalidValueError) -> None:
        if self.attempt >= self.gen.retries:
            raise error
        self.attempt += 1
        self.begin()

    def _accepted(self, result: GenerateResult, text: str, value: Any, accepted: Accepted | None) -> None:
        if self.gen.retries and text:
            self.machine.emit(Event(kind="text", node_id=self.entry.id, text=text, at_s=self.machine.now()))
        ids = self.lead + tuple(result.token_ids)
        self.entry.produced = CallOutput(self.target, ids, text, result.tail_text, healed=self.healed is not None)
        torn = result.torn
        if torn is not None and torn.head and not self._goes_on_inside_a_character():
            torn = PartialCharacters(b"", torn.tail) if torn.tail else None
        self.machine.finish(
            self.entry, Outcome(value=value, text=text, torn=torn, meta=self._meta(result), accepted=accepted)
        )

    def _goes_on_inside_a_character(self) -> bool:
        """Whether bytes of a character in front of the output would be bytes of the prompt, too: its ids follow at once, and what
        another model wrote was encoded anew for this one.
        """
        before = self.entry.context.anchor if self.entry.context else None
        while before is not None and (before.outcome is None or not before.outcome.text):
            before = before.context.anchor if before.context else None
        by = None if before is None else before.produced
        return not self.lead and self.healed is None and (by is None or by.target is self.target)

    def _meta(self, result: GenerateResult) -> Meta:
        shift = self.target.now() - self.machine.now()
        return Meta(
            token_ids=tuple(result.covered_ids or result.token_ids),
            finish_reason=result.finish_reason,
            matched=result.matched,
            prompt_tokens=result.prompt_tokens,
            cached_tokens=result.cached_tokens,
            computed_tokens=result.computed_tokens,
            generated_tokens=result.generated_tokens + self.reasoning_tokens,
            token_scores=result.token_scores,
            reasoning=self.reasoning,
            reasoning_tokens=self.reasoning_tokens,
            reasoning_cut=self.reasoning_cut,
            findings=self.findings,
            attempts=self.attempt + 1,
            seed=self.seed,
            model=self.target.info.model,
            weight_version=result.weight_version,
            asked_s=self.asked_s,
            started_s=result.started_s - shift,
            first_token_s=result.first_token_s - shift,
            finished_s=result.finished_s - shift,
        )


class SelectCall(ModelCall):
    """One select. Choices are encoded alone after the seam; a single choice is chosen without a call."""

    def __init__(self, machine: Machine, entry: Entry, select: Select) -> None:
        super().__init__(machine, entry, select)
        self.prompt_ids = self.prompt_ids.then(self.unthinking)
        self.select = select
        lookup = machine.lookup(entry)
        texts = [text_of(evaluate(c, lookup)) if isinstance(c, Reference) else c for c in select.choices]
        self.choices = distinct(texts)
        self.ids = [self.model.prompter.encode(choice) for choice in self.choices]

    def begin(self) -> None:
        """Send the request."""
        if len(self.choices) == 1:
            self._choose(0, Meta(token_ids=self.ids[0], finish_reason="selected", model=self.target.info.model))
            return
        self.model.check_length(len(self.prompt_ids), max(map(len, self.ids)), self.entry)
        deadline_s = self.deadline_s()
        request = ScoreRequest(
            request_id=f"{self.machine.run_id}/{self.entry.id}",
            prompt_ids=self.prompt_ids,
            continuations=self.ids,
            unconditional=self.select.method == "unconditional",
            namespace=self.model.namespace,
            lease=None if self.entry.claim is None else self.machine.leases.spend(self.entry.claim, self.target),
            priority=self.machine.spec.options.priority,
            deadline_s=deadline_s,
            critical_tokens=self.machine.critical_tokens(self.entry),
            order=self.entry.place,
            label=self.label(),
        )
        equal = equal_work(request) if self.machine.share_equal else None
        send(self.machine, self, self.target, request, self._scored, equal=equal)

    def _scored(self, result: ScoreResult) -> None:
        scores = scored(self.choices, self.ids, result, self.select.method)
        shift = self.target.now() - self.machine.now()
        index = best(scores)
        meta = Meta(
            token_ids=self.ids[index],
            finish_reason="selected",
            prompt_tokens=result.prompt_tokens,
            cached_tokens=result.cached_tokens,
            computed_tokens=result.computed_tokens,
            choices=scores,
            findings=self.findings,
            model=self.target.info.model,
            weight_version=result.weight_version,
            asked_s=self.asked_s,
            started_s=result.started_s - shift,
            finished_s=result.finished_s - shift,
        )
        self._choose(index, meta)

    def _choose(self, index: int, meta: Meta) -> None:
        text = self.choices[index]
        self.entry.produced = CallOutput(self.target, self.unthinking + tuple(self.ids[index]), text)
        self.machine.finish(self.entry, Outcome(value=text, text=text, meta=meta))
