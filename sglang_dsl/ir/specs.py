"""Options of calls and runs: frozen, validated on construction, serialisable.

Everything the rest of the project knows about *how* a call is to be made stands here. A spec that exists is valid
except for what only a model can tell (vocabulary, context length, constraint compilation).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol, get_args

from ..errors import SpecError

ConstraintKind = Literal["json_schema", "regex", "choices", "lark", "ebnf"]
Decode = Literal["text", "json"]
SelectMethod = Literal["mean", "sum", "greedy", "unconditional"]
JoinMode = Literal["all", "settle", "first", "quorum", "vote", "best", "concat"]

DEFAULT_MAX_TOKENS = 256
DEFAULT_MAX_WHITESPACE = 8  # longest run of JSON whitespace outside strings (cases.md 49: chosen twice by others)


def _number(
    name: str,
    value: float,
    low: float,
    high: float = math.inf,
    *,
    above: bool = False,
    whole: bool = False,
) -> None:
    """Raise SpecError unless `value` is a finite number in [low, high] (or (low, high] with `above`)."""
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        kind = "a whole number" if whole else "a number"
        raise SpecError(f"{name}={value!r} is not {kind}", hint=f"give {name} as {kind}")
    if not math.isfinite(value) or value > high or (value <= low if above else value < low):
        bounds = f"{'above' if above else 'at least'} {low}" + (f" and at most {high}" if high != math.inf else "")
        raise SpecError(f"{name}={value!r} is out of range", hint=f"{name} has to be {bounds}")


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
        if self.max_tokens is not None:
            _number("max_tokens", self.max_tokens, 1, whole=True)
        _number("min_tokens", self.min_tokens, 0, whole=True)
        _number("temperature", self.temperature, 0)
        _number("top_p", self.top_p, 0, 1)
        _number("top_k", self.top_k, 0, whole=True)
        _number("min_p", self.min_p, 0, 1)
        _number("repetition_penalty", self.repetition_penalty, 0, above=True)
        _number("frequency_penalty", self.frequency_penalty, -2, 2)
        _number("presence_penalty", self.presence_penalty, -2, 2)
        if self.seed is not None:
            _number("seed", self.seed, -(2**63), 2**64 - 1, whole=True)
        if self.logprobs is not None:
            _number("logprobs", self.logprobs, 0, whole=True)
        for token_id, bias in self.logit_bias:
            _number("logit_bias token id", token_id, 0, whole=True)
            _number("logit_bias value", bias, -100, 100)
        for token_id in self.stop_token_ids:
            _number("stop_token_ids entry", token_id, 0, whole=True)
        for text in self.stop + self.stop_regex:
            if not isinstance(text, str) or not text:
                raise SpecError(f"stop {text!r} is not a non-empty string", hint="leave `stop` out to have none")
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
        if self.max_whitespace is not None:
            _number("max_whitespace", self.max_whitespace, 0, whole=True)

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


class Backend(Protocol):
    """What options know of a backend object; `ir.execution.Executor` says what it has to be."""

    @property
    def name(self) -> str:
        """For records and messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Everything about a run that is not the program's own argument.

    backend: an Executor, or the name of one (`"local"`, `"local:smollm2"`, `"mock"`, ...); None takes the innermost
    `use(...)`, else the `SGLANG_DSL_BACKEND` environment variable, else `"local"`.
    models: further backends by alias, for `gen(model="judge")`.
    seed: None draws one and records it. namespace: cache isolation key of this user. deadline_s: seconds from start.
    priority: higher first. token_budget: most tokens the run may generate in all.
    """

    backend: str | Backend | None = None
    models: Mapping[str, str | Backend] = field(default_factory=dict)
    seed: int | None = None
    namespace: str = ""
    deadline_s: float | None = None
    priority: int = 0
    token_budget: int | None = None

    def __post_init__(self) -> None:
        if self.seed is not None:
            _number("seed", self.seed, -(2**63), 2**64 - 1, whole=True)
        if self.deadline_s is not None:
            _number("deadline_s", self.deadline_s, 0, above=True)
        _number("priority", self.priority, -(2**31), 2**31, whole=True)
        if self.token_budget is not None:
            _number("token_budget", self.token_budget, 1, whole=True)
        if not isinstance(self.namespace, str):
            raise SpecError(f"namespace={self.namespace!r} is not a string", hint="use a string such as the user's id")

    def over(self, outer: RunOptions) -> RunOptions:
        """These options, with whatever was left at its default taken from `outer`; `models` are merged."""
        default = RunOptions()
        merged = {
            f.name: getattr(self if getattr(self, f.name) != getattr(default, f.name) else outer, f.name)
            for f in fields(self)
        }
        merged["models"] = {**outer.models, **self.models}
        return RunOptions(**merged)
