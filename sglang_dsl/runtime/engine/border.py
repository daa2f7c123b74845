"""The engine's border: its options, what callers hand in, and requests made for callers without the DSL.

What callers hand in is checked here, on their own threads, field by field, and becomes plain data. Behind the border every request
holds exact ints, floats and strings in range, so that nothing a caller wrote can raise, or run, on the engine's thread. What
depends on the state or the size of the engine (an id in use, a prompt too long or empty) is checked by the scheduler.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import Any, NoReturn, TypeAlias, TypedDict, TypeVar

from ...errors import SamplingError, SpecError
from ...ir.specs import (
    MOST_TOKENS,
    PRIORITIES,
    ConstraintSpec,
    SamplingSpec,
    entries,
    flag,
    number,
    shown,
    utf8_text,
    whole,
)
from ..cache.keys import Namespace, TokenIds
from ..schedule.request import (
    BranchOrder,
    GenerateRequest,
    Label,
    LeaseId,
    Lineage,
    Request,
    ScoreRequest,
    Sink,
    TargetInfo,
)
from ..schedule.step import SchedulerConfig, WorkerInfo
from ..text.output import finders
from ..text.tokenizer import Tokenizer, check_fits, with_bos
from .metrics import Clock

Item: TypeAlias = tuple[Request, Sink]

MOST_CHILDREN = 2**31
LARGEST_TIME_S = 1e15  # of a clock in seconds; a float above it cannot tell milliseconds apart
_INT: frozenset[type] = frozenset({int})
_IDS_HINT = "give a list of whole numbers; text is encoded by the model's tokenizer"
_HINTS = {
    "namespace": "derive one from engine.info.namespace",
    "sampling": "SamplingSpec(max_tokens=32)",
    "constraint": 'ConstraintSpec.json_schema({...}), ConstraintSpec.choices(("a", "b")) or ConstraintSpec(kind="regex", text=...)',
    "label": "Label(name='a')",
}
T = TypeVar("T")


def checked_request(request: Request, info: WorkerInfo) -> Request:
    """The request as plain data, if it can be computed with this vocabulary; the same one if it holds nothing else already.

    Raises:
        SpecError: a field of the wrong type or out of range, or a token id that is none.
        SamplingError: a stop id or a logit bias outside the vocabulary.
    """
    if not isinstance(request, (GenerateRequest, ScoreRequest)):
        raise SpecError(f"{shown(request)} is no request", hint="submit a GenerateRequest or a ScoreRequest")
    checked: dict[str, Any] = {
        "request_id": utf8_text("request_id", request.request_id),
        "prompt_ids": prompt_ids(request.prompt_ids, info.vocab_size),
        "namespace": instance("namespace", request.namespace, Namespace),
        "priority": whole("priority", request.priority, *PRIORITIES),
        "critical_tokens": whole("critical_tokens", request.critical_tokens, 0),
        "label": _label(request.label),
    }
    if not isinstance(order := request.order, BranchOrder):
        checked["order"] = tuple(whole("order entry", i, 0) for i in entries("order", order, "order=(0, 1)"))
    if request.lease is not None:
        checked["lease"] = whole("lease", request.lease, -MOST_CHILDREN, MOST_CHILDREN)
    if request.deadline_s is not None:
        checked["deadline_s"] = number("deadline_s", request.deadline_s, -LARGEST_TIME_S, LARGEST_TIME_S)
    if isinstance(request, ScoreRequest):
        given = entries("continuations", request.continuations, "give a list of lists of token ids")
        checked["continuations"] = tuple(token_ids("continuations", path, info.vocab_size) for path in given)
        flag("unconditional", request.unconditional)
    else:
        sampling = instance("sampling", request.sampling, SamplingSpec)
        if sampling.stop_token_ids or sampling.logit_bias:
            _check_vocabulary(sampling, info.vocab_size)
        if sampling.stop_regex:
            finders((), sampling.stop_regex)
        if sampling.max_tokens is None:  # it gets what there is room for
            sampling = sampling.fitting(len(checked["prompt_ids"]), info.context_tokens)
        checked["sampling"] = sampling
        if request.constraint is not None:
            instance("constraint", request.constraint, ConstraintSpec)
        if request.prompt_logprobs is not None:
            checked["prompt_logprobs"] = whole("prompt_logprobs", request.prompt_logprobs, 0, MOST_TOKENS)
        flag("no_cache", request.no_cache)
    changed = {name: value for name, value in checked.items() if value is not getattr(request, name)}
    return replace(request, **changed) if changed else request


def instance(name: str, value: object, kind: type[T]) -> T:
    """`value`, which has to be a `kind`. Raises SpecError."""
    if not isinstance(value, kind):
        raise SpecError(f"{name}={shown(value)} is a {type(value).__name__}, no {kind.__name__}", hint=_HINTS[name])
    return value


def checked_item(place: int, item: Any) -> Item:
    """One item of a submit. Raises SpecError where it has no receiver that could be told of a fault of its request."""
    try:
        request, sink = item
    except (TypeError, ValueError):
        raise SpecError(
            f"item {place} of submit is no pair of a request and its receiver", hint="submit([(request, sink), ...])"
        ) from None
    if any(not callable(getattr(sink, method, None)) for method in ("started", "text", "done")):
        raise SpecError(
            f"the receiver of item {place} of submit has no started(), text() and done()", hint="give a Sink"
        )
    return request, sink


def refusable(request: object) -> Request:
    """What is left of a request that was refused: enough to name it, and to count its lease down."""
    request_id, lease = getattr(request, "request_id", None), getattr(request, "lease", None)
    return GenerateRequest(
        request_id=request_id if type(request_id) is str else shown(request_id),
        prompt_ids=(),
        lease=lease if type(lease) is int else None,
    )


def prompt_ids(ids: object, vocab_size: int) -> Sequence[int]:
    """The ids of a prompt; those that were checked when they were put together are taken as they are. Raises SpecError."""
    if isinstance(ids, TokenIds) and ids.highest < vocab_size:
        return ids
    return token_ids("prompt_ids", ids, vocab_size)


def token_ids(name: str, ids: object, vocab_size: int) -> tuple[int, ...]:
    """`ids` as a tuple of ints of this vocabulary; whatever counts as a whole number does. Raises SpecError."""
    plain = whole_ids(name, ids)
    if plain and (min(plain) < 0 or max(plain) >= vocab_size):
        bad = min(plain) if min(plain) < 0 else max(plain)
        raise SpecError(
            f"{name} holds {shown(bad)}; ids of this model are 0 to {vocab_size - 1}", hint="encode with its tokenizer"
        )
    return plain


def whole_ids(name: str, ids: Any) -> tuple[int, ...]:
    """`ids` as a tuple of ints. Raises SpecError for what has no order, is text, or holds anything else."""
    if not isinstance(ids, Sequence) and not (hasattr(ids, "__getitem__") and hasattr(ids, "__len__")):
        _not_ids(name, ids)
    if isinstance(ids, (str, bytes, bytearray, memoryview, Mapping)):
        _not_ids(name, ids)
    try:
        plain: tuple[int, ...] = tuple(ids)
    except TypeError:  # an array without dimensions
        _not_ids(name, ids)
    if not set(map(type, plain)) <= _INT:
        plain = tuple(whole(f"{name} entry", token_id, -MOST_TOKENS, MOST_TOKENS) for token_id in plain)
    return plain


def checked_lease(
    ids: object, space: object, children: object, info: WorkerInfo
) -> tuple[Sequence[int], Namespace, int]:
    """The arguments of `lease`. Raises SpecError."""
    tokens, namespace = prompt_ids(ids, info.vocab_size), instance("namespace", space, Namespace)
    return tokens, namespace, whole("children", children, 1, MOST_CHILDREN)


def checked_release(lease: object, children: object) -> tuple[LeaseId, int | None]:
    """The arguments of `release`. Raises SpecError."""
    count = None if children is None else whole("children", children, 0, MOST_CHILDREN)
    return whole("lease", lease, -MOST_CHILDREN, MOST_CHILDREN), count


def checked_cancel(request_ids: object, reason: object) -> tuple[tuple[str, ...], str]:
    """The arguments of `cancel`. Raises SpecError."""
    ids = entries("request_ids", request_ids, "cancel([request_id])")
    for request_id in ids:
        if not isinstance(request_id, str):
            raise SpecError(f"request id {shown(request_id)} is not a string", hint="cancel([request_id])")
    if not isinstance(reason, str):
        raise SpecError(f"reason={shown(reason)} is not a string", hint='reason="the user left"')
    return tuple(map(str.__str__, ids)), str.__str__(reason)


def known_options(options: Mapping[str, object], known: Collection[str]) -> None:
    """Refuse an option that does not exist. Raises SpecError with the nearest names."""
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, n=2, cutoff=0.5)
            meant = f"did you mean {' or '.join(near)}? " if near else ""
            raise SpecError(f"there is no option {name!r}", hint=f"{meant}options: {', '.join(sorted(known))}")


def _check_vocabulary(sampling: SamplingSpec, vocab_size: int) -> None:
    asked = {
        "stop_token_ids": sampling.stop_token_ids,
        "logit_bias": [token_id for token_id, _ in sampling.logit_bias],
    }
    for name, ids in asked.items():
        for token_id in ids:
            if token_id >= vocab_size:
                raise SamplingError(
                    f"{name} names token {token_id}; ids of this model are 0 to {vocab_size - 1}",
                    hint="encode with its tokenizer",
                )


def _label(label: object) -> Label:
    label = instance("label", label, Label)
    for name in ("run_id", "node_id", "name"):
        if not isinstance(getattr(label, name), str):
            raise SpecError(f"label.{name}={shown(getattr(label, name))} is not a string", hint="Label(name='a')")
    if label.lineage is not None and not isinstance(label.lineage, Lineage):
        raise SpecError(f"label.lineage={shown(label.lineage)} is no Lineage", hint="leave it out")
    whole("label.sample", label.sample, 0)
    whole("label.attempt", label.attempt, 0)
    return label


def _not_ids(name: str, ids: object) -> NoReturn:
    raise SpecError(f"{name}={shown(ids)} is a {type(ids).__name__}, not a list of token ids", hint=_IDS_HINT)


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


class NativeRequests:
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
        constraint, alternatives = options.get("constraint"), options.get("prompt_logprobs")
        return GenerateRequest(
            request_id=self._next_id(),
            prompt_ids=self.prompt_ids(prompt),
            sampling=sampling,
            constraint=None if constraint is None else instance("constraint", constraint, ConstraintSpec),
            namespace=self._space(options),
            priority=whole("priority", options.get("priority", 0), *PRIORITIES),
            deadline_s=self._deadline(options),
            prompt_logprobs=None if alternatives is None else whole("prompt_logprobs", alternatives, 0, MOST_TOKENS),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(SchedulerConfig):
    """The scheduler's options, and the loop's own.

    gather_s: an idle engine that gets a request waits until nothing more came for so long (at most 20 times) before its
        first step, so that the calls of one fork share it. 0: not at all.
    idle_check_after_s: the books (pages, owners) are checked once when nothing ran for so long.
    health_window_s: how long an incident keeps `health()` at "degraded".
    close_timeout_s: how long `close` waits for the step in flight.

    Raises:
        SpecError: an option outside its range.
    """

    gather_s: float = 0.002
    idle_check_after_s: float = 0.2
    health_window_s: float = 60.0
    close_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        SchedulerConfig.__post_init__(self)  # not super(): slots make a new class, which the zero-argument form misses
        for name in ("gather_s", "idle_check_after_s", "health_window_s", "close_timeout_s"):
            object.__setattr__(self, name, number(name, getattr(self, name), 0))
