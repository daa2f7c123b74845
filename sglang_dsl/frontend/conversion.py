"""Python values and JSON: what an annotation makes of data, and whether JSON says all there is to a value.

Within a run a value is the object itself. A Conversion makes objects of data that comes from elsewhere (a model's text, a
stored graph, a record), and turns objects into JSON where a record or a graph needs it: then the JSON is read again, and
where what comes back is not equal the field that differs is named.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
from collections.abc import Collection, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    ForwardRef,
    Literal,
    NotRequired,
    Required,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)
from uuid import UUID

from ..errors import FormatError, GraphError, InvalidValueError
from ..ir.expressions import is_data
from ..ir.nodes import Json
from ..ir.operations import jsonable
from ..ir.specs import spelled
from .outputs import adapter_of, named

if TYPE_CHECKING:
    from pydantic import TypeAdapter

# Held exactly by records and stored graphs, whatever the annotation says (see `ir/values.py`).
_HOLDERS = frozenset({list, tuple, set, frozenset, dict})
_EXACT = frozenset({type(None), bool, int, float, str, bytes, Decimal, date, datetime, time, timedelta, UUID})
_LOOSE = frozenset({str, int, float, bool, dict, list})  # hints that Python programmers do not take at their word
_NUMBERS = (int, float, bool)


class Conversion:
    """From data to the type `hint`, and back. `Conversion(Any)` takes everything as it is."""

    __slots__ = ("hint",)

    def __init__(self, hint: Any) -> None:
        self.hint = hint

    @property
    def wanted(self) -> Any:
        """The type (a name that conversions of model output have, too)."""
        return self.hint

    def __call__(self, value: Any) -> Any:
        """`value` itself where it is of the type, else what the type makes of it.

        Raises:
            InvalidValueError: the type refuses it; names the field.
        """
        if fits(value, self.hint):
            return value
        if isinstance(value, Enum) and fits(value.value, self.hint):
            return value.value
        if self.hint in _LOOSE and is_data(value) and not (type(value) is str and self.hint in _NUMBERS):
            return value
        return self._made(value)

    def to_json(self, value: Any) -> Json:
        """`value` as what a record or a stored graph can hold, of which this conversion makes an equal value.

        Raises:
            FormatError: there is none; names the field.
        """
        if is_exact(value):
            found: Json = value
            return found
        adapter = adapter_of(self.hint) if self.hint is not Any else None
        if adapter is None:
            where = first_object(value) or ""
            raise FormatError(
                f"{_at(where)} is a {_kind_at(value, where)}, and no annotation says how to read one",
                hint="annotate it with its type, or use plain data",
            )
        different = ""
        for by_alias in (True, False):
            data, different = self._written(adapter, value, by_alias=by_alias)
            if not different:
                return data
        raise FormatError(
            f"a {type(value).__name__} does not come back from JSON as it was: {different}",
            hint="make every field part of its JSON, under one name; or hand on plain data",
        )

    def _written(self, adapter: TypeAdapter[Any], value: Any, *, by_alias: bool) -> tuple[Json, str]:
        """(JSON, what differs when it is read, or "")."""
        from pydantic import ValidationError

        try:
            data: Json = adapter.dump_python(value, mode="json", by_alias=by_alias, warnings=False)
            back = adapter.validate_json(json.dumps(data))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            return None, f"{_at('.'.join(map(str, first['loc'])))}: {first['msg']}"
        except Exception as error:  # noqa: BLE001 - also what the object's own code raises
            return None, (str(error) or type(error).__name__).splitlines()[0]
        where = difference(value, back)
        return data, "" if where is None else f"{_at(where)} is another value afterwards"

    def _made(self, value: Any) -> Any:
        from pydantic import ValidationError

        adapter = adapter_of(self.hint)
        if adapter is None:
            if is_data(value):
                raise InvalidValueError(f"{_shown(value)} is no {named(self.hint)}", text=_shown(value))
            return value
        try:
            if is_data(value):
                return adapter.validate_json(json.dumps(value))
            return self._of_object(adapter, value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "the value"
            what = f"{_shown(value)} is not data that a {named(self.hint)} can be made of"
            if self.hint in _LOOSE and is_data(value):
                return value
            raise InvalidValueError(f"{what}: {where}: {first['msg']}", text=_shown(value)) from error

    def _of_object(self, adapter: TypeAdapter[Any], value: Any) -> Any:
        """Of a list with objects in it, of an object of another class."""
        from pydantic import ValidationError

        try:
            return adapter.validate_python(value)
        except ValidationError:
            try:
                data = jsonable(value)
            except GraphError:
                data = None
            if data is None or not is_data(data):
                raise
            return adapter.validate_json(json.dumps(data))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Conversion) and self.hint == other.hint

    def __hash__(self) -> int:
        return hash(repr(self.hint))

    def __repr__(self) -> str:
        return f"conversion to {named(self.hint)}"

    def __reduce__(self) -> tuple[Any, ...]:
        return Conversion, (self.hint,)


ANYTHING = Conversion(Any)


# --- is it of the type already? ---------------------------------------------------------------------------------------


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type already, so that it is handed on as it is. Runs no validator.

    What cannot be known (an iterator's items, a protocol's methods) counts as fitting.
    """
    if hint is None:
        return value is None
    origin = get_origin(hint)
    if origin is None:
        return _fits_class(value, hint)
    arguments = get_args(hint)
    if origin in (Annotated, Required, NotRequired, ClassVar, Final):
        return fits(value, arguments[0])
    if origin in (Union, types.UnionType):
        return any(fits(value, argument) for argument in arguments)
    if origin is Literal:
        return any(type(value) is type(argument) and value == argument for argument in arguments)
    if not isinstance(origin, type):
        return True
    return _is_instance(value, origin) and _items_fit(value, origin, arguments)


def _fits_class(value: Any, hint: Any) -> bool:
    if not isinstance(hint, type):
        inner = getattr(hint, "__supertype__", None) or getattr(hint, "__value__", None)  # NewType, `type X = ...`
        return True if inner is None or isinstance(hint, (TypeVar, ForwardRef, str)) else fits(value, inner)
    if is_typeddict(hint):
        return isinstance(value, dict) and _keys_fit(value, hint)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is complex:
        return isinstance(value, (int, float, complex)) and not isinstance(value, bool)
    return _is_instance(value, hint)


def _is_instance(value: Any, kind: type) -> bool:
    try:
        return isinstance(value, kind)
    except TypeError:  # a protocol that cannot be asked
        return True


def _keys_fit(value: dict[Any, Any], hint: Any) -> bool:
    hints = _typeddict_hints(hint)
    return hint.__required_keys__ <= value.keys() <= hints.keys() and all(fits(v, hints[k]) for k, v in value.items())


@lru_cache(maxsize=512)
def _typeddict_hints(hint: Any) -> dict[str, Any]:
    return get_type_hints(hint)


def _items_fit(value: Any, origin: type, arguments: tuple[Any, ...]) -> bool:
    if not isinstance(value, Collection) or isinstance(value, (str, bytes)):
        return True
    if issubclass(origin, tuple):
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return all(fits(item, arguments[0]) for item in value)
        wanted = () if arguments == ((),) else arguments
        return len(value) == len(wanted) and all(map(fits, value, wanted))
    if isinstance(value, Mapping):
        if len(arguments) != 2 or not issubclass(origin, Mapping):
            return True
        return all(fits(key, arguments[0]) and fits(item, arguments[1]) for key, item in value.items())
    if len(arguments) != 1 or not origin.__module__.startswith(("collections", "builtins")):
        return True
    return all(fits(item, arguments[0]) for item in value)


# --- what kind of data is it? -----------------------------------------------------------------------------------------


def is_exact(value: Any) -> bool:
    """Whether records and stored graphs hold it exactly, without help of an annotation."""
    return first_object(value) is None


def first_object(value: Any, where: str = "") -> str | None:
    """Where in plain data something stands that is no plain data; None where there is nothing of the kind."""
    waiting, seen = [(value, where)], set[int]()
    while waiting:
        value, where = waiting.pop()
        kind = type(value)
        if kind in _HOLDERS:
            if id(value) in seen:
                continue
            seen.add(id(value))
            if kind is dict:
                inside = [(part, f"{where}.{key}" if where else str(key))
                          for key, item in value.items() for part in (key, item)]  # fmt: skip
            else:
                inside = [(item, f"{where}[{index}]") for index, item in enumerate(value)]
            waiting.extend(reversed(inside))
        elif kind not in _EXACT and (not isinstance(value, (str, int, float)) or isinstance(value, Enum)):
            return where
    return None


def difference(one: Any, other: Any, where: str = "") -> str | None:
    """The first field in which two values differ, None where they are equal. Looks into objects: fields that their own `==`
    leaves out count, and nan equals nan.
    """
    if type(one) is not type(other):
        return where
    if isinstance(one, float) and math.isnan(one):
        return None if math.isnan(other) else where
    if isinstance(one, (list, tuple)) and not hasattr(one, "__dict__"):
        if len(one) != len(other):
            return where
        return _first(difference(a, b, f"{where}[{i}]") for i, (a, b) in enumerate(zip(one, other, strict=True)))
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return where
        return _first(difference(one[key], other[key], f"{where}.{key}" if where else str(key)) for key in one)
    if isinstance(one, Enum):
        return None if one is other else where
    fields = fields_of(one)
    if fields is not None:
        others = fields_of(other) or {}
        for name in {**fields, **others}:
            inner = f"{where}.{name}" if where else name
            if name not in fields or name not in others:
                return inner
            if (found := difference(fields[name], others[name], inner)) is not None:
                return found
        return None
    try:
        return None if bool(one == other) else where
    except Exception:  # noqa: BLE001  what cannot be compared is not known to be equal
        return where


def _first(places: Any) -> str | None:
    return next((place for place in places if place is not None), None)


def fields_of(value: Any) -> dict[str, Any] | None:
    """All that a dataclass object or a pydantic model holds, by name; None for anything else."""
    kind = type(value)
    if hasattr(kind, "__pydantic_fields__") and not dataclasses.is_dataclass(kind):
        extra, private = value.__pydantic_extra__, value.__pydantic_private__
        found = {**vars(value), **(extra or {}), **(private or {})}
    elif dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
        found = {
            **{name: getattr(value, name) for name in names if hasattr(value, name)},
            **getattr(value, "__dict__", {}),
        }
    else:
        return None
    return {name: item for name, item in found.items() if not _is_cache(kind, name)}


def _is_cache(kind: type, name: str) -> bool:
    return isinstance(getattr(kind, name, None), functools.cached_property)


def _at(where: str) -> str:
    return f"field {where!r}" if where else "it"


def _kind_at(value: Any, where: str) -> str:
    """The class of what stands at a place that `first_object` names."""
    if not where:
        return type(value).__name__
    waiting, seen = [value], set[int]()
    while waiting:
        part = waiting.pop()
        if type(part) not in _HOLDERS:
            if not is_exact(part):
                return type(part).__name__
        elif id(part) not in seen:
            seen.add(id(part))
            inside = [each for pair in part.items() for each in pair] if type(part) is dict else list(part)
            waiting.extend(reversed(inside))
    return "value"


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False) if is_data(value) else f"a {type(value).__name__}"
    except (TypeError, ValueError, RecursionError):
        text = spelled(value)
    return text if len(text) <= 80 else text[:77] + "..."
