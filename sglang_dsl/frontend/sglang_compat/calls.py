"""`gen`, `select`, turns and the rest, with SGLang's parameters.

A call takes what it leaves out from the run (`f.run(temperature=0)`), as in SGLang: so it becomes one of our calls only
when it is appended. What a run gives is kept in a context variable, which reaches branches, threads and tasks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import Any, NoReturn

from ...errors import ProgramError, SpecError
from ...ir.execution import ChoiceScore, Meta, Outcome, TokenScore
from ...ir.nodes import Operation, Piece, Reasoning, Reference
from ...ir.specs import SelectMethod
from .. import primitives
from ..bindings import Convert, JoinBinding, NodeBinding
from ..call_sites import caller_origin
from ..expressions import (
    Chain,
    Deferred,
    Expression,
    Generation,
    Handle,
    Image,
    Selection,
    TurnBegin,
    TurnEnd,
    WholeTurn,
)

token_length_normalized: SelectMethod = "mean"
greedy_token_selection: SelectMethod = "greedy"
unconditional_likelihood_normalized: SelectMethod = "unconditional"

Texts = str | Sequence[str] | None
_THINK = Reasoning("<think>", "</think>")
REASONING_MARKERS: Mapping[str, Reasoning] = {
    **dict.fromkeys(("deepseek-r1", "deepseek-v3", "qwen3", "qwen3-thinking", "glm45", "step3", "interns1"), _THINK),
    "kimi": Reasoning("◁think▷", "◁/think▷"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """SGLang's sampling parameters; None means not given. `top_k` -1 means off, as there."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    n: int | None = None
    stop: Texts = None
    stop_token_ids: Sequence[int] | None = None
    stop_regex: Texts = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    ignore_eos: bool | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None

    def over(self, outer: Sampling) -> Sampling:
        """These, with what is not given taken from `outer`."""
        given = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        return replace(outer, **given)

    def as_options(self) -> dict[str, Any]:
        """The options of our `gen`."""
        given: dict[str, Any] = {
            "max_tokens": self.max_new_tokens,
            "min_tokens": self.min_new_tokens,
            "stop": self.stop or None,
            "stop_token_ids": self.stop_token_ids,
            "stop_regex": self.stop_regex or None,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": 0 if self.top_k == -1 else self.top_k,
            "min_p": self.min_p,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "ignore_eos": self.ignore_eos,
            "logprobs": (self.top_logprobs_num or 0) if self.return_logprob else None,
            "n": self.n if self.n is not None and self.n > 1 else None,
        }
        return {name: value for name, value in given.items() if value is not None}


SGLANG_DEFAULTS = Sampling(max_new_tokens=128)
run_sampling: ContextVar[Sampling] = ContextVar("sglang_dsl.sglang_sampling", default=SGLANG_DEFAULTS)


class SglGen(Deferred[Any]):
    """A `gen` that waits for the run's defaults."""

    __slots__ = ("_convert", "_options", "_sampling", "reasoning")

    def __init__(
        self, name: str | None, sampling: Sampling, options: dict[str, Any], convert: Convert | None = None
    ) -> None:
        self.name = name
        self._sampling = sampling
        self._options = options
        self._convert = convert  # of the text, where the value is what our own `gen` would not make of it
        self.reasoning: Reasoning | None = None
        self._made(SGLANG_DEFAULTS)  # so that a bad option is an error on its own line

    def __repr__(self) -> str:
        return f"gen({self.name!r})"

    def made(self) -> Generation[Any]:
        """Our call, with the run's defaults."""
        return self._made(run_sampling.get())

    def follows(self, bound: NodeBinding) -> Iterator[Piece | tuple[Handle[Any], NodeBinding]]:
        """The first of n samples, with which the text goes on; and the name of its reasoning part, if it has one."""
        if isinstance(bound, JoinBinding):
            yield Reference(bound.node_id, (Operation("item", (0,)),))
        if self.reasoning is not None and self.name is not None:
            part: Generation[str] = Generation(f"{self.name}_reasoning_content", {}, convert=None, check=None, n=None)
            yield part, ReasoningPart(bound.node_id, part, self.reasoning.begin)

    def with_reasoning(self, reasoning: Reasoning) -> SglGen:
        """The same call with its reasoning kept apart."""
        copy = SglGen(self.name, self._sampling, self._options, self._convert)
        copy.reasoning = reasoning
        return copy

    def _made(self, defaults: Sampling) -> Generation[Any]:
        options = {**self._sampling.over(defaults).as_options(), **self._options}
        if self.reasoning is not None:
            options["reasoning"] = replace(self.reasoning, begin="")  # nothing is put into the prompt
        made = primitives.gen(self.name, **options)
        if self._convert is None:
            return made
        fields = {**made.fields, "decode": "text"}
        return Generation(self.name, fields, convert=self._convert, check=None, n=made.n, given=made.given)


class ReasoningPart(NodeBinding):
    """The reasoning in front of a call's answer. `begin`: the marker that opens it."""

    __slots__ = ("begin",)

    def __init__(self, node_id: str, source: object, begin: str) -> None:
        super().__init__(node_id, None, source)
        self.begin = begin

    def finish(self, outcome: Outcome) -> str:
        """It stands in the call's meta. The model opens it itself, or its template did."""
        return outcome.meta.reasoning.lstrip().removeprefix(self.begin).strip("\n") if outcome.meta is not None else ""


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: Texts = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: Texts = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: type | str | None = None,
    choices: Sequence[str] | None = None,
    choices_method: SelectMethod | None = None,
    regex: str | None = None,
    json_schema: str | Mapping[str, Any] | type | None = None,
) -> SglGen | Selection[str]:
    """SGLang's `gen`, with its 23 parameters. With `choices` it is a `select`.

    Unlike there: the value read has the type asked for (`dtype=int` is an int), `choices=[]` is an error, the caller's lists
    are never changed, and `json_schema` may be a dict or a class (then the value is data or an object; with a string it is
    the text, as there).
    """
    if choices is not None:
        return select(name, choices, 0.0, choices_method or token_length_normalized)
    sampling = Sampling(
        max_new_tokens=max_tokens, min_new_tokens=min_tokens, n=n, stop=stop, stop_token_ids=stop_token_ids,
        stop_regex=stop_regex, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p,
        frequency_penalty=frequency_penalty, presence_penalty=presence_penalty, ignore_eos=ignore_eos,
        return_logprob=return_logprob, logprob_start_len=logprob_start_len, top_logprobs_num=top_logprobs_num,
        return_text_in_logprobs=return_text_in_logprobs,
    )  # fmt: skip
    convert = _is_true if dtype in (bool, "bool") else _text if isinstance(json_schema, str) else None
    return SglGen(name, sampling, _shape(dtype, regex, json_schema), convert)


def gen_int(name: str | None = None, *args: Any, **kwargs: Any) -> SglGen | Selection[str]:
    """`gen` of an integer."""
    return gen(name, *args, **{**kwargs, "dtype": int})


def gen_string(name: str | None = None, *args: Any, **kwargs: Any) -> SglGen | Selection[str]:
    """`gen` of a quoted string, of letters, digits and spaces, as SGLang's `dtype=str`."""
    return gen(name, *args, **{**kwargs, "dtype": str})


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: SelectMethod = token_length_normalized,
) -> Selection[str]:
    """SGLang's `select`. `temperature` has to be 0: the best choice is taken."""
    if temperature > 1e-5:
        raise SpecError(
            f"select takes the best choice, so temperature={temperature} has no meaning",
            hint="leave temperature out; to sample, gen(regex='a|b')",
            origin=caller_origin(),
        )
    return primitives.select(name, choices or (), method=choices_method)


def image(source: Any) -> Image:
    """An image; no backend of this version takes one."""
    return primitives.image(source)


def video(path: str, num_frames: int) -> NoReturn:
    """A video; no backend of this version takes one."""
    raise ProgramError("no backend of this version takes videos", hint="describe it in text", origin=caller_origin())


def separate_reasoning(expression: Any, model_type: str) -> Expression:
    """Keep the reasoning of the gens inside apart: `X` is the answer, `X_reasoning_content` the reasoning."""
    markers = REASONING_MARKERS.get(model_type)
    if markers is None:
        raise SpecError(
            f"model_type={model_type!r} is unknown",
            hint=f"one of {', '.join(REASONING_MARKERS)}",
            origin=caller_origin(),
        )
    return Chain((_apart(expression, markers),))


def _apart(expression: Any, markers: Reasoning) -> Any:
    match expression:
        case SglGen():
            return expression.with_reasoning(markers)
        case Chain(parts=parts):
            return Chain(tuple(_apart(part, markers) for part in parts))
        case WholeTurn(role=role, content=content):
            return WholeTurn(role, tuple(_apart(part, markers) for part in content))
        case list() | tuple():
            return Chain(tuple(_apart(part, markers) for part in expression))
    return expression


def system(expr: Any = None) -> WholeTurn:
    """A system turn."""
    return _turn("system", expr)


def user(expr: Any = None) -> WholeTurn:
    """A user turn."""
    return _turn("user", expr)


def assistant(expr: Any = None) -> WholeTurn:
    """An assistant turn."""
    return _turn("assistant", expr)


def _turn(role: str, expr: Any) -> WholeTurn:
    return primitives.role(role) if expr is None else primitives.role(role, expr)


def _parts(role: str) -> tuple[Callable[[], TurnBegin], Callable[[], TurnEnd]]:
    return lambda: TurnBegin(role), lambda: TurnEnd(role)


system_begin, system_end = _parts("system")
user_begin, user_end = _parts("user")
assistant_begin, assistant_end = _parts("assistant")

_TYPES: Mapping[Any, Any] = {
    int: {"type": int}, "int": {"type": int},
    float: {"type": float}, "float": {"type": float},
    bool: {"choices": ("True", "False")}, "bool": {"choices": ("True", "False")},
    str: {"regex": r'"[\w\d\s]*"'}, "str": {"regex": r'"[\w\d\s]*"'}, "string": {"regex": r'"[\w\d\s]*"'},
}  # fmt: skip


def _shape(dtype: Any, regex: str | None, json_schema: Any) -> dict[str, Any]:
    """What the output has to look like, as options of our `gen`."""
    given = [
        name for name, value in (("dtype", dtype), ("regex", regex), ("json_schema", json_schema)) if value is not None
    ]
    if len(given) > 1:
        raise SpecError(f"{' and '.join(given)} exclude each other", hint=f"keep {given[0]}", origin=caller_origin())
    if dtype is not None:
        if dtype not in _TYPES:
            raise SpecError(f"dtype={dtype!r} is unknown", hint="int, float, bool or str", origin=caller_origin())
        return dict(_TYPES[dtype])
    if json_schema is not None:
        return {"schema": _parsed(json_schema) if isinstance(json_schema, str) else json_schema}
    return {} if regex is None else {"regex": regex}


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"


def _text(text: str) -> str:
    return text


def _parsed(json_schema: str) -> Any:
    try:
        return json.loads(json_schema)
    except ValueError as error:
        raise SpecError(f"json_schema is not JSON: {error}", hint="give a dict", origin=caller_origin()) from error


# --- what is known of a call, under SGLang's keys --------------------------------------------------------------------


def meta_info(meta: Meta) -> dict[str, Any]:
    """Counts, finish reason, and log-probabilities as `[logprob, id, text]`."""
    info: dict[str, Any] = {
        "prompt_tokens": meta.prompt_tokens,
        "completion_tokens": meta.generated_tokens,
        "cached_tokens": meta.cached_tokens,
        "finish_reason": _finish_reason(meta),
    }
    if meta.token_scores:
        info["output_token_logprobs"] = [_score(score) for score in meta.token_scores]
        info["output_top_logprobs"] = [_top(score) for score in meta.token_scores]
    if meta.choices:
        info["normalized_prompt_logprobs"] = [choice.score for choice in meta.choices]
        info["input_token_logprobs"] = [_choice(choice) for choice in meta.choices]
    return info


def partial_info(call_id: str, pieces: int) -> dict[str, Any]:
    """What is known of a call while it writes: so many pieces of text have come. `meta_info` comes at its end."""
    return {"id": call_id, "completion_tokens": pieces, "finish_reason": None}


def _finish_reason(meta: Meta) -> dict[str, Any]:
    if meta.finish_reason == "length":
        return {"type": "length", "length": meta.generated_tokens}
    if meta.finish_reason == "cancelled":
        return {"type": "abort", "message": "cancelled"}
    return {"type": "stop", "matched": meta.matched}


def _score(score: TokenScore) -> list[Any]:
    return [score.logprob, score.token_id, score.token_bytes.decode("utf-8", "replace")]


def _top(score: TokenScore) -> list[list[Any]]:
    return [[logprob, token_id, text.decode("utf-8", "replace")] for token_id, logprob, text in score.top]


def _choice(choice: ChoiceScore) -> list[list[Any]]:
    return [[logprob, token_id, None] for token_id, logprob in zip(choice.token_ids, choice.logprobs, strict=True)]
