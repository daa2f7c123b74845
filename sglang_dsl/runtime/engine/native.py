"""Requests for callers without the DSL: text or ids in, requests of the engine out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias, TypedDict

from ...ir.specs import PRIORITIES, ConstraintSpec, SamplingSpec, entries, flag, number, utf8_text, whole
from ..cache.namespace import Namespace
from ..schedule.request import GenerateRequest, ScoreRequest
from ..text.bos import with_bos
from ..text.fitting import check_fits
from ..text.protocol import Tokenizer
from .border import LARGEST_TIME_S, known_options, prompt_logprobs, whole_ids
from .border import constraint as checked_constraint
from .clock import Clock
from .worker import TargetInfo

Prompt: TypeAlias = str | Sequence[int]


class CallOptions(TypedDict, total=False):
    """What every native call takes by keyword.

    namespace: state is shared only between requests of equal namespaces. priority: higher first. timeout_s: seconds on
    the engine's clock from now until DeadlineError.
    """

    namespace: str
    priority: int
    timeout_s: float | None


class GenerateOptions(CallOptions, total=False):
    """And what a generation takes.

    prompt_logprobs: also the log-probability of each prompt token and of the best so many alternatives. no_cache:
    neither take state from the prefix cache nor leave any.
    """

    constraint: ConstraintSpec | None
    prompt_logprobs: int | None
    no_cache: bool


CALL_OPTIONS = frozenset(CallOptions.__annotations__)
GENERATE_OPTIONS = CALL_OPTIONS | frozenset(GenerateOptions.__annotations__)


class Requests:
    """Makes requests with ids of their own. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, info: TargetInfo, clock: Clock) -> None:
        self._tokenizer = tokenizer
        self._namespace = info.namespace
        self._fits = partial(
            check_fits,
            tokenizer=tokenizer,
            room=info.context_tokens,
            context_tokens=info.context_tokens,
            model=info.model,
        )
        self._clock = clock
        self._numbers = itertools.count(1)

    def generate(self, prompt: Prompt, sampling: SamplingSpec, options: GenerateOptions) -> GenerateRequest:
        """A generation. Raises SpecError: no prompt, an unknown option, or a timeout that is not positive."""
        known_options(options, GENERATE_OPTIONS)
        return GenerateRequest(
            request_id=self._next_id(),
            prompt_ids=self.prompt_ids(prompt),
            sampling=sampling,
            constraint=None if options.get("constraint") is None else checked_constraint(options["constraint"]),
            namespace=self._space(options),
            priority=whole("priority", options.get("priority", 0), *PRIORITIES),
            deadline_s=self._deadline(options),
            prompt_logprobs=prompt_logprobs(options.get("prompt_logprobs")),
            no_cache=flag("no_cache", options.get("no_cache", False)),
        )

    def score(
        self, prompt: Prompt, continuations: Sequence[Prompt], options: CallOptions, *, unconditional: bool
    ) -> ScoreRequest:
        """A scoring; each text continuation is encoded alone. Raises SpecError."""
        known_options(options, CALL_OPTIONS)
        return ScoreRequest(
            request_id=self._next_id(),
            prompt_ids=self.prompt_ids(prompt),
            continuations=tuple(
                self._ids(each) for each in entries("continuations", continuations, "give a list of texts or of ids")
            ),
            unconditional=unconditional,
            namespace=self._space(options),
            priority=whole("priority", options.get("priority", 0), *PRIORITIES),
            deadline_s=self._deadline(options),
        )

    def prompt_ids(self, prompt: Prompt) -> tuple[int, ...]:
        """Ids of a prompt: as given, or of a text as content, behind a BOS where the model wants one. Raises ContextLengthError."""
        if isinstance(prompt, str):
            self._fits(prompt)
            return tuple(with_bos(self._tokenizer.encode(prompt, first=True), self._tokenizer))
        return self._ids(prompt)

    def _ids(self, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt, str):
            self._fits(prompt)
            return tuple(self._tokenizer.encode(prompt))
        return whole_ids("a prompt that is no text", prompt)

    def _next_id(self) -> str:
        return f"native-{next(self._numbers)}"

    def _space(self, options: CallOptions) -> Namespace:
        return replace(self._namespace, user_key=utf8_text("namespace", options.get("namespace", "")))

    def _deadline(self, options: CallOptions) -> float | None:
        timeout_s = options.get("timeout_s")
        if timeout_s is None:
            return None
        return self._clock.now() + number("timeout_s", timeout_s, 0, LARGEST_TIME_S, above=True)
