"""Options of calls and runs: frozen, validated on construction, serialisable.

Everything the rest of the project knows about *how* a call is to be made stands here. A spec that exists is valid
except for what only a model can tell (vocabulary, context length, constraint compilation).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import partial
from numbers import Real
from operator import index as as_index
from typing import Any, Literal, Protocol, TypedDict, get_args

from ..errors import SpecError

ConstraintKind = Literal["json_schema", "regex", "choices", "lark", "ebnf"]
Decode = Literal["text", "json"]
SelectMethod = Literal["mean", "sum", "greedy", "unconditional"]
JoinMode = Literal["all", "settle", "first", "quorum", "vote", "best", "concat"]

DEFAULT_MAX_TOKENS = 256
SHOWN_CHARACTERS = 80  # of a value, in a message
PRIORITIES = (-(2**31), 2**31)
MOST_BRANCHES = (
    2**16
)  # of one fork or call: each is a state of its own, and a slip in a number must not fill the memory
MOST_TOKENS = 2**31 - 1  # a count of tokens above this is a mistake
DEFAULT_MAX_DEPTH = 500
DEFAULT_MAX_WHITESPACE = 8  # longest run of JSON whitespace outside strings (cases.md 49: chosen twice by others)


def whole(name: str, value: Any, low: float, high: float = math.inf) -> int:
    """`value` as an int in [low, high]. Whatever counts as a whole number does (numpy's ints too), but no bool.

    Raises:
        SpecError: it is none, or out of range.
    """
    try:
        plain = value if type(value) is int else int.__index__(as_index(value))
    except TypeError:
        plain = None
    if plain is None or isinstance(value, bool):
        raise SpecError(f"{name}={shown(value)} is not a whole number", hint=f"give {name} as a whole number")
    if not low <= plain <= high:
        raise _out_of_range(name, plain, low, high)
    return plain


def number(name: str, value: Any, low: float, high: float = math.inf, *, above: bool = False) -> float:
    """`value` as a finite number in [low, high] (or (low, high] with `above`); numpy's numbers count, bools do not.

    Raises:
        SpecError: it is none, or out of range.
    """
    kind = type(value)
    if kind is not float and kind is not int and (kind is bool or not isinstance(value, Real)):
        raise SpecError(f"{name}={shown(value)} is not a number", hint=f"give {name} as a number")
    try:
        size = float(value)
    except OverflowError:
        size = math.inf
    if not (low < size if above else low <= size) or size > high or size == math.inf:
        raise _out_of_range(name, value, low, high, above=above)
    return int(value) if kind is int else size


def flag(name: str, value: object) -> bool:
    """`value`, which has to be True or False. Raises SpecError."""
    if value is not True and value is not False:
        raise SpecError(f"{name}={shown(value)} is neither True nor False", hint=f"{name}=True")
    return value


def one_of(name: str, value: object, known: Iterable[object]) -> None:
    """Raise SpecError, with the nearest known value, for one that is not known."""
    known = tuple(known)
    if any(value == each and type(value) is type(each) for each in known):
        return
    near = (
        get_close_matches(value, [each for each in known if isinstance(each, str)], n=1)
        if isinstance(value, str)
        else []
    )
    raise SpecError(
        f"{name}={shown(value)} is unknown" + (f"; did you mean {near[0]!r}?" if near else ""),
        hint=f"one of {', '.join(map(repr, known))}",
    )


def utf8_text(name: str, value: object) -> str:
    """`value` as a str that can be written as UTF-8, which a text with lone surrogates cannot. Raises SpecError."""
    if not isinstance(value, str):
        raise SpecError(f"{name}={shown(value)} is not a string", hint=f"give {name} as a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise SpecError(
            f"{name} holds the lone surrogate {value[error.start]!r} at character {error.start}, which no text in UTF-8 has",
            hint='clean the text first: text.encode("utf-8", "replace").decode()',
        ) from None
    return str.__str__(value)


def entries(name: str, value: object, hint: str) -> tuple[Any, ...]:
    """`value` as a tuple: an ordered collection, which a string, a set or a mapping is not. Raises SpecError."""
    if type(value) is tuple:
        return value
    try:
        if not isinstance(value, (str, bytes, bytearray, Set, Mapping)) and isinstance(value, Iterable):
            return tuple(value)
    except TypeError:  # an array without dimensions
        pass
    raise SpecError(f"{name}={shown(value)} is not a list", hint=hint)


def _out_of_range(name: str, value: object, low: float, high: float, *, above: bool = False) -> SpecError:
    bounds = f"{'above' if above else 'at least'} {low}" + (f" and at most {high}" if high != math.inf else "")
    return SpecError(f"{name}={shown(value)} is out of range", hint=f"{name} has to be {bounds}")


def spelled(value: object) -> str:
    """Its `repr`, or its type where that raises: a huge int has no decimal text, and deep lists are too much for Python."""
    try:
        return repr(value)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - the value is the caller's, and so is its repr
        return f"<{type(value).__name__}>"


def shown(value: object) -> str:
    """A value in a message: short, whatever it is."""
    text = spelled(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


_WHOLE = (("min_tokens", 0, MOST_TOKENS), ("top_k", 0, MOST_TOKENS))
_NUMBERS = (
    ("temperature", 0, math.inf, False),
    ("top_p", 0, 1, False),
    ("min_p", 0, 1, False),
    ("repetition_penalty", 0, math.inf, True),
    ("frequency_penalty", -2, 2, False),
    ("presence_penalty", -2, 2, False),
)


def _bias(pair: object) -> tuple[int, float]:
    both = entries("logit_bias entry", pair, "logit_bias=((id, 5.0),)")
    if len(both) != 2:
        raise SpecError(f"logit_bias entry {shown(pair)} is not a pair", hint="logit_bias=((id, 5.0),)")
    return whole("logit_bias token id", both[0], 0, MOST_TOKENS), number("logit_bias value", both[1], -100, 100)


def _stop(text: object) -> str:
    if not isinstance(text, str) or not str.__len__(text):
        raise SpecError(f"stop {shown(text)} is not a non-empty string", hint="leave `stop` out to have none")
    return utf8_text("stop", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSpec:
    """How one call's tokens are chosen and when it stops.

    max_tokens None means as many as there is room for, at most 256. temperature 0 means greedy. `top_k` 0 means off. `stop` strings and `stop_regex` are matched against generated
    text only, never the prompt; the earliest match wins; the match is dropped from the text unless `include_stop`.
    `seed` None means: derived from the run's seed and the node id. `logprobs` None means none, k means the chosen
    token's and the k best per position (0 = chosen only).
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        put = partial(object.__setattr__, self)  # numbers of other libraries become Python's own
        if self.max_tokens is not None:
            put("max_tokens", whole("max_tokens", self.max_tokens, 1, MOST_TOKENS))
        for name, low, high in _WHOLE:
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                put(name, whole(name, value, low, high))
        for name, least, most, above in _NUMBERS:
            if (plain := number(name, value := getattr(self, name), least, most, above=above)) is not value:
                put(name, plain)
        if self.seed is not None:
            put("seed", whole("seed", self.seed, -(2**63), 2**64 - 1))
        if self.logprobs is not None:
            put("logprobs", whole("logprobs", self.logprobs, 0, MOST_TOKENS))
        flag("include_stop", self.include_stop)
        flag("ignore_eos", self.ignore_eos)
        if self.logit_bias != ():
            put("logit_bias", tuple(map(_bias, entries("logit_bias", self.logit_bias, "logit_bias=((id, 5.0),)"))))
        if self.stop_token_ids != ():
            ids = entries("stop_token_ids", self.stop_token_ids, "stop_token_ids=(2,)")
            put("stop_token_ids", tuple(whole("stop_token_ids entry", i, 0, MOST_TOKENS) for i in ids))
        for name in ("stop", "stop_regex"):
            if (given := getattr(self, name)) != ():
                put(name, tuple(_stop(text) for text in entries(name, given, f'{name}=("END",)')))
        if self.min_tokens > self.most_tokens:
            raise SpecError(
                f"min_tokens={self.min_tokens} is more than max_tokens={self.most_tokens}",
                hint="lower min_tokens, or raise max_tokens",
            )

    @property
    def most_tokens(self) -> int:
        """What may be generated at most: `max_tokens`, or its default."""
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    def fitting(self, prompt_tokens: int, context_tokens: int) -> SamplingSpec:
        """These options after a prompt of so many tokens. What was not asked for is clamped to what is left, one token at
        least; a given `max_tokens` stays as it is.
        """
        if self.max_tokens is not None:
            return self
        left = max(1, self.min_tokens, context_tokens - prompt_tokens)
        return replace(self, max_tokens=min(DEFAULT_MAX_TOKENS, left))

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken (so equal calls may share one computation)."""
        return self.temperature == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintSpec:
    """What text a call may produce. `text` is the canonical source, so equal constraints compare and hash equal.

    kind: `json_schema` (canonical JSON of the schema), `regex` (the whole output matches), `choices` (JSON list of
    strings), `lark`, `ebnf`. `max_whitespace` bounds runs of whitespace outside JSON strings; None leaves it open.
    """

    kind: ConstraintKind
    text: str
    max_whitespace: int | None = DEFAULT_MAX_WHITESPACE

    def __post_init__(self) -> None:
        if self.kind not in get_args(ConstraintKind):
            raise SpecError(f"constraint kind {self.kind!r} is unknown", hint=f"one of {get_args(ConstraintKind)}")
        utf8_text(f"the {self.kind} constraint's text", self.text)
        if self.max_whitespace is not None:
            whitespace = whole("max_whitespace", self.max_whitespace, 0, MOST_TOKENS)
            object.__setattr__(self, "max_whitespace", whitespace)

    @classmethod
    def json_schema(
        cls, schema: Mapping[str, Any] | bool, *, max_whitespace: int | None = DEFAULT_MAX_WHITESPACE
    ) -> ConstraintSpec:
        """From a schema as a dict. Property order is kept: it is the order in which the model writes the fields."""
        try:
            text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise SpecError(
                f"the schema is not JSON: {error}", hint="give a JSON schema as a dict of plain JSON values"
            ) from error
        return cls(kind="json_schema", text=text, max_whitespace=max_whitespace)

    @classmethod
    def choices(cls, choices: tuple[str, ...]) -> ConstraintSpec:
        """Exactly one of `choices`."""
        return cls(kind="choices", text=json.dumps(list(choices), ensure_ascii=False))


SAMPLING_NAMES = tuple(f.name for f in fields(SamplingSpec))


class SamplingOptions(TypedDict, total=False):
    """The fields of SamplingSpec as they are written by name: in `gen`, and in `use`."""

    max_tokens: int | None
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float] | None
    seed: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    stop_regex: str | Sequence[str]
    include_stop: bool
    ignore_eos: bool
    logprobs: int | None


def sampling_defaults(given: Mapping[str, Any] | SamplingSpec) -> dict[str, Any]:
    """What a run says of the sampling of calls that leave it out, by field of SamplingSpec; None is not given.

    Raises:
        SpecError: not a mapping, an unknown name, or a value outside its range.
    """
    if isinstance(given, SamplingSpec):
        usual = SamplingSpec()
        given = {name: getattr(given, name) for name in SAMPLING_NAMES if getattr(given, name) != getattr(usual, name)}
    if not isinstance(given, Mapping):
        raise SpecError(f"sampling={shown(given)} is not a mapping", hint='sampling={"temperature": 0}')
    unknown = [name for name in given if name not in SAMPLING_NAMES]
    if unknown:
        raise SpecError(f"sampling has no option {shown(unknown[0])}", hint=f"one of {', '.join(SAMPLING_NAMES)}")
    values = {name: value for name, value in given.items() if value is not None}
    for name in ("stop", "stop_regex", "stop_token_ids"):
        if name in values:
            values[name] = (values[name],) if isinstance(values[name], str) else tuple(values[name])
    if isinstance(values.get("logit_bias"), Mapping):
        values["logit_bias"] = tuple(values["logit_bias"].items())
    spec = SamplingSpec(**values)
    return {name: getattr(spec, name) for name in values}


class Backend(Protocol):
    """What options know of a backend object; `ir.execution.Executor` says what it has to be."""

    @property
    def name(self) -> str:
        """For records and messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Everything about a run that is not the program's own argument.

    backend: an Executor, or the name of one (`"local"`, `"local:smollm2"`, `"mock"`, ...); None takes the innermost
    `use(...)`, else what `set_default_backend` set, else the `SGLANG_DSL_BACKEND` environment variable, else `"local"`.
    models: further backends by alias, for `gen(model="judge")`.
    seed: None draws one and records it. namespace: cache isolation key of this user. deadline_s: seconds from start.
    priority: higher first. token_budget: most tokens the run may generate in all. max_depth: how deep programs, and the bodies
    of `map`, may call each other; so may loops and switches, and runs inside runs: recursion without an end is an error there. sampling: options of `SamplingSpec` for every
    `gen` that leaves them out, as a dict: `{"temperature": 0}`; merged with those of the surroundings.
    """

    backend: str | Backend | None = None
    models: Mapping[str, str | Backend] = field(default_factory=dict)
    seed: int | None = None
    namespace: str = ""
    deadline_s: float | None = None
    priority: int = 0
    token_budget: int | None = None
    max_depth: int = DEFAULT_MAX_DEPTH
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        put = partial(object.__setattr__, self)
        if self.seed is not None:
            put("seed", whole("seed", self.seed, -(2**63), 2**64 - 1))
        if self.deadline_s is not None:
            put("deadline_s", number("deadline_s", self.deadline_s, 0, above=True))
        put("priority", whole("priority", self.priority, *PRIORITIES))
        if self.token_budget is not None:
            put("token_budget", whole("token_budget", self.token_budget, 1))
        put("namespace", utf8_text("namespace", self.namespace))
        if not isinstance(self.models, Mapping):
            raise SpecError(f"models={shown(self.models)} is not a mapping", hint='models={"judge": "local:smollm2"}')
        for alias in self.models:
            utf8_text("the name of a model", alias)
        put("max_depth", whole("max_depth", self.max_depth, 1))
        put("sampling", sampling_defaults(self.sampling))

    def over(self, outer: RunOptions) -> RunOptions:
        """These options, with whatever was left at its default taken from `outer`; `models` and `sampling` are merged."""
        default = RunOptions()
        merged = {
            f.name: getattr(self if getattr(self, f.name) != getattr(default, f.name) else outer, f.name)
            for f in fields(self)
        }
        merged["models"] = {**outer.models, **self.models}
        merged["sampling"] = {**outer.sampling, **self.sampling}
        return RunOptions(**merged)
