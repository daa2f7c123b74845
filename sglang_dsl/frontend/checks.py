"""What the runtime asks before it accepts a value: the type's own validation, and the user's `validate=`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import InvalidValueError
from .outputs import Output

Check = tuple[str, Callable[[Any], bool]]


def check_of(output: Output, validate: Callable[[Any], Any] | None) -> Check | None:
    """(registry key, function of the decoded value), or None where every value that the constraint admits is right.

    The function returns True, or raises InvalidValueError with the reason.
    """
    if validate is None:
        return (
            (f"type:{_named(output.convert)}", _Converts(output.convert)) if output.checks and output.convert else None
        )
    return f"validate:{_named(validate)}", _Accepts(output.convert, validate)


class _Converts:
    """Accepts what the type accepts. Two of the same type are equal, so that they share a registry key."""

    __slots__ = ("_convert",)

    def __init__(self, convert: Callable[[Any], Any]) -> None:
        self._convert = convert

    def __call__(self, value: Any) -> bool:
        self._convert(value)
        return True


class _Accepts:
    """Accepts what the user's function does not refuse."""

    __slots__ = ("_convert", "_validate")

    def __init__(self, convert: Callable[[Any], Any] | None, validate: Callable[[Any], Any]) -> None:
        self._convert = convert
        self._validate = validate

    def __call__(self, value: Any) -> bool:
        typed = value if self._convert is None else self._convert(value)
        try:
            accepted = self._validate(typed)
        except (ValueError, AssertionError) as error:
            raise InvalidValueError(f"the validator refused it: {error}", text=str(value)) from error
        if accepted is False:
            raise InvalidValueError(f"{_named(self._validate)} refused it", text=str(value))
        return True


def _named(function: Any) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__name__)}"
