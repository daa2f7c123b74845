"""From a finished text to a value: decoded, checked against its constraint, refused where it was cut off."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from inspect import isawaitable
from typing import Any, NoReturn

from ...errors import InvalidValueError, RunError, TruncatedError
from ...ir.nodes import Gen
from ...ir.outcome import Accepted
from ...ir.specs import ConstraintSpec, shown
from ..constrain.compile import compile_constraint
from ..constrain.schema_validator import validator_of_text
from .user_code import printable

SHOWN_CHARACTERS = 80  # of an output, in an error: enough to recognise it, too little to flood a log
QUICK_CHARACTERS = 4096  # of an output that is checked where it arrives: a millisecond at most


def value_of(gen: Gen, text: str, *, cut: bool, tokens: int, stop: str | int | None = None) -> Any:
    """The value of a gen's text.

    Args:
        cut: the output ended by length or by a stop. Under a constraint it is complete only if it is a valid value anyway;
            with `partial_ok` the partial text is the value.
        stop: the stop that ended it, if one did.

    Raises:
        TruncatedError: constrained output was cut off.
        InvalidValueError: the text is not what was asked for.
    """
    if not cut or (gen.constraint is None and gen.decode == "text"):
        return _checked(gen, text)
    try:
        return _checked(gen, text)
    except InvalidValueError:
        if gen.partial_ok:
            return text
        by = "" if stop is None else f" by its stop {shown(stop)}"
        more = (
            f"raise max_tokens (now {gen.sampling.max_tokens})"
            if stop is None
            else "leave the stop out: a constraint ends by itself"
        )
        raise TruncatedError(
            f"the output of {gen.name or gen.id!r} was cut off{by} after {tokens} tokens and is not complete",
            partial=text,
            tokens=tokens,
            hint=f"{more}, or pass partial_ok=True to get the partial text",
            origin=gen.origin,
        ) from None


def prepare(constraint: ConstraintSpec | None) -> None:
    """Build on the caller's thread what is needed to check a value, once per constraint.

    Raises:
        ConstraintError: the schema is not one.
    """
    if constraint is None or constraint.kind == "lark":
        return
    compile_constraint(constraint)
    if constraint.kind == "json_schema":
        validator_of_text(constraint.text)


def checked_at_once(gen: Gen, text: str) -> bool:
    """Whether `value_of` takes no time to speak of: the text is short, and nothing but look-ups are needed to check it, as
    where the constraint's automaton has just produced it. All else is left to a thread that may take its time.
    """
    constraint = gen.constraint
    if constraint is None:
        return gen.decode == "text" or len(text) <= QUICK_CHARACTERS
    if len(text) > QUICK_CHARACTERS:
        return False
    match constraint.kind:
        case "regex":
            return compile_constraint(constraint).known(text) is not None
        case "json_schema":
            return compile_constraint(constraint).known(text) is True
    return True


def judged(
    gen: Gen,
    text: str,
    validator: Callable[[Any], Any] | None,
    *,
    cut: bool,
    tokens: int,
    stop: str | int | None = None,
) -> Any:
    """(the value of a gen's text (see `value_of`), what the program's own validator made of it, if it says), or an awaitable of
    that. The validator refuses by returning False or raising ValueError, or by what it gives to be awaited doing so.

    Raises:
        TruncatedError, InvalidValueError: see `value_of`; or it was refused, and the message is the validator's own.
    """
    value = value_of(gen, text, cut=cut, tokens=tokens, stop=stop)
    if validator is None:
        return value, None
    with _refusing(gen, text):
        verdict = validator(value)
    return _judged_later(gen, text, value, verdict) if isawaitable(verdict) else _accepted(gen, text, value, verdict)


async def _judged_later(gen: Gen, text: str, value: Any, verdict: Awaitable[Any]) -> tuple[Any, Accepted | None]:
    with _refusing(gen, text):
        found = await verdict
    return _accepted(gen, text, value, found)


def _accepted(gen: Gen, text: str, value: Any, verdict: Any) -> tuple[Any, Accepted | None]:
    if verdict is False:
        _refuse(gen, text, "its validator returned False")
    return value, verdict if isinstance(verdict, Accepted) else None


@contextmanager
def _refusing(gen: Gen, text: str) -> Iterator[None]:
    """What a validator raises, as a refusal. Output that another run of the validator's own refused is no refusal here."""
    try:
        yield
    except ValueError as error:
        _refuse(gen, text, printable(str(error)) or type(error).__name__)
    except InvalidValueError as error:
        raise RunError(
            f"the validator of {gen.name or gen.id!r} raised InvalidValueError: {error.what}", origin=gen.origin
        ) from error


def _checked(gen: Gen, text: str) -> Any:
    value = _parsed(gen, text) if gen.decode == "json" else text
    constraint = gen.constraint
    if constraint is None:
        return value
    match constraint.kind:
        case "json_schema":
            if not compile_constraint(constraint).known(text):
                _check_schema(gen, value if gen.decode == "json" else _parsed(gen, text), text, constraint)
        case "regex":
            if not compile_constraint(constraint).matches(text):
                _refuse(gen, text, f"it does not match {_short(constraint.text)}")
        case "choices":
            if text not in _choices(constraint.text):
                _refuse(gen, text, "it is none of the choices")
    return value


@lru_cache(maxsize=256)
def _choices(listed: str) -> frozenset[str]:
    return frozenset(json.loads(listed))


def _parsed(gen: Gen, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_not_json)
    except ValueError as error:
        _refuse(gen, text, f"it is not JSON: {error}")


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")


def _check_schema(gen: Gen, value: Any, text: str, constraint: ConstraintSpec) -> None:
    for error in validator_of_text(constraint.text).iter_errors(value):
        _refuse(gen, text, f"at {error.json_path}: {_short(error.message)}")


def _refuse(gen: Gen, text: str, reason: str) -> NoReturn:
    raise InvalidValueError(
        f"the output of {gen.name or gen.id!r} was refused: {reason}",
        text=text,
        hint="loosen the type, or allow more retries",
        origin=gen.origin,
    )


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."
