"""Values of a run and errors as plain JSON data and back, exact to the last bit.

JSON is itself. MISSING is {"$missing": true}, an error {"$error": [code, what]}, an infinite or undefined number
{"$float": text}, a dict whose keys are not all plain strings {"$pairs": [[key, value], ...]}, and Python data that JSON has no
form for {"$python": [kind, data]}: tuples, sets, bytes, Decimals, dates, times, durations, UUIDs.

This is written by hand: what a value is made of is known from the value alone, and a library that reads by types has none to go by.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from ..errors import DslError, FormatError, GraphError, RunError
from .expressions import MAX_DATA_DEPTH, is_too_deep
from .operations import jsonable
from .outcome import MISSING
from .specs import shown

LEVELS_WRITTEN = 3  # at most, for one level of a value: {"$python": ["tuple", [...]]}


class RecordedError(RunError):
    """An error as a record holds it: the code and words of the one that was raised."""

    title = "error of a recorded run"

    def __init__(self, code: str, what: str) -> None:
        super().__init__(what)
        self.recorded_code = code


def encode_error(error: BaseException) -> list[str]:
    """An error's code (a Python error's class name) and words."""
    if isinstance(error, RecordedError):
        return [error.recorded_code, error.what]
    return [error.code, error.what] if isinstance(error, DslError) else [type(error).__name__, str(error)]


def decode_error(data: Any) -> RecordedError:
    """The error of `encode_error`. Raises FormatError."""
    match data:
        case [str() as code, str() as what]:
            return RecordedError(code, what)
    raise FormatError(f"{shown(data)} is not a recorded error")


def encode_value(value: Any) -> Any:
    """A value as data. A value that is no JSON, or nested too deeply, is a FormatError."""
    _check_nesting(value)
    return _written(value)


def _check_nesting(value: Any, most: int = MAX_DATA_DEPTH) -> None:
    if is_too_deep(value, most):
        raise FormatError(
            f"a {type(value).__name__} has lists or dicts in each other more than {MAX_DATA_DEPTH} deep, which no file holds"
        )


def _written(value: Any) -> Any:
    kind = type(value)
    if kind.__name__ in _PYTHON and _PYTHON[kind.__name__].kind is kind:
        return {"$python": [kind.__name__, _PYTHON[kind.__name__].write(value)]}
    match value:
        case None | bool():
            return value
        case Enum():
            pass
        case str():
            return str.__str__(value)
        case int():
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
        case list() if kind is list:
            return [_written(item) for item in value]
        case dict() if kind is dict:
            if not all(isinstance(key, str) for key in value) or any(key.startswith("$") for key in value):
                return {"$pairs": [[_written(key), _written(item)] for key, item in value.items()]}
            return {key: _written(item) for key, item in value.items()}
        case BaseException():
            return {"$error": encode_error(value)}
    if value is MISSING:
        return {"$missing": True}
    try:
        return _written(jsonable(value))
    except GraphError as error:
        raise FormatError(
            f"a {type(value).__name__} has no JSON; records and stored graphs hold JSON values only"
        ) from error


def decode_value(data: Any) -> Any:
    """The value of `encode_value`. Raises FormatError."""
    _check_nesting(data, LEVELS_WRITTEN * MAX_DATA_DEPTH)
    try:
        found = _read(data)
    except (AttributeError, TypeError, ValueError, ArithmeticError) as error:
        raise FormatError(f"{shown(data)} is not a stored value: {error}") from error
    _check_nesting(found)
    return found


def _read(data: Any) -> Any:
    match data:
        case list():
            return [_read(item) for item in data]
        case {"$missing": True}:
            return MISSING
        case {"$error": error}:
            return decode_error(error)
        case {"$float": str() as text}:
            return float(text)
        case {"$python": [str() as kind, written]} if kind in _PYTHON:
            return _PYTHON[kind].read(written)
        case {"$pairs": list() as pairs}:
            return {_read(key): _read(item) for key, item in pairs}
        case dict():
            return {key: _read(item) for key, item in data.items()}
    return data


class _Form(NamedTuple):
    """How a Python type that JSON has no form for is written and read."""

    kind: type
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _items(value: Any) -> list[Any]:
    return [_written(item) for item in value]


def _sorted_items(value: Any) -> list[Any]:
    """Of a set: equal sets are written alike."""
    return sorted(_items(value), key=lambda item: json.dumps(item, sort_keys=True))


def _form(kind: type, write: Callable[[Any], Any], read: Callable[[Any], Any]) -> tuple[str, _Form]:
    return kind.__name__, _Form(kind, write, read)


_PYTHON: Mapping[str, _Form] = dict([
    _form(tuple, _items, lambda data: tuple(map(_read, data))),
    _form(set, _sorted_items, lambda data: set(map(_read, data))),
    _form(frozenset, _sorted_items, lambda data: frozenset(map(_read, data))),
    _form(bytes, bytes.hex, bytes.fromhex),
    _form(Decimal, str, Decimal),
    _form(datetime, datetime.isoformat, datetime.fromisoformat),
    _form(date, date.isoformat, date.fromisoformat),
    _form(time, time.isoformat, time.fromisoformat),
    _form(timedelta, lambda span: [span.days, span.seconds, span.microseconds], lambda data: timedelta(*data)),
    _form(UUID, str, UUID),
])  # fmt: skip
