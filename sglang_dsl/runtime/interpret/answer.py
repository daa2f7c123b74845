"""From a finished text to a value: decoded, checked against its constraint, refused where it was cut off."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NoReturn, Protocol

from ...errors import ConstraintError, InvalidValueError, TruncatedError
from ...ir.nodes import Gen
from ...ir.specs import ConstraintSpec

SHOWN_CHARACTERS = 80  # of an output, in an error: enough to recognise it, too little to flood a log


class _Validator(Protocol):
    def iter_errors(self, instance: Any) -> Any: ...


def value_of(gen: Gen, text: str, *, cut: bool, tokens: int) -> Any:
    """The value of a gen's text.

    Args:
        cut: the output ended by length. Under a constraint it is complete only if it is a valid value anyway; with
            `partial_ok` the partial text is the value.

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
        raise TruncatedError(
            f"the output of {gen.name or gen.id!r} was cut off after {tokens} tokens and is not complete",
            partial=text,
            tokens=tokens,
            hint=f"raise max_tokens (now {gen.sampling.max_tokens}), or pass partial_ok=True to get the partial text",
            origin=gen.origin,
        ) from None


def prepare(constraint: ConstraintSpec | None) -> None:
    """Build on the caller's thread what `value_of` will need on the engine's, once per constraint.

    Raises:
        ConstraintError: the schema is not one.
    """
    if constraint is not None and constraint.kind == "json_schema":
        _validator(constraint.text)


def accept(gen: Gen, value: Any, text: str, validator: Callable[[Any], Any]) -> None:
    """Ask the program's own validator: it refuses by returning False or raising ValueError.

    Raises:
        InvalidValueError: it refused; the message is its own.
    """
    try:
        refused = validator(value) is False
        reason = "its validator returned False"
    except ValueError as error:
        refused, reason = True, str(error) or type(error).__name__
    if refused:
        _refuse(gen, text, reason)


def _checked(gen: Gen, text: str) -> Any:
    value = _parsed(gen, text) if gen.decode == "json" else text
    constraint = gen.constraint
    if constraint is None:
        return value
    match constraint.kind:
        case "json_schema":
            _check_schema(gen, value if gen.decode == "json" else _parsed(gen, text), text, constraint)
        case "regex":
            if _pattern(constraint.text).fullmatch(text) is None:
                _refuse(gen, text, f"it does not match {_short(constraint.text)}")
        case "choices":
            if text not in json.loads(constraint.text):
                _refuse(gen, text, "it is none of the choices")
    return value


def _parsed(gen: Gen, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_not_json)
    except ValueError as error:
        _refuse(gen, text, f"it is not JSON: {error}")


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")


def _check_schema(gen: Gen, value: Any, text: str, constraint: ConstraintSpec) -> None:
    for error in _validator(constraint.text).iter_errors(value):
        _refuse(gen, text, f"at {error.json_path}: {_short(error.message)}")


@lru_cache(maxsize=256)
def _validator(schema: str) -> _Validator:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    parsed = json.loads(schema)
    try:
        Draft202012Validator.check_schema(parsed)
    except SchemaError as error:
        raise ConstraintError(f"the schema is not valid at {error.json_path}: {error.message}") from error
    return Draft202012Validator(parsed, format_checker=Draft202012Validator.FORMAT_CHECKER)


@lru_cache(maxsize=256)
def _pattern(source: str) -> re.Pattern[str]:
    try:
        return re.compile(source)
    except re.error as error:
        raise ConstraintError(f"the regex {_short(source)} is malformed: {error}") from error


def _refuse(gen: Gen, text: str, reason: str) -> NoReturn:
    raise InvalidValueError(
        f"the output of {gen.name or gen.id!r} was refused: {reason}",
        text=text,
        hint="loosen the type, or allow more retries",
        origin=gen.origin,
    )


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."
