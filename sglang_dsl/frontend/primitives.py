"""The calls a program makes: `gen`, `select`; and text that is not plain: `raw`, `image`.

Each gives an inert expression; `s += ...` makes it a call. Options are checked where they are written.

Turns of a conversation. What a turn's markers are is a fact of the model's template, not decided here.

s += user("Name a metal.")                  a whole turn
with s.assistant(): s += gen("metal")       the with-form, closed also where the block raises
s += assistant_begin() ... s += assistant_end()
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack, get_args, overload

from ..errors import ConstraintError, DslError, RoleError, SpecError
from ..ir.nodes import Reasoning
from ..ir.specs import (
    MOST_BRANCHES,
    MOST_TOKENS,
    ConstraintSpec,
    SamplingOptions,
    SamplingSpec,
    SelectMethod,
    flag,
    number,
    shown,
    utf8_text,
    whole,
)
from .call_sites import caller_origin
from .expressions import (
    Chain,
    Expression,
    Generation,
    Image,
    Mention,
    RawText,
    Selection,
    TurnBegin,
    TurnEnd,
    WholeTurn,
)
from .outputs import TEXT, Output, PartialOutput, check_of, check_takes_value, one_of, output_of

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=str)  # a gen without a type writes text
else:
    from typing import TypeVar

    T = TypeVar("T")
Texts: TypeAlias = str | Sequence[str]
Class: TypeAlias = type[T]  # inside `gen`, `type` is an option

_SAMPLED = ("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
            "frequency_penalty", "presence_penalty", "seed", "stop", "stop_regex", "include_stop", "ignore_eos",
            "logprobs")  # fmt: skip


class GenOptions(SamplingOptions, total=False):
    """Options of `gen` that do not change the type of its value; see there."""

    regex: str | None
    choices: Iterable[Any] | None
    grammar: str | None
    model: str | None
    retries: int
    validate: Callable[[Any], Any] | None
    partial_ok: bool
    reasoning: Reasoning | bool
    timeout_s: float | None
    heal: bool


# A checker shows all overloads to whoever misspells an option, so there are as few of them as the value's type needs.
@overload
def gen(
    name: str | None = None, *, type: Class[T] = ..., schema: Class[T] = ..., n: None = None,
    **options: Unpack[GenOptions],
) -> Generation[T]: ...  # fmt: skip
@overload
def gen(
    name: str | None = None, *, type: Class[T] = ..., schema: Class[T] = ..., n: int, **options: Unpack[GenOptions]
) -> Generation[list[T]]: ...
@overload
def gen(
    name: str | None = None, *, type: object = None, schema: object = None, n: int | None = None,
    **options: Unpack[GenOptions],
) -> Generation[Any]: ...  # fmt: skip
def gen(
    name: str | None = None,
    *,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    logit_bias: Mapping[int, float] | None = None,
    seed: int | None = None,
    stop: Texts | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: Texts | None = None,
    include_stop: bool | None = None,
    ignore_eos: bool | None = None,
    logprobs: int | None = None,
    n: int | None = None,
    type: Any = None,  # noqa: A002  the word users know from everywhere
    schema: Any = None,
    regex: str | None = None,
    choices: Iterable[Any] | None = None,
    grammar: str | None = None,
    model: str | None = None,
    retries: int = 0,
    validate: Callable[[Any], Any] | None = None,
    partial_ok: bool = False,
    reasoning: Reasoning | bool = False,
    timeout_s: float | None = None,
    heal: bool = False,
    **unknown: Any,
) -> Generation[Any]:
    """A model call that writes text.

    What it may write: `type=` or `schema=` (int, float, bool, str, Literal, Enum, dataclass, TypedDict, pydantic model, or a
    JSON schema as a dict; the value read is of that type), `regex=`, `choices=`, or `grammar=` (Lark). At most one.
    Constrained output that `max_tokens` cuts off is a TruncatedError, unless `partial_ok`.

    n: so many samples of the same prompt: the value is a list and nothing is appended. retries: further attempts after
    a value that does not fit; validate: called with the value, refuses it by returning False or raising ValueError.
    reasoning: a part in front of the answer that is kept apart, in `s.meta(...).reasoning`. model: one of the run's
    `models`. heal: let the prompt's last token be chosen anew together with the first ones. The other options are those
    of `SamplingSpec`; one that is left out is what the run says (`RunOptions.sampling`), else what `SamplingSpec` does.

    Raises:
        SpecError: an option outside its range. ConstraintError: a regex that is none.
    """
    if unknown:
        raise _unknown_option("gen", next(iter(unknown)), (*GenOptions.__annotations__, "n", "type", "schema"))
    try:
        sampling, given = _sampling(
            max_tokens,
            min_tokens,
            temperature,
            top_p,
            top_k,
            min_p,
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            seed,
            stop if stop is None else (stop,) if isinstance(stop, str) else tuple(stop),
            stop_regex if stop_regex is None else _regexes(stop_regex),
            include_stop,
            ignore_eos,
            logprobs,
        )
        if logit_bias is not None:
            sampling, given = replace(sampling, logit_bias=tuple(dict(logit_bias).items())), given | {"logit_bias"}
        if stop_token_ids is not None:
            sampling, given = replace(sampling, stop_token_ids=tuple(stop_token_ids)), given | {"stop_token_ids"}
        output = TEXT if type is schema is regex is choices is grammar is None else _output(
            wanted=type, schema=schema, regex=regex, choices=choices, grammar=grammar
        )  # fmt: skip
        if partial_ok and output.convert is not None:
            output = replace(output, convert=PartialOutput(output.convert))
        fields: dict[str, Any] = {
            "name": name if name is None or (isinstance(name, str) and name) else _name(name),
            "sampling": sampling,
        }
        if output is not TEXT:
            fields.update(constraint=output.constraint, decode=output.decode)
        if model is not None:
            fields["model"] = _model(model)
        if retries or partial_ok or reasoning is not False or timeout_s is not None or heal:
            fields.update(_rare(retries, partial_ok, reasoning, timeout_s, heal))
        if n is not None:
            _whole("n", n)
        if validate is not None:
            check_takes_value("validate", validate, _VALIDATE_HINT)
    except DslError as error:
        raise error.at(caller_origin()) from error.__cause__
    except (TypeError, ValueError) as error:  # a list where a number belongs, a number or a text where a list belongs
        raise SpecError(
            f"an option has a value of the wrong kind: {error}", hint="see help(gen)", origin=caller_origin()
        ) from error
    check = check_of(output, validate) if output.checks or validate is not None else None
    return Generation(name, fields, convert=output.convert, check=check, n=n, given=given)


@overload
def select(
    name: str | None, choices: Iterable[str | Mention], *, method: SelectMethod = "mean", model: str | None = None
) -> Selection[str]: ...
@overload
def select(
    name: str | None = None,
    *,
    choices: Iterable[str | Mention],
    method: SelectMethod = "mean",
    model: str | None = None,
) -> Selection[str]: ...
def select(
    name: str | None = None,
    choices: Iterable[str | Mention] = (),
    *,
    method: SelectMethod = "mean",
    model: str | None = None,
    **unknown: Any,
) -> Selection[str]:
    """The best of several texts under the model; appended, and the value.

    method: "mean" (log-probability per token), "sum" (total log-probability), "greedy" (token by token), "unconditional"
    (mean gain over the same text without the prompt). `s.meta(...).choices` has every choice's token scores.

    Raises:
        SpecError: no choices, something that is not text, or an unknown method.
    """
    if unknown:
        raise _unknown_option("select", next(iter(unknown)), ("name", "choices", "method", "model"))
    try:
        name = _name(name)
        listed = listed_choices(choices, 'select("kind", ["a", "b"])', "select has no choices")
        plain = [choice for choice in listed if not isinstance(choice, Mention)]
        output = one_of(plain, "choices") if any(isinstance(choice, Enum) for choice in plain) else TEXT
        _model(model)
    except DslError as error:
        raise error.at(caller_origin()) from error.__cause__
    texts = tuple(str.__str__(choice.value) if isinstance(choice, Enum) else choice for choice in listed)
    if not isinstance(method, str) or method not in get_args(SelectMethod):
        raise SpecError(
            f"method={shown(method)} is unknown", hint=f"one of {get_args(SelectMethod)}", origin=caller_origin()
        )
    return Selection(name, texts, method=method, model=model, convert=output.convert)


def raw(text: str) -> RawText:
    """Text tokenized with control tokens on: `raw("<|im_start|>")` is the token. All other text is plain, whoever
    wrote it. Never pass text of a user through this.
    """
    if not isinstance(text, str):
        raise SpecError(f"raw({shown(text)}) is not text", hint="raw takes a string", origin=caller_origin())
    return RawText(text)


def image(source: Any) -> Image:
    """An image. No backend of this version takes one; appending it says so."""
    return Image(source)


@lru_cache(maxsize=1024, typed=True)  # a program makes the same call many times; checking its options takes longer
def _sampling(*values: Any) -> tuple[SamplingSpec, frozenset[str]]:
    """The spec of what is given, and the names of it. None is not given."""
    given = {name: value for name, value in zip(_SAMPLED, values, strict=True) if value is not None}
    return SamplingSpec(**given), frozenset(given)


def _output(
    *, wanted: Any, schema: Any, regex: str | None, choices: Iterable[Any] | None, grammar: str | None
) -> Output:
    given = {"type": wanted, "schema": schema, "regex": regex, "choices": choices, "grammar": grammar}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise SpecError(f"{' and '.join(names)} exclude each other", hint=f"keep one of {', '.join(names)}")
    for name, text in (("regex", regex), ("grammar", grammar)):
        if text is not None and not isinstance(text, str):
            raise SpecError(f"{name}={shown(text)} is not text", hint=f'{name}="..."')
    if regex is not None:
        return Output(ConstraintSpec(kind="regex", text=_regex(regex)))
    if grammar is not None:
        return Output(ConstraintSpec(kind="lark", text=grammar))
    if choices is not None:
        return one_of(listed_choices(choices, 'gen(choices=["a", "b"])'), "choices")
    return output_of(wanted if wanted is not None else schema)


def _rare(
    retries: int, partial_ok: bool, reasoning: Reasoning | bool, timeout_s: float | None, heal: bool
) -> dict[str, Any]:
    retries = whole("retries", retries, 0)
    if timeout_s is not None:
        timeout_s = number("timeout_s", timeout_s, 0, above=True)
    return {
        "retries": retries,
        "partial_ok": flag("partial_ok", partial_ok),
        "reasoning": _reasoning(reasoning),
        "timeout_s": timeout_s,
        "heal": flag("heal", heal),
    }


def _reasoning(reasoning: Reasoning | bool) -> Reasoning | None:
    if not isinstance(reasoning, Reasoning):
        return Reasoning() if flag("reasoning", reasoning) else None
    utf8_text("reasoning.begin", reasoning.begin)  # empty: the model opens the block itself
    if not utf8_text("reasoning.end", reasoning.end):
        raise SpecError("reasoning.end is empty", hint='Reasoning(begin="<think>", end="</think>")')
    if reasoning.budget_tokens is not None:
        whole("reasoning.budget_tokens", reasoning.budget_tokens, 0, MOST_TOKENS)
    if reasoning.regex is not None:
        _regex(reasoning.regex)
    return reasoning


def _name(name: str | None) -> str | None:
    if name is not None and (not isinstance(name, str) or not name):
        raise SpecError(
            f"name={shown(name)} is not a non-empty string", hint='gen("answer"); leave it out to have none'
        )
    return name


def _unknown_option(function: str, name: str, known: Iterable[str]) -> SpecError:
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}=?" if near else f"one of {', '.join(sorted(known))}"
    return SpecError(f"{function} has no option {name!r}", hint=hint, origin=caller_origin())


def _model(model: str | None) -> str | None:
    if model is not None and (not isinstance(model, str) or not model):
        raise SpecError(
            f"model={shown(model)} is not the name of a model",
            hint='model="judge", one of RunOptions(models={"judge": ...})',
        )
    return model


def _whole(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SpecError(f"{name}={shown(value)} is not a whole number above 0", hint=f"{name}=3")
    if value > MOST_BRANCHES:
        raise SpecError(
            f"{name}={shown(value)} is more than {MOST_BRANCHES:,}, the most that one statement makes",
            hint="make them in several statements",
        )


def _regexes(texts: Texts) -> tuple[str, ...]:
    return tuple(map(_regex, (texts,) if isinstance(texts, str) else texts))


def listed_choices(choices: Any, example: str, empty: str = "the list of choices is empty") -> tuple[Any, ...]:
    """Choices as they are given, in order, each once: strings, members of Enums, mentions; a whole Enum is its members.

    Raises:
        SpecError: not several texts.
    """
    if isinstance(choices, type) and issubclass(choices, Enum):
        choices = list(choices)
    if isinstance(choices, (str, bytes)) or not isinstance(choices, Iterable) or isinstance(choices, Expression):
        raise SpecError(f"choices={shown(choices)} is not a list of strings", hint=example)
    if isinstance(choices, Mapping):
        raise SpecError(
            f"choices={shown(choices)} is a dict", hint="list(d) for its keys, list(d.values()) for its values"
        )
    listed = sorted(choices, key=_in_order) if isinstance(choices, (set, frozenset)) else list(choices)
    if not listed:
        raise SpecError(empty, hint=example)
    for choice in listed:
        said = choice.value if isinstance(choice, Enum) else choice
        if not isinstance(said, (str, Mention)) or (isinstance(choice, Enum) and isinstance(said, Mention)):
            raise SpecError(
                f"the choice {shown(choice)} is a {type(choice).__name__}, not text",
                hint=f"use strings: {shown(shown(said))}; gen(type=Literal[...]) takes numbers",
            )
    return tuple(listed)


def _in_order(choice: Any) -> str:
    """Sets have no order that two processes agree on, and the order decides between equal choices."""
    return str(choice.value if isinstance(choice, Enum) else choice)


_VALIDATE_HINT = "a function of the value that returns False, or raises ValueError, where it refuses"


def _regex(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, TypeError, RecursionError, OverflowError) as error:
        raise ConstraintError(
            f"regex {shown(pattern)} is not a regular expression: {error}", hint="test it with re.compile"
        ) from error
    return pattern


def system(*content: Any) -> WholeTurn:
    """A system turn of texts and calls."""
    return _turn("system", content)


def user(*content: Any) -> WholeTurn:
    """A user turn of texts and calls."""
    return _turn("user", content)


def assistant(*content: Any) -> WholeTurn:
    """An assistant turn of texts and calls: `s += assistant("It is ", gen("metal"))`."""
    return _turn("assistant", content)


def role(name: str, *content: Any) -> WholeTurn:
    """A turn of any role that the model's template knows, such as "tool"."""
    return _turn(name, content)


def role_begin(name: str) -> TurnBegin:
    """Open a turn of any role."""
    return TurnBegin(name)


def role_end(name: str) -> TurnEnd:
    """Close the open turn of this role."""
    return TurnEnd(name)


def system_begin() -> TurnBegin:
    """Open a system turn."""
    return TurnBegin("system")


def system_end() -> TurnEnd:
    """Close the system turn."""
    return TurnEnd("system")


def user_begin() -> TurnBegin:
    """Open a user turn."""
    return TurnBegin("user")


def user_end() -> TurnEnd:
    """Close the user turn."""
    return TurnEnd("user")


def assistant_begin() -> TurnBegin:
    """Open an assistant turn: what follows, also in branches, continues it."""
    return TurnBegin("assistant")


def assistant_end() -> TurnEnd:
    """Close the assistant turn."""
    return TurnEnd("assistant")


def _turn(name: str, content: tuple[Any, ...]) -> WholeTurn:
    if not isinstance(name, str) or not name:
        raise RoleError(f"a role is named by a string, not {name!r}", hint='role("tool", ...)', origin=caller_origin())
    for part in content:
        for item in part.parts if isinstance(part, Chain) else (part,):
            if isinstance(item, (WholeTurn, TurnBegin, TurnEnd)):
                raise RoleError(
                    f"{item!r} stands inside a {name!r} turn",
                    hint="turns do not nest: append one after the other",
                    origin=caller_origin(),
                )
    return WholeTurn(name, content)
