"""What the runtime asks before it accepts a value: the type's own validation, and the user's `validate=`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Literal

from ..errors import InvalidValueError, SpecError
from ..ir.outcome import Accepted
from ..ir.specs import shown
from .outputs import Output

Check = tuple[str, Callable[[Any], Any]]


def check_takes_value(what: str, function: Any, hint: str) -> None:
    """Raise SpecError for what cannot be called with one value, or would not run then, before anything is paid for it."""
    if not callable(function):
        raise SpecError(f"{what}={shown(function)} cannot be called", hint=hint)
    if hasattr(type(function), "run_batch"):
        raise SpecError(
            f"{what}={shown(function)} is a program", hint=f"{what}=lambda value: {function.name}.run(value)"
        )
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not (inspect.isroutine(inner) or isinstance(inner, type)):
        inner = type(inner).__call__
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise SpecError(f"{what}={shown(function)} is a generator: nothing of it would run", hint=hint)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # not every builtin says what it takes
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise SpecError(f"{what}={shown(function)} cannot be called with one value: {error}", hint=hint) from None


def check_of(output: Output, validate: Callable[[Any], Any] | None) -> Check | None:
    """(registry key, function of the decoded value), or None where every value that the constraint admits is right.

    The function returns what it made of the value, or False, or raises ValueError with the reason.
    """
    if validate is None:
        return (
            (f"type:{_named(getattr(output.convert, 'wanted', output.convert))}", _Converts(output.convert))
            if output.checks and output.convert
            else None
        )
    return f"validate:{_named(validate)}", _Accepts(output.convert, validate)


@dataclass(frozen=True, slots=True)
class Partly:
    """A conversion of `partial_ok` calls: what was cut off is read as its text. A number is never made of part of one."""

    convert: Callable[[Any], Any]

    def __call__(self, value: Any) -> Any:
        """The value, or the partial text."""
        if not isinstance(value, str):
            return self.convert(value)
        if self.convert is float:
            return value
        try:
            return self.convert(value)
        except (ValueError, InvalidValueError):  # an Enum without such a member, a model that wants an object
            return value


@dataclass(frozen=True, slots=True)
class _Converts:
    """Accepts what the type accepts."""

    convert: Callable[[Any], Any]

    def __call__(self, value: Any) -> Accepted:
        return Accepted(_typed(value, self.convert))


@dataclass(frozen=True, slots=True)
class _Accepts:
    """Accepts what the user's function does not refuse: it refuses by returning False, or by raising ValueError or
    AssertionError. It is called with the very object that the program will read; one that is `async def` is awaited.
    """

    convert: Callable[[Any], Any] | None
    validate: Callable[[Any], Any]

    def __call__(self, value: Any) -> Any:
        typed = value if self.convert is None else _typed(value, self.convert)
        with _assertions_refuse():
            accepted = self.validate(typed)
        return _later(accepted, typed) if isawaitable(accepted) else _verdict(accepted, typed)


async def _later(accepted: Awaitable[Any], typed: Any) -> Accepted | Literal[False]:
    with _assertions_refuse():
        return _verdict(await accepted, typed)


def _verdict(accepted: Any, typed: Any) -> Accepted | Literal[False]:
    return False if accepted is False else Accepted(typed)


@contextmanager
def _assertions_refuse() -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        raise ValueError(str(error) or "an assertion of the validator failed") from error


def _typed(value: Any, convert: Callable[[Any], Any]) -> Any:
    try:
        return convert(value)
    except InvalidValueError as error:
        raise ValueError(error.what) from error


def _named(function: Any) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__name__)}"
